"""The `esper` command: finds the command that was asked for and runs it.

Nothing heavy is imported here, and a command's module is imported only when that command runs, so that `esper --help`
answers at once. A command is a function that takes its own arguments (without `esper` and without its name) and returns
an exit code; its parser answers `esper COMMAND --help`.
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from io import TextIOWrapper
from typing import Any, TextIO

from esper.leyline.errors import EsperError, Interrupted, nearest, unknown

EXIT_USAGE = 2
"""The user asked for something that cannot be done."""
EXIT_INTERRUPTED = 130
"""Ctrl-C: 128 plus the number of SIGINT, as a shell reports it."""
EXIT_BROKEN_PIPE = 141
"""The reader of our output went away: 128 plus the number of SIGPIPE."""

WRITE_ERRORS = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What a write to stdout can fail with: nobody reads it, its disk is full, its terminal is gone."""


COMMANDS: dict[str, str] = {
    "train": "grow hosts while they train",
    "headroom": "what could be won on a family of hosts, before anything is taught",
    "compare": "policies against every baseline on the same unseen hosts, with intervals",
    "evaluate": "what a policy does, and what should worry whoever trains it",
    "tune": "search the settings of a controller, within a budget of host epochs",
    "sweep": "one run of a method for each of several values of its settings",
    "report": "runs as one page with plots, side by side if there are several",
    "export": "the grown network of a run as a plain module, torch.export or ONNX",
    "watch": "a live page of a run, or of all runs",
    "runs": "the runs in a folder, and how they stand",
    "query": "ask runs in SQL: events, hosts, seeds, decisions, rounds",
    "tasks": "what there is to train on, and whether its data is here",
    "blueprints": "the kinds of seed that can be germinated in a slot",
    "policies": "the trained policies that ship with Esper, and the card of each",
    "slots": "where a model of your own could grow, and why not elsewhere",
    "benchmark": "what Esper costs on this machine, and what has changed",
    "completion": "a script that lets bash, zsh or fish complete all this",
}
"""What each command does. The module of its name has `main`, which takes the arguments and returns an exit code, and `parsers`, which gives
its parsers by the word that chooses among them: a method, --resume, or nothing where there is no choice."""

OPTIONS: dict[str, str] = {
    "--help": "show this text (also -h)",
    "--version": "show the version",
}


def usage() -> str:
    """The text of `esper --help`."""
    width = max(len(name) for name in (*COMMANDS, *OPTIONS))
    lines = ["usage: esper COMMAND [ARGUMENTS]", "", "Esper grows neural networks while they train."]
    for title, entries in (("commands", COMMANDS), ("options", OPTIONS)):
        lines += ["", f"{title}:", *(f"  {name:<{width}}  {text}" for name, text in entries.items())]
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
    name = argv[0]
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
    return int(import_command(name).main(argv[1:]))


def import_command(name: str) -> Any:
    """The module of a command, with its `main` and its `parsers`."""
    return importlib.import_module(f"esper.cli.{name}")


def main(argv: list[str] | None = None) -> int:
    """Entry point of `esper`. A user's mistake becomes one sentence on stderr; any other exception is a bug and keeps its traceback."""
    sys.stdout, sys.stderr = _usable(sys.stdout, 1), _usable(sys.stderr, 2)
    code = 0
    try:
        code = _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()  # an output that is gone or full is noticed here rather than at interpreter shutdown
    except OSError as error:
        code = _output_failed(error, code)
    if argv is None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process ends now; a further Ctrl-C has nothing left to stop
    return code


def _run(argv: list[str]) -> int:
    try:
        return dispatch(argv)
    except SystemExit as ended:  # argparse, after --help
        return ended.code if isinstance(ended.code, int) else 0
    except EsperError as error:
        return _tell(f"esper: {error}", EXIT_INTERRUPTED if isinstance(error, Interrupted) else EXIT_USAGE)
    except KeyboardInterrupt:
        return _tell("\nesper: interrupted", EXIT_INTERRUPTED)


def _usable(stream: TextIO | None, number: int) -> TextIO:
    """A standard stream that can be printed to: what it cannot encode is escaped, and one that was closed leads nowhere."""
    if stream is None:
        # Under its own number, which a file of the run would get otherwise, and with it whatever a library prints.
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        return open(number, "w")
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    return stream


def _tell(line: str, code: int) -> int:
    """Say on stderr how the command ended, if anything can be said there, and return the exit code."""
    try:
        print(line, file=sys.stderr)
    except OSError:
        _silence(sys.stderr)
    return code


def _output_failed(error: OSError, code: int) -> int:
    """The exit code when it was stdout that failed: every file of ours has a name, and its errors are told elsewhere.

    code: what the command ended with; one that had failed before keeps its own.
    """
    if error.errno not in WRITE_ERRORS or error.filename is not None:
        raise error
    _silence(sys.stdout)
    if code or isinstance(error, BrokenPipeError):
        return code or EXIT_BROKEN_PIPE
    return _tell(f"esper: the output cannot be written: {error.strerror}", EXIT_USAGE)


def _silence(stream: TextIO) -> None:
    """Let a broken stream lead nowhere: Python flushes it once more when it exits, and would complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    sys.exit(main())
