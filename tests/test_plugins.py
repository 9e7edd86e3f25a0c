"""Plug-ins: files and installed packages that register things; each whole or not at all, and what is wrong with one in a sentence."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import esper
from esper.cli.main import main
from esper.leyline.errors import ConfigError, UnknownNameError
from esper.leyline.events import Envelope, Note, Rewarded
from esper.nissa import Hub, make_sink, read_events
from esper.simic.environment import GrowthEnv
from esper.simic.growth.config import GrowthConfig
from esper.simic.growth.environment import Start
from esper.simic.growth.workers import GrowthWorkers
from esper.simic.plugins import REGISTERS, load_plugins
from esper.simic.rewards import RewardConfig, RewardStep, RewardTracker
from esper.simic.runs.runner import start
from esper.tolaria.tasks import TASKS, get
from tests.simic.plans import one_step
from tests.simic.runs import Crash, CrashAfter, small
from tests.tamiyo.samples import report, seed

TASK = """\
from dataclasses import replace
import esper
from esper.tolaria.tasks import get
esper.task(replace(get("digits"), name="{name}", summary="mine"))
"""
EVERYTHING = (
    TASK
    + """\
from torch import nn
from esper.tamiyo.controllers.baselines import Wait, WaitConfig

@esper.blueprint("my_linear", "vector", purpose="a layer")
def my_linear(shape):
    return nn.Linear(shape.width, shape.width)

esper.controller("lazy", WaitConfig, Wait, purpose="waits")

@esper.reward_component("mine")
def mine(step):
    return 1.0

@esper.sink("nowhere")
class Nowhere:
    def __init__(self, folder): self.folder = folder
    def write(self, envelope): pass
    def flush(self): pass
    def close(self): pass
"""
)


@pytest.fixture(autouse=True)
def registers_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ESPER_DATA", str(tmp_path / "cache"))
    before = [dict(register) for register in REGISTERS]
    yield
    for register, entries in zip(REGISTERS, before, strict=True):
        register.clear()
        register.update(entries)


def keys() -> list[tuple[object, ...]]:
    return [tuple(register) for register in REGISTERS]


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


# Files


def test_one_file_registers_one_of_each_kind(tmp_path: Path) -> None:
    before = keys()
    load_plugins([written(tmp_path / "mine.py", EVERYTHING.format(name="all-mine"))])
    added = [set(now) - set(old) for now, old in zip(keys(), before, strict=True)]
    assert added == [{"all-mine"}, {("vector", "my_linear")}, {"lazy"}, {"mine"}, {"nowhere"}]


@pytest.mark.parametrize("line", EVERYTHING.format(name="alone").split("\n\n"))
def test_a_file_that_registers_anything_is_a_plugin(line: str, tmp_path: Path) -> None:
    head = "import esper\nfrom torch import nn\nfrom esper.tamiyo.controllers.baselines import Wait, WaitConfig\n"
    before = keys()
    load_plugins([written(tmp_path / "one.py", head + line)])
    assert sum(map(len, keys())) == sum(map(len, before)) + 1


def test_loading_a_file_again_is_harmless_and_loading_an_edited_one_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.py", TASK.format(name="once"))
    load_plugins([path, str(path)])
    task = get("once")
    load_plugins([tmp_path / "." / "mine.py"])
    assert get("once") is task
    path.write_text(TASK.format(name="twice"))
    with pytest.raises(ConfigError, match=r"mine\.py was edited since this process loaded it"):
        load_plugins([path])
    assert "twice" not in TASKS


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1\n", r"bad\.py: registers nothing; expected esper\.task"),
        ("x = 1\ny = (\n", r"bad\.py, line 2: SyntaxError: '\(' was never closed$"),
        ("x = 1\0\n", r"bad\.py.*: (ValueError|SyntaxError): source code"),
        ("import math\n\nmath.sqrt(-1)\n", r"bad\.py, line 3: ValueError: math domain error"),
        ("def f():\n    raise OSError('first\\nsecond')\nf()\n", r"bad\.py, line 2: OSError: first$"),
        ("import sys\nsys.exit('no')\n", r"bad\.py, line 2: SystemExit: no"),
        ("import nowhere_to_be_found\n", r"bad\.py, line 1: ModuleNotFoundError: No module named"),
        (TASK.format(name="digits"), r"bad\.py, line 4: task 'digits': there is one of that name, registered in .*builtin\.py:\d+"),
        (EVERYTHING.format(name="half") + "1 / 0\n", r"bad\.py, line \d+: ZeroDivisionError"),
        ("import esper\nesper.reward_component('terminal')\n", "line 2: reward component 'terminal': that is one of Esper's own"),
        ("import esper\nesper.sink('My Sink')(print)\n", "line 2: sink 'My Sink': expected a name in lower case"),
    ],
)
def test_a_file_that_fails_is_one_sentence_and_leaves_nothing_behind(code: str, message: str, tmp_path: Path) -> None:
    before, modules = keys(), set(sys.modules)
    path = written(tmp_path / "bad.py", code)
    with pytest.raises(ConfigError, match=message) as caught:
        load_plugins([path])
    assert "\n" not in str(caught.value)
    assert keys() == before
    assert not {name for name in set(sys.modules) - modules if name.startswith("esper_plugin")}
    path.write_text(TASK.format(name="mended"))
    load_plugins([path])
    assert get("mended").summary == "mine"


def test_a_file_that_is_not_there_or_not_python_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no plug-in at .*/none\.py: No such file"):
        load_plugins([tmp_path / "none.py"])
    with pytest.raises(ConfigError, match=r"task\.txt: not a Python file"):
        load_plugins([written(tmp_path / "task.txt", "")])


def test_what_a_task_of_a_file_does_wrong_is_told_with_the_line(tmp_path: Path) -> None:
    code = """\
