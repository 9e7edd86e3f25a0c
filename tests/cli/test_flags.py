"""Flags made from a config: one for each field, explained by its docstring, refused as a config file would be."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, fields, is_dataclass
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import pytest

from esper.cli.flags import Parser, _add_flags, add_flags, changes, field_docs
from esper.leyline.config import Range, check_ranges, from_mapping, load, replace_fields
from esper.leyline.errors import ConfigError
from esper.simic.growth.config import ControllerRunConfig


class Colour(IntEnum):
    RED = 0
    GREEN = 1


@dataclass(frozen=True, kw_only=True)
class Inner:
    """What is inside. More about it."""

    share: Annotated[float, Range(0, 1)] = 0.5
    """A share, e.g. 50 % of
    the whole."""
    on: bool = True


@dataclass(frozen=True, kw_only=True)
class Base:
    """What others build on."""

    count: Annotated[int, Range(1)] | None = None
    """How many."""


@dataclass(frozen=True, kw_only=True)
class Outer(Base):
    """One of each kind."""

    name: str = "nobody"
    """A name."""
    kind: Literal["outer"] = "outer"
    mode: Literal["slow", "fast"] = "slow"
    """How."""
    colour: Colour = Colour.RED
    place: Path | None = None
    several: tuple[str, ...] = ()
    numbers: tuple[int, ...] = (1, 2)
    pairs: dict[str, str] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)

    def __post_init__(self) -> None:
        check_ranges(self)


def parse(*argv: str) -> Outer:
    parser = Parser(prog="it", allow_abbrev=False)
    add_flags(parser, Outer, everything=False)
    return replace_fields(Outer(), changes(Outer, parser.parse_args(list(argv))), source="it")


def help_text(everything: bool) -> str:
    parser = Parser(prog="it", formatter_class=lambda prog: argparse.HelpFormatter(prog, width=200))
    add_flags(parser, Outer, everything=everything)
    return parser.format_help()


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], Outer()),
        (["--count", "3"], Outer(count=3)),
        (["--name=A B", "--mode", "fast"], Outer(name="A B", mode="fast")),
        (["--colour", "GREEN"], Outer(colour=Colour.GREEN)),
        (["--place", "a/b"], Outer(place=Path("a/b"))),
        (["--several", "a", "b,c"], Outer(several=("a", "b", "c"))),
        (["--several"], Outer(several=())),
        (["--several", "a", "--name", "B", "--several", "b"], Outer(several=("a", "b"), name="B")),
        (["--numbers", "4,5", "6"], Outer(numbers=(4, 5, 6))),
        (["--pairs", "a=1", "b=[2,3]", "c=x=y"], Outer(pairs={"a": "1", "b": "[2,3]", "c": "x=y"})),
        (["--shares", "a=1", "b=2.5"], Outer(shares={"a": 1.0, "b": 2.5})),
        (["--inner.share", "0.25", "--no-inner.on"], Outer(inner=Inner(share=0.25, on=False))),
        (["--inner.share", "1"], Outer(inner=Inner(share=1.0))),
    ],
)
def test_flags_set_what_they_say(argv: list[str], expected: Outer) -> None:
    assert parse(*argv) == expected


def test_help_shows_the_defaults_of_the_command_not_those_of_its_parts() -> None:
    parser = Parser(prog="it")
    _add_flags(parser, Outer, Outer(inner=Inner(share=0.125)), everything=True, prefix="")
    assert "(default: 0.125)" in parser.format_help()
    assert "(default: 1 2)" in help_text(everything=True)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--count", "0"], "it: 'count' must be an integer, at least 1; found 0"),
        (["--count", "-2"], "it: 'count' must be an integer, at least 1; found -2"),
        (["--count", "2.5"], "it: 'count' must be an integer, at least 1; found '2.5'"),
        (["--count", "many"], "it: 'count' must be an integer, at least 1; found 'many'"),
        (["--count"], "argument --count: expected one argument; see it --help"),
        (["--mode", "fats"], "'mode'"),
        (["--colour", "GREN"], "GREEN"),
        (["--pairs", "a"], "--pairs: 'a' is not a pair; expected NAME=VALUE"),
        (["--shares", "a=many"], "it: 'shares.a' must be a number; found 'many'"),
        (["--inner.share", "1.5"], "it: 'inner.share' must be a number, from 0 to 1; found 1.5"),
        (["--inner.shar", "1"], "unknown argument '--inner.shar'; did you mean '--inner.share'?"),
        (["--cuont=3"], "unknown argument '--cuont=3'; did you mean '--count'?"),
        (["--kind", "outer"], "unknown argument '--kind'"),
        (["stray"], "unknown argument 'stray'; see it --help"),
        (["--coun", "3"], "unknown argument '--coun'; did you mean '--count'?"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_flag(argv: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(*argv)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_help_explains_each_field_by_its_docstring_and_default() -> None:
    text = help_text(everything=False)
    assert "--count N" in text
    assert "How many." in text
    assert "A name. (default: nobody)" in text
    assert "--mode slow|fast" in text
    assert "--colour RED|GREEN" in text
    assert "--pairs [NAME=VALUE ...]" in text
    assert "(default: RED)" in text
    assert text.index("--name") < text.index("--count"), "what the config adds comes before what it builds on"
    assert "--inner" not in text


def test_help_of_everything_has_the_nested_fields_too() -> None:
    text = help_text(everything=True)
    assert "A share, e.g. 50 % of the whole. (default: 0.5)" in text
    assert "What is inside. More about it." in text
    assert "--inner.on, --no-inner.on" in text


def test_help_is_as_wide_as_the_terminal_but_for_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    example = "  esper slots model.py:make_net --input 8x3x32x32"
    parser = Parser(prog="esper", usage="esper", description="some words " * 9, epilog=f"examples, of which\nthere is one:\n{example}")
    told = parser.format_help().splitlines()
    assert told[-2:] == ["examples, of which there is one:", example]
    assert max(len(line) for line in told[:-1]) <= 40


def test_docstrings_of_fields_are_found_through_the_bases() -> None:
    assert field_docs(Outer) == {"count": "How many.", "name": "A name.", "mode": "How."}


def leaves(config: type, prefix: str = "") -> list[tuple[str, Any]]:
    found = []
    for each in fields(config):
        kind = get_type_hints(config)[each.name]
        if isinstance(kind, type) and is_dataclass(kind):
            found += leaves(kind, f"{prefix}{each.name}.")
        elif each.name != "kind":
            found.append((prefix + each.name, kind))
    return found


def test_every_setting_of_a_run_has_a_flag_and_a_line_that_explains_it() -> None:
    parser = Parser(prog="it")
    add_flags(parser, ControllerRunConfig, everything=True)
    flags = {option for action in parser._actions for option in action.option_strings}
    settings = leaves(ControllerRunConfig)
    assert len(settings) > 50
    assert [name for name, _ in settings if f"--{name.replace('_', '-')}" not in flags] == []
    explained = field_docs(ControllerRunConfig)
    assert [name for name, _ in settings if "." not in name and name not in explained] == []


def test_a_flag_and_a_line_in_a_file_give_the_same_config_and_the_same_error(tmp_path: Path) -> None:
    (tmp_path / "good.toml").write_text("count = 3\n[inner]\nshare = 0.25\n")
    assert load(Outer, tmp_path / "good.toml") == parse("--count", "3", "--inner.share", "0.25")
    with pytest.raises(ConfigError) as from_flag:
        parse("--inner.share", "7.5")
    with pytest.raises(ConfigError) as from_file:
        from_mapping(Outer, {"inner": {"share": 7.5}}, source="it")
    assert str(from_flag.value) == str(from_file.value)
