"""Files that a command writes besides its text, where that is asked for: figures for programs, and a page with plots."""

from __future__ import annotations

import argparse
from pathlib import Path

from esper.cli.flags import Parser
from esper.leyline.errors import ConfigError, RunError
from esper.leyline.files import replace_file


def add_files(parser: Parser, *, json: str, html: str) -> None:
    """Flags that name the files; json, html: what is written there."""
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"also write {json} there")
    parser.add_argument("--html", type=Path, metavar="FILE", help=f"also write {html} there")


def check_files(arguments: argparse.Namespace) -> None:
    """Tell before hours of work that a file cannot be written."""
    for path in (arguments.json, arguments.html):
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError(f"{path} cannot be written: there is no folder {path.parent}")
        if path is not None and path.is_dir():
            raise ConfigError(f"{path} cannot be written: it is a folder; expected the name of a file")


def write_file(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all."""
    try:
        replace_file(path, content)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from error
    print(f"wrote {path}")
