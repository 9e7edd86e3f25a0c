"""`esper policies`: the list in a pipe, on a terminal and as JSON, the card of one, and one sentence for a name that nobody has."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from esper.cli.grammar import contexts
from esper.cli.main import main
from esper.cli.policies import COLUMNS
from esper.leyline.observation import OBSERVATION
from esper.policies.card import HEADINGS
from esper.tamiyo.policy.policy_header import read_header
from tests.policies.sample import CARD, ship, shipping
from tests.simic.runs import opinionated


@pytest.fixture
def package(tmp_path: Path) -> Iterator[Path]:
    """A folder with tamiyo-1 and tamiyo-2, which ship."""
    ship(tmp_path, "tamiyo-1")
    ship(tmp_path, "tamiyo-2")
    with shipping(tmp_path):
        yield tmp_path


def test_in_a_pipe_the_list_is_one_line_for_each(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policies"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert all(name in header for name in COLUMNS)
    assert [line.split()[0] for line in lines] == ["tamiyo-1", "tamiyo-2"]
    size = f"{(package / 'tamiyo-1.safetensors').stat().st_size / 1e6:.2f} MB"
    assert lines[0].split("  ") == ["tamiyo-1", size, "digits, stdlib", "A recurrent policy that grows small networks."]


def test_where_none_ships_the_list_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with shipping(tmp_path):
        assert main(["policies"]) == 0
        assert capsys.readouterr().out == "no policy ships with this version of Esper\n"
        assert main(["policies", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == []
        assert main(["policies", "tamiyo"]) == 2
        assert capsys.readouterr().err == "esper: unknown policy 'tamiyo'; known: none\n"


@pytest.mark.usefixtures("package")
def test_a_card_is_printed_as_it_is_in_a_pipe_and_laid_out_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["policies", "tamiyo"]) == 0
    assert capsys.readouterr().out == CARD.format(name="tamiyo-2")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["policies", "tamiyo-1"]) == 0
    shown = capsys.readouterr().out
    assert all(heading in shown for heading in HEADINGS)
    assert "##" not in shown
    assert "| ---" not in shown
    assert "static-final" in shown


def test_json_has_the_metadata_of_the_file(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policies", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == ["tamiyo-1", "tamiyo-2"]
    assert main(["policies", "tamiyo", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    path = package / "tamiyo-2.safetensors"
    assert (found["name"], found["path"], found["bytes"]) == ("tamiyo-2", str(path), path.stat().st_size)
    assert found["trained"] == {"task": ["digits", "stdlib"], "rounds": 3}
    assert found["blueprints"] == list(opinionated().config.blueprints)
    assert found["config"]["hidden"] == opinionated().config.hidden
    assert (found["schema"], found["sha256"]) == (OBSERVATION.fingerprint(), read_header(path).sha256)
    assert (found["fits"], found["problem"]) == (True, "")


def test_a_policy_that_does_not_fit_is_listed_with_the_reason(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = package / "tamiyo-2.safetensors"
    content = path.read_bytes()
    assert content.count(OBSERVATION.fingerprint().encode()) == 1
    path.write_bytes(content.replace(OBSERVATION.fingerprint().encode(), b"0123456789abcdef"))
    assert main(["policies"]) == 0
    told = capsys.readouterr()
    assert "tamiyo-2" in told.out
    assert told.err.startswith("esper: tamiyo-2 was trained on observations with the fingerprint 0123456789abcdef; this version")
    assert main(["policies", "--json", "tamiyo"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["fits"] is False


@pytest.mark.usefixtures("package")
def test_an_unknown_name_is_one_sentence_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policies", "tamyo"]) == 2
    assert capsys.readouterr().err == "esper: unknown policy 'tamyo'; did you mean 'tamiyo'?\n"


@pytest.mark.usefixtures("package")
def test_names_are_completed_wherever_a_policy_is_taken() -> None:
    known = {context.words: context for context in contexts()}
    names = {"tamiyo", "tamiyo-1", "tamiyo-2"}
    assert set(known["policies",].arguments.words) == names
    assert not known["policies",].arguments.paths
    for command in ("evaluate", "compare"):
        assert names | {"heuristic"} <= set(known[command,].arguments.words)
    for flag in ("--from", "--from-policy"):
        taken = known["train", "ppo"].flag(flag)
        assert taken is not None
        assert taken.takes is not None
        assert (set(taken.takes.words), taken.takes.paths) == (names, True)
    controller = known["train", "heuristic"].flag("--controller")
    assert controller is not None
    assert controller.takes is not None
    assert names < set(controller.takes.words)


def test_nothing_loads_torch(package: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from esper.cli.main import main
from esper.policies import POLICIES, shipped
main(["--help"])
POLICIES.update(shipped(Path({str(package)!r})))
for arguments in (["policies"], ["policies", "--json"], ["policies", "tamiyo"]):
    assert main(arguments) == 0
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
