"""`esper watch`: a live page of a run, or of all runs in a folder; with --terminal, a compact view where there is no browser."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import webbrowser
from pathlib import Path

from esper.cli.flags import Parser
from esper.leyline.errors import ConfigError

EXAMPLES = """\
examples:
  esper watch                       all runs in runs/, in the browser
  esper watch runs/digits-ppo-001   one run
  esper watch --no-browser          print the link only, for a browser on another machine: ssh -L 8765:127.0.0.1:8765 MACHINE
  esper watch --terminal RUN        a compact view in this terminal
"""


def main(argv: list[str]) -> int:
    """Run the command with its own arguments."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.terminal:
        if arguments.no_browser or arguments.port is not None or arguments.host != parser.get_default("host"):
            raise ConfigError("--terminal shows a run in this terminal; expected no --no-browser, --port or --host with it")
        from esper.cli.terminal import watch_terminal

        return watch_terminal(arguments.path)
    from esper.karn.watch.server import WatchServer

    # Whoever names no folder means that of the runs to come as well.
    awaited = arguments.path == parser.get_default("path")
    server = WatchServer(arguments.path, port=arguments.port, host=arguments.host, awaited=awaited)
    if server.link.open_to_others:
        print(
            f"esper: other machines can reach the page at {arguments.host}, without encryption; whoever has the link sees the runs",
            file=sys.stderr,
        )
    print(f"watching {arguments.path}: {server.link.url}\nCtrl-C ends the page; runs go on", flush=True)
    if not arguments.no_browser and _has_browser():
        threading.Thread(target=webbrowser.open, args=(server.link.url,), daemon=True).start()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print()
    return 0


def parsers() -> dict[str, Parser]:
    """The parsers of this command, by the word that chooses among them."""
    return {"": _parser()}


def _parser() -> Parser:
    parser = Parser(
        prog="esper watch",
        description="Watch runs: a live page in the browser, made from their folders alone. It can be started, stopped and started again "
        "at any time; runs neither wait for it nor notice it.",
        epilog=EXAMPLES,
        allow_abbrev=False,
    )
    parser.add_argument("path", nargs="?", type=Path, default=Path("runs"), metavar="RUN", help="a run or a folder of runs (default: runs)")
    parser.add_argument("--terminal", action="store_true", help="a compact view of one run in this terminal, no page")
    parser.add_argument("--no-browser", action="store_true", help="print the link, open nothing")
    parser.add_argument("--port", type=_port, metavar="N", help="the port to serve at (default: a free one, 8765 if it is)")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="the address to serve at (default: this machine alone)")
    return parser


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; expected a number from 1 to 65535")
    return int(text)


def _has_browser() -> bool:
    """Whether a browser with a window can be opened; one in the terminal, which is all that Python finds over ssh, is no help."""
    return sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
