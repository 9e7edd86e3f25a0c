"""`esper blueprints`: the list on the terminal, in a pipe and as JSON, and one clear sentence for a mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from esper.cli.blueprints import main
from esper.kasmina.blueprints import BLUEPRINTS, SlotShape, parameter_count, unregister
from esper.leyline.errors import ConfigError, SlotError, UnknownNameError
from esper.leyline.reports import Topology


def test_json_lists_every_blueprint_with_the_parameters_of_its_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "--width", "48"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {(row["topology"], row["name"]) for row in rows} == {(kind.value, name) for kind, name in BLUEPRINTS}
    for row in rows:
        assert row["parameters"] == parameter_count(row["name"], SlotShape(Topology(row["topology"]), 48))
        assert row["purpose"] == BLUEPRINTS[Topology(row["topology"]), row["name"]].purpose


def test_the_default_width_is_32(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--json"])
    default = capsys.readouterr().out
    main(["--json", "--width", "32"])
    assert capsys.readouterr().out == default


def test_a_topology_narrows_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--json", "--topology", "vector"])
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["norm", "lora8", "lora32", "mlp_small", "mlp"]


def test_in_a_pipe_the_list_is_plain_aligned_lines(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--topology", "map2d"])
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["topology", "name", "parameters", "from", "purpose"]
    assert len(lines) == 7
    assert all(line.startswith("map2d") for line in lines)
    assert all(line[header.index("purpose") - 1] == " " and line[header.index("purpose")] != " " for line in lines)
    assert "9,312" in next(line for line in lines if "conv_light" in line)


def test_on_a_terminal_the_list_is_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    main([])
    out = capsys.readouterr().out
    assert "┃" in out
    assert out.count("├") == len(Topology) - 1
    assert all(name in out for _, name in BLUEPRINTS)


def test_a_terminal_without_unicode_has_a_table_too(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = TextIOWrapper(BytesIO(), encoding="ascii")  # strict, as nothing but ASCII should reach it
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdout", terminal)
    main([])
    terminal.seek(0)
    assert terminal.read().startswith("+--")


def test_a_misspelt_topology_gets_the_nearest_one() -> None:
    with pytest.raises(UnknownNameError, match="unknown topology 'map2'; did you mean 'map2d'"):
        main(["--topology", "map2"])


@pytest.mark.parametrize("width", ["0", "-4", "wide", "1.5", "", "²", "1" * 5000])
def test_a_width_that_is_no_positive_whole_number_is_refused(width: str) -> None:
    with pytest.raises(ConfigError, match="expected a whole number from 1 to 999999"):
        main([f"--width={width}"])


def test_a_width_too_narrow_for_a_topology_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SlotError, match="tokens features needs a width of at least 2; found 1"):
        main(["--width", "1"])
    assert main(["--width", "1", "--topology", "map2d"]) == 0
    assert capsys.readouterr().out


def test_a_users_own_blueprints_are_listed_with_their_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import esper\n"
        "from torch import nn\n"
        "@esper.blueprint('listed', 'vector', purpose='mine')\n"
        "def listed(shape): return nn.Linear(shape.width, shape.width)\n"
    )
    try:
        main(["--json", "--topology", "vector", "--width", "4", "--plugins", str(file)])
        *others, mine = json.loads(capsys.readouterr().out)
        assert (mine["name"], mine["parameters"], mine["from"]) == ("listed", 4 * 4 + 4 + 4, f"{file}:3")
        assert {row["from"] for row in others} == {"esper"}
    finally:
        unregister("listed", Topology.VECTOR)


def test_help_imports_no_torch() -> None:
    script = "\n".join(
        [
            "import sys",
            "from esper.cli.blueprints import main",
            "try: main(['--help'])",
            "finally: print('torch' in sys.modules, 'numpy' in sys.modules)",
        ]
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "--topology map2d|map1d|tokens|vector" in done.stdout
    assert done.stdout.endswith("False False\n")
