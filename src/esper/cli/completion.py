"""`esper completion`: a script for a shell that completes commands, flags, the values of flags and paths."""

from __future__ import annotations

from esper.cli.flags import Parser
from esper.leyline.errors import unknown

SHELLS = ("bash", "zsh", "fish")

EXAMPLES = """\
The script has everything in it: completing starts no Python. Write it anew after an update, or when a plug-in is installed.

  esper completion bash > ~/.local/share/bash-completion/completions/esper
  esper completion zsh > "${fpath[1]}/_esper"                        and start zsh anew
  esper completion fish > ~/.config/fish/completions/esper.fish"""


def main(argv: list[str]) -> int:
    """Run the command with its own arguments."""
    shell = _parser().parse_args(argv).shell
    if shell not in SHELLS:
        raise unknown("shell", shell, SHELLS)
    from esper.cli import shells
    from esper.cli.grammar import contexts

    write = {"bash": shells.bash, "zsh": shells.zsh, "fish": shells.fish}[shell]
    print(write(contexts()), end="")
    return 0


def parsers() -> dict[str, Parser]:
    """The parsers of this command, by the word that chooses among them."""
    return {"": _parser()}


def _parser() -> Parser:
    parser = Parser(
        prog="esper completion",
        description="Print a script that lets a shell complete what is typed after esper.",
        epilog=EXAMPLES,
        allow_abbrev=False,
    )
    parser.add_argument("shell", metavar="|".join(SHELLS), help="which shell the script is for")
    return parser