import esper
from esper.tolaria.tasks import VisionTask, get

class Broken(VisionTask):
    def make_host(self, member, classes):
        raise RuntimeError("no host today")

good = get("digits")
esper.task(Broken(name="broken", summary="mine", shape=(1, 8, 8), classes=10, read=good.read, family=good.family))
"""
    path = written(tmp_path / "broken.py", code)
    with pytest.raises(ConfigError) as caught:
        start(small(task="broken", plugins=(path,)), tmp_path / "run", "a run")
    assert str(caught.value) == f"task 'broken': make_host failed: {path}, line 6: RuntimeError: no host today"
    assert not (tmp_path / "run").exists()


def test_a_task_has_another_fingerprint_when_its_file_has_other_contents(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    prints = []
    for folder, more in (("one", ""), ("two", ""), ("two", "# edited\n")):
        path = written(tmp_path / folder / f"mine{len(more)}.py", TASK.format(name="printed") + more)
        load_plugins([path])
        prints.append(get("printed").fingerprint(get("printed").family.standard))
        del TASKS["printed"]
    assert prints[0] == prints[1]
    assert prints[1] != prints[2]


# Where they are loaded


def test_a_run_uses_what_a_plugin_registers_and_goes_on_with_it_in_another_process(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.py", EVERYTHING.format(name="all-mine"))
    reward = RewardConfig(extra={"mine": 0.25})
    config = small(task="all-mine", controller="lazy", hosts=1, epochs=4, control=False, checkpoint_every=1, plugins=(path,), reward=reward)
    with pytest.raises(Crash):
        start(config, tmp_path / "run", "a run", display=CrashAfter(2))
    # Another process knows nothing of this one's registers: going on loads the file again.
    code = f"from pathlib import Path; from esper.simic.runs.runner import resume; resume(Path({str(tmp_path / 'run')!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rewarded = [each.event for each in read_events(tmp_path / "run" / "events.jsonl") if isinstance(each.event, Rewarded)]
    assert [each.components["mine"] for each in rewarded] == [0.25] * 4
    assert all(each.total == pytest.approx(sum(each.components.values())) for each in rewarded)


def test_environments_and_their_workers_load_plugins(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.py", TASK.format(name="for-workers"))
    with GrowthEnv("for-workers", plugins=[str(path)], control=False, epochs=2, fix={"train_size": 100}) as env:
        env.reset(seed=0)
    workers = GrowthWorkers(GrowthConfig(plugins=(path,), control=False, epochs=2), 1)
    try:
        (host,) = workers.begin({0: Start("for-workers", 0)}).values()
        assert host.epochs == 2
    finally:
        workers.close()


# Installed packages


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, code: str) -> None:
    """A package of one module that names itself as a plug-in, as pip would leave it."""
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{module}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[esper.plugins]\nmine = {module}\n")
    monkeypatch.syspath_prepend(folder)


def test_an_installed_package_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    install(tmp_path, monkeypatch, "garden_tools", EVERYTHING.format(name="installed"))
    main(["tasks", "--json"])
    listed = {row["task"]: row for row in json.loads(capsys.readouterr().out)}
    assert listed["installed"]["from"] == f"{tmp_path / 'garden_tools.py'}:4"
    main(["blueprints", "--json", "--topology", "vector"])
    assert json.loads(capsys.readouterr().out)[-1]["name"] == "my_linear"
    options = "--task installed --controller lazy --hosts 1 --epochs 1 --no-control --fix train_size=100 --quiet --reward.extra mine=1"
    assert main(["train", "heuristic", *options.split(), "--run", str(tmp_path / "run")]) == 0


def test_an_installed_package_that_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path, monkeypatch, "broken_tools", EVERYTHING.format(name="never") + "1 / 0\n")
    before = keys()
    for command in (["tasks"], ["blueprints"], ["train", "heuristic", "--run", str(tmp_path / "run")]):
        assert main(command) == 2
        told = "esper: the plug-in 'mine' of broken_tools 1.2 cannot be loaded: broken_tools: ZeroDivisionError: division by zero\n"
        assert capsys.readouterr().err == told
    assert keys() == before


# Rewards and sinks


def rewarded_by(component: Callable[[esper.RewardInput], Any]) -> RewardStep:
    """One step with a component of that kind at half weight."""
    esper.reward_component("tried")(component)
    before, after = report(seed("r0c0"), epoch=3), report(seed("r0c0"), epoch=4)
    return one_step(before, after, config=RewardConfig(mode="sparse", extra={"tried": 0.5}))


def test_a_component_sees_the_step_and_is_added_with_its_weight() -> None:
    found = rewarded_by(lambda step: step.before.epoch + step.report.epoch + (step.final is None) + 10 * step.refused)
    assert found.components == {"terminal": 0.0, "tried": 0.5 * 8}
    assert found.total == 4.0


@pytest.mark.parametrize(
    ("component", "message"),
    [
        (lambda step: math.nan, r"'tried' in .*test_plugins\.py:\d+ gave nan for the decision after epoch 3; expected a finite number"),
        (lambda step: math.inf, "gave inf"),
        (lambda step: None, "gave None"),
        (lambda step: step.no_such, r"'tried' failed: .*test_plugins\.py, line \d+: AttributeError"),
    ],
)
def test_a_component_that_gives_no_finite_number_is_named(component: Callable[[esper.RewardInput], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"reward component {message}" if message.startswith("'") else message):
        rewarded_by(component)


def test_an_unknown_component_gets_the_nearest_name() -> None:
    esper.reward_component("thrift")(lambda step: 0.0)
    with pytest.raises(UnknownNameError, match="unknown reward component 'thrif'; did you mean 'thrift'"):
        RewardTracker(RewardConfig(extra={"thrif": 1.0}), ("r0c0",))


@pytest.mark.parametrize("weight", [math.nan, math.inf, 101.0])
def test_a_weight_that_is_no_weight_is_refused(weight: float) -> None:
    with pytest.raises(ConfigError, match="extra"):
        RewardConfig(extra={"thrift": weight})


def test_a_sink_is_made_by_its_name_for_a_folder(tmp_path: Path) -> None:
    got: list[tuple[Path, int]] = []

    @esper.sink("listener")
    class Listener:
        def __init__(self, folder: Path) -> None:
            self.folder = folder

        def write(self, envelope: Envelope) -> None:
            got.append((self.folder, envelope.seq))

        def flush(self) -> None: ...

        def close(self) -> None: ...

    hub = Hub(None, [make_sink("listener", tmp_path)])
    hub.emit(Note(text="hello"))
    hub.close()
    assert got == [(tmp_path, 0)]


def test_a_sink_that_cannot_be_made_is_told_in_a_sentence(tmp_path: Path) -> None:
    esper.sink("half-made")(lambda folder: object())  # type: ignore[arg-type,return-value]
    with pytest.raises(ConfigError, match=r"sink 'half-made' in .* is a object; expected an object with write, flush and close"):
        make_sink("half-made", tmp_path)
    esper.sink("broken")(lambda folder: 1 / 0)  # type: ignore[arg-type,return-value]
    with pytest.raises(ConfigError, match=r"sink 'broken' failed: .*test_plugins\.py, line \d+: ZeroDivisionError"):
        make_sink("broken", tmp_path)
    with pytest.raises(UnknownNameError, match="unknown sink 'brokn'; did you mean 'broken'"):
        make_sink("brokn", tmp_path)
