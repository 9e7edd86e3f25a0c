"""The `esper` command: finds the command that was asked for and runs it.

Nothing heavy is imported here, and a command's module is imported only when that command runs, so that `esper --help`
answers at once. A command is a function that takes its own arguments (without `esper` and without its name) and returns
an exit code; its parser answers `esper COMMAND --help`.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

from esper.leyline.errors import EsperError, nearest, unknown

EXIT_USAGE = 2
"""The user asked for something that cannot be done."""
EXIT_INTERRUPTED = 130
"""Ctrl-C: 128 plus the number of SIGINT, as a shell reports it."""
EXIT_BROKEN_PIPE = 141
"""The reader of our output went away: 128 plus the number of SIGPIPE."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command's line in `esper --help`, and where its function is."""

    help: str
    """What the command does, in one line."""
    target: str
    """`module:function`; the function takes `list[str]` and returns an exit code."""

    def load(self) -> Callable[[list[str]], int]:
        """Import the command's module and return its function."""
        module, _, function = self.target.partition(":")
        loaded: Callable[[list[str]], int] = getattr(importlib.import_module(module), function)
        return loaded


COMMANDS: dict[str, Command] = {
    "train": Command("grow hosts while they train", "esper.cli.train:main"),
    "export": Command("the grown network of a run as a plain module, torch.export or ONNX", "esper.cli.export:main"),
    "runs": Command("the runs in a folder, and how they stand", "esper.cli.runs:main"),
    "tasks": Command("what there is to train on, and whether its data is here", "esper.cli.tasks:main"),
    "blueprints": Command("the kinds of seed that can be germinated in a slot", "esper.cli.blueprints:main"),
}

OPTIONS: dict[str, str] = {
    "--help": "show this text (also -h)",
    "--version": "show the version",
}


def usage() -> str:
    """The text of `esper --help`."""
    width = max(len(name) for name in (*COMMANDS, *OPTIONS))
    lines = ["usage: esper COMMAND [ARGUMENTS]", "", "Esper grows neural networks while they train.", "", "commands:"]
    lines += [f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items()]
    lines += ["", "options:"]
    lines += [f"  {name:<{width}}  {text}" for name, text in OPTIONS.items()]
    lines += ["", "`esper COMMAND --help` explains a command."]
    return "\n".join(lines)


def version() -> str:
    """The version of the installed package."""
    from importlib import metadata  # here because it takes longer than everything else in this file

    return metadata.version("esper-lite")


def dispatch(argv: list[str]) -> int:
    """Run what the arguments ask for and return its exit code; raises EsperError for what does not exist."""
    if not argv:
        print(usage(), file=sys.stderr)
        return EXIT_USAGE
    name, arguments = argv[0], argv[1:]
    if name in ("-h", "--help"):
        print(usage())
        return 0
    if name == "--version":
        print(f"esper {version()}")
        return 0
    if name.startswith("-"):
        raise EsperError(f"unknown option {name!r}; {nearest(name, OPTIONS)}")
    if name not in COMMANDS:
        raise unknown("command", name, COMMANDS)
    return COMMANDS[name].load()(arguments)


def main(argv: list[str] | None = None) -> int:
    """Entry point of `esper`. A user's mistake becomes one sentence on stderr; any other exception is a bug and keeps its traceback."""
    try:
        code = dispatch(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()  # a reader that went away is noticed here rather than at interpreter shutdown
    except EsperError as error:
        print(f"esper: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("\nesper: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more when it exits and would complain about the closed pipe then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    return code


if __name__ == "__main__":
    sys.exit(main())
