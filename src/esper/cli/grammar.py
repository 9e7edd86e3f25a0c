"""What can be typed after `esper`, read off the parsers of the commands: for completion, and to check what pages tell people to type."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from esper import policies
from esper.cli.flags import Parser
from esper.cli.main import COMMANDS, OPTIONS, import_command

RESUME = "--resume"
PATHS = ("RUN", "DIR", "FILE", "PATH", "MODULE:FACTORY")
"""Metavars of what lies on the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """What may follow: words that are known, paths, both, or, where there is neither, anything."""

    words: tuple[str, ...] = ()
    paths: bool = False
    many: bool = False
    """Whether there may be several of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag of a context."""

    names: tuple[str, ...]
    help: str
    hidden: bool
    """Whether `--help` leaves it out, and `--help-all` has it."""
    takes: Values | None
    """None where it stands alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A command, with its method if it has some: what can be typed from there on."""

    words: tuple[str, ...]
    flags: tuple[Flag, ...]
    arguments: Values
    """What is no flag: methods, where one is still to be chosen, or plain arguments."""

    def flag(self, name: str) -> Flag | None:
        """The flag of that name."""
        return next((flag for flag in self.flags if name in flag.names), None)


def contexts() -> list[Context]:
    """Every context, outermost first. Plug-ins of installed packages are asked for their names too, so this loads torch."""
    from esper.simic.plugins import load_plugins

    load_plugins()
    found = [Context(words=(), flags=tuple(_alone(name, text) for name, text in OPTIONS.items()), arguments=Values(words=tuple(COMMANDS)))]
    for command in COMMANDS:
        parsers: dict[str, Parser] = import_command(command).parsers()
        if "" not in parsers:
            flags = (_alone("--help", "show this text"), *(_alone(word, "go on with a run") for word in parsers if word.startswith("-")))
            methods = tuple(word for word in parsers if not word.startswith("-"))
            found.append(Context(words=(command,), flags=flags, arguments=Values(words=methods)))
        resume = parsers.get(RESUME)
        for word, parser in parsers.items():
            context = _read((command, word) if word else (command,), parser)
            if word == "" and resume is not None:
                more = _read((), resume).flag(RESUME)
                assert more is not None
                context = Context(words=context.words, flags=(*context.flags, more), arguments=context.arguments)
            found.append(context)
    return found


def context_of(words: Sequence[str], among: Sequence[Context]) -> Context:
    """The innermost context that these words, without `esper`, lead to."""
    by_words = {context.words: context for context in among}
    command = tuple(words[:1])
    inner = (*command, RESUME) if any(word.split("=")[0] == RESUME for word in words) else tuple(words[:2])
    return by_words.get(inner) or by_words.get(command) or by_words[()]


def _alone(name: str, help: str) -> Flag:
    return Flag(names=(name,), help=help, hidden=False, takes=None)


def _read(words: tuple[str, ...], parser: Parser) -> Context:
    """What one parser takes."""
    flags, arguments = [], Values()
    for action in parser._actions:
        if action.option_strings:
            help = "" if action.help is argparse.SUPPRESS else (action.help or "").replace("%%", "%")
            takes = None if action.nargs == 0 else _values(action)
            flags.append(Flag(names=tuple(action.option_strings), help=help, hidden=action.help is argparse.SUPPRESS, takes=takes))
        else:
            arguments = _values(action)
    return Context(words=words, flags=tuple(flags), arguments=arguments)


def _values(action: argparse.Action) -> Values:
    metavar = str(action.metavar or "")
    words = [word for word in metavar.split("|") if not any(letter.isupper() for letter in word)] if "|" in metavar else []
    if metavar.isupper() and "|" in metavar:  # members of an Enum, such as LINEAR_ADD|GATED
        words = metavar.split("|")
    key = action.dest.rpartition(".")[2] if action.option_strings else metavar
    known = NAMES.get(key) or NAMES.get(action.dest)
    either = metavar == "POLICY" or action.dest in ("controller", "from_policy")  # a name, or a file
    return Values(
        words=tuple(dict.fromkeys([*words, *(known() if known else ())])),
        paths=metavar in PATHS or either,
        many=action.nargs in ("*", "+"),
    )


# Names that registers know


def _tasks() -> Sequence[str]:
    from esper.tolaria.tasks import TASKS

    return [*TASKS]


def _deciders() -> Sequence[str]:
    from esper.simic.growth.naming import decider_names

    return decider_names()


def _sinks() -> Sequence[str]:
    from esper.nissa import SINKS

    return [*SINKS]


def _published() -> Sequence[str]:
    from esper.tolaria.data.sources import SOURCES

    return [*SOURCES]


def _blueprints() -> Sequence[str]:
    from esper.kasmina.blueprints import BLUEPRINTS

    return list(dict.fromkeys(name for _, name in BLUEPRINTS))


def _arms() -> Sequence[str]:
    from esper.simic.runs.compare_config import BASELINES

    return [*BASELINES, "all"]


NAMES: dict[str, Callable[[], Sequence[str]]] = {
    "task": _tasks,
    "controller": _deciders,
    "POLICY": _deciders,
    "policies": _deciders,
    "from_policy": policies.names,
    "shipped": policies.names,
    "arms": _arms,
    "blueprints": _blueprints,
    "track": _sinks,
    "download": _published,
    "device": lambda: ("cpu", "cuda"),
}
"""What is known by name, by the field or the metavar that asks for it."""
