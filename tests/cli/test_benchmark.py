"""`esper benchmark`: what it measures, writes and compares, and what it says when something is wrong. No test asserts a time."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from esper.cli import benchmark
from esper.cli.benchmark import Report, find_benchmarks, read_report
from esper.cli.main import main
from esper.cli.measuring import Row, Settings, compared, in_turns
from esper.leyline.codec import to_plain
from esper.leyline.errors import ConfigError

TINY = '''"""Nothing against nothing."""
from helper import nothing
from esper.cli.measuring import Row, compared, in_turns

def measure(settings):
    yield from compared(in_turns(settings, {"one": nothing, "two": nothing}), "one")
    yield Row(what="three", value=2.5, unit="MB")
'''
BROKEN = '''"""What cannot be measured here."""
from esper.leyline.errors import DeviceError

def measure(settings):
    raise DeviceError("there is no such machine")
'''
STOPPED = '''"""What somebody stops."""
from esper.cli.measuring import Row

def measure(settings):
    yield Row(what="one", value=1.0, unit="MB")
    raise KeyboardInterrupt
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with benchmarks of this test's own."""
    (tmp_path / "helper.py").write_text("def nothing(): pass")
    for name, text in {"tiny": TINY, "broken": BROKEN, "stopped": STOPPED, "none": "def measure(other): pass"}.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def measured(folder: Path, capsys: pytest.CaptureFixture[str]) -> Report:
    """The figures of tiny.py, in old.json."""
    assert main(["benchmark", "tiny.py", "--quick", "--json", "old.json"]) == 0
    capsys.readouterr()
    return read_report(folder / "old.json")


def write(report: Report, path: Path) -> None:
    path.write_text(json.dumps(to_plain(report)))


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence of a command that cannot be carried out."""
    assert main(["benchmark", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


# The command


def test_the_command_prints_a_table_and_writes_what_it_found(folder: Path) -> None:
    command = [sys.executable, "-m", "esper.cli.main", "benchmark", "tiny.py", "--quick"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\ntiny: Nothing against nothing.\nwhat" in done.stdout
    (path,) = folder.glob("benchmark-*.json")
    assert f"wrote {path.name} after" in done.stdout
    report = read_report(path)
    assert (report.quick, report.machine.gpu, set(report.versions)) == (True, None, {"esper", "python", "torch"})
    assert report.machine.cores >= 1
    assert report.date[:2] == "20"
    (rows,) = report.benchmarks.values()
    assert [(row.what, row.against, row.ratio is None) for row in rows] == [
        ("one", None, True),
        ("two", "one", False),
        ("three", None, True),
    ]
    for row in rows:
        assert re.search(rf"^{row.what} +[\d.,]+ +{row.unit}\b", done.stdout, re.MULTILINE)


def test_help_and_list_need_no_torch() -> None:
    program = "from esper.cli.main import main; import sys; main(['benchmark', '--help']); main(['benchmark', '--list'])"
    program += "; print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "--against FILE" in done.stdout
    assert re.search(r"^engines +\w", done.stdout, re.MULTILINE)


def test_every_benchmark_says_what_it_shows_and_how_it_runs_alone() -> None:
    found = find_benchmarks()
    assert len(found) > 10
    for name, each in found.items():
        text = each.path.read_text(encoding="utf-8")
        assert each.summary.endswith("."), name
        assert f"\n    python benchmarks/{name}.py [--quick]" in text
        assert text.endswith('if __name__ == "__main__":\n    sys.exit(main(["benchmark", __file__, *sys.argv[1:]]))\n'), name


def test_one_that_cannot_run_here_does_not_cost_the_others(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["benchmark", "broken.py", "tiny.py", "--quick", "--json", "new.json"]) == 2
    assert capsys.readouterr().err == "esper: broken: there is no such machine\n"
    assert set(read_report(folder / "new.json").benchmarks) == {"tiny"}
    assert main(["benchmark", "broken.py", "--json", "nothing.json"]) == 2
    assert not (folder / "nothing.json").exists()


def test_ctrl_c_leaves_no_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = set(folder.iterdir())
    assert main(["benchmark", "tiny.py", "stopped.py", "--quick"]) == 130
    assert capsys.readouterr().err == "\nesper: interrupted\n"
    assert {path for path in folder.iterdir() if path.name != "__pycache__"} == before


@pytest.mark.usefixtures("folder")
def test_progress_is_one_line_on_a_terminal_and_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(["benchmark", "tiny.py", "--quick", "--json", "new.json"]) == 0
    lines = terminal.getvalue().split("\n")
    (line,) = [line for line in lines if "\r" in line]
    assert re.fullmatch(r"(\r\033\[K1 of 1, \d+ s: (one|two)[^\r]*)+\r\033\[K[^\r]*", line), "wiped before the table begins"


# Mistakes


def test_an_unknown_name_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "engine") == "esper: unknown benchmark 'engine'; did you mean 'engines'?\n"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["no.py"], "no.py cannot be read: No such file or directory"),
        (["none.py"], "none.py is no benchmark: it has no function measure(settings)"),
        (["tiny.py", "--device", "cuda:99"], "device 'cuda:99' was asked for and torch sees"),
        (["tiny.py", "--json", "."], ". is a folder; name a file with --json"),
        (["tiny.py", "--json", "no/new.json"], "no/new.json cannot be written; name a file in a folder of yours with --json"),
        (["--agianst", "x"], "unknown argument '--agianst'; did you mean '--against'?"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, *arguments).startswith(f"esper: {sentence}")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "old.json cannot be read: No such file or directory"),
        ("half of", "old.json is not JSON: "),
        ("[1, 2]", "old.json was not written by esper benchmark: "),
        ('{"format": "esper benchmark 1"}', "old.json was not written by esper benchmark: "),
    ],
)
def test_what_cannot_be_compared_with_is_told_before_anything_is_measured(
    content: str | None, sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (folder / "old.json").write_text(content)
    assert told(capsys, "tiny.py", "--against", "old.json").startswith(f"esper: {sentence}")


def test_what_is_compared_with_is_not_written_over(measured: Report, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is what is compared with" in told(capsys, "tiny.py", "--against", "old.json", "--json", "./old.json")


def test_outside_a_checkout_it_says_where_benchmarks_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark, "PROJECT", tmp_path)
    assert "benchmarks/ of Esper's source" in told(capsys)


# What changed


def changes(capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """The table of changes against old.json, by what was measured."""
    assert main(["benchmark", "tiny.py", "--quick", "--json", "new.json", "--against", "old.json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    return {line.split()[1]: line.split() for line in lines if line.startswith("tiny ")} | {"said": lines}


def changed(change: Callable[[Row], Row], report: Report) -> Report:
    return replace(report, benchmarks={name: tuple(map(change, rows)) for name, rows in report.benchmarks.items()})


def test_what_is_beyond_the_spread_is_marked(folder: Path, measured: Report, capsys: pytest.CaptureFixture[str]) -> None:
    def change(row: Row) -> Row:
        return replace(row, value=5.0) if row.what == "three" else replace(row, ratio=row.ratio and row.ratio / 1000)

    write(changed(change, measured), folder / "old.json")
    found = changes(capsys)
    assert found["three"][1:7] == ["three", "MB", "5.00", "2.50", "0.500", "2.0%"]
    assert (found["three"][-1], found["two"][-1]) == ("better", "worse")
    assert "one" not in found, "a time without anything to compare it with is the machine's"
    assert "2 of 2 changed by more than the spread: 1 better, 1 worse" in found["said"]


def test_what_is_within_the_spread_is_not(folder: Path, measured: Report, capsys: pytest.CaptureFixture[str]) -> None:
    write(changed(lambda row: replace(row, spread=row.spread and 1000.0), measured), folder / "old.json")
    found = changes(capsys)
    assert "0 of 2 changed by more than the spread: 0 better, 0 worse" in found["said"]


def test_another_machine_and_other_versions_are_told(folder: Path, measured: Report, capsys: pytest.CaptureFixture[str]) -> None:
    other = replace(measured.machine, cpu="Abacus", cores=3)
    write(replace(measured, machine=other, versions={**measured.versions, "torch": "0.1"}), folder / "old.json")
    said = changes(capsys)["said"]
    assert "old.json was measured on another machine: Abacus, 3 cores" in said
    assert f"old.json was measured with torch 0.1; this is {measured.versions['torch']}" in said


def test_figures_of_other_benchmarks_are_nothing_to_compare_with(
    folder: Path, measured: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    write(replace(measured, benchmarks={"other": measured.benchmarks["tiny"]}), folder / "old.json")
    assert "nothing of this run is in old.json as well" in changes(capsys)["said"]


# Measuring


def test_tasks_take_turns_in_every_order() -> None:
    order: list[str] = []
    clock = iter(range(10_000)).__next__  # so that every task seems long, and has one run in a turn
    tasks = {name: (lambda name=name: order.append(name)) for name in "abc"}  # type: ignore[misc]
    seconds = in_turns(Settings(), tasks, 6, clock)
    assert "".join(order) == "aabbcc" + "abc" + "cba" + "bca" + "acb" + "cab" + "bac", "two each to warm up, then six rounds"
    assert seconds == {name: [1.0] * 6 for name in "abc"}
    assert {len(each) for each in in_turns(Settings(quick=True), tasks, 6, clock).values()} == {3}


def test_ratios_are_those_of_the_rounds() -> None:
    plain, other = compared({"plain": [1.0, 2.0, 4.0], "other": [2.0, 2.0, 2.0]}, "plain")
    assert (plain.value, plain.unit, plain.ratio, plain.against) == (2000.0, "ms", None, None)
    assert plain.spread == pytest.approx(0.75), "quartiles of 1, 2, 4 are 1.5 and 3"
    assert (other.value, other.ratio, other.against) == (2000.0, 1.0, "plain")
    assert other.spread == pytest.approx(1.5 - 0.75)
    _, rate = compared({"plain": [1.0, 1.0], "other": [0.5, 0.5]}, "plain", unit="epochs/s", value_of=lambda taken: 4 / taken)
    assert (rate.value, rate.ratio, rate.spread) == (8.0, 2.0, 0.0)


def test_a_report_comes_back_as_it_was(measured: Report, folder: Path) -> None:
    write(measured, folder / "again.json")
    assert read_report(folder / "again.json") == measured
    (folder / "old.json").write_text(json.dumps({**to_plain(measured), "format": "esper benchmark 0"}))
    with pytest.raises(ConfigError, match=r"old\.json was not written by esper benchmark"):
        read_report(folder / "old.json")
