"""Everything that README and docs tell people to type works: every block of Python runs, and every command is one that there is."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from esper.cli.flags import Parser
from esper.cli.grammar import Context, Values, context_of, contexts
from esper.cli.main import COMMANDS, import_command
from tests.pages import DOCS, PAGES, PROJECT, blocks, commands, read

RUNNER = """
import json, linecache, sys
names = vars(sys.modules["__main__"])
for number, block in enumerate(json.load(open("blocks.json"))):
    where = f"block {number}"
    linecache.cache[where] = (len(block), None, block.splitlines(keepends=True), where)
    exec(compile(block, where, "exec", dont_inherit=True), names)
"""
"""Runs the blocks of a page in order, in one session, as if typed at a prompt; each may begin with imports from __future__."""

AFTERWARDS = {
    "README.md": """
assert sum(p.numel() for p in plain.parameters()) > 1_000, "it grew, and what grew was kept"
assert accuracy(plain) > 80.0, accuracy(plain)
assert not any(type(module).__module__.startswith("esper") for module in plain.modules())
""",
    "docs/guide.md": """
assert any(entry.decision.op.name == "GERMINATE" for entry in whole["gardener"].history)
assert model.report("1").blueprint == "wide_conv"
assert validate(plain) >= 80.0, validate(plain)
assert str(tending.history[-1]).startswith("epoch 5: ")
assert str(fitting.history[-1]).count(" RMSE, ") == 1
assert fitting.history[-1].parameters > fitting.history[0].parameters, "a seed that was kept"
assert (Path("runs/mine") / "summary.json").is_file()
""",
    "docs/environment.md": 'assert info and len(rewards) == 4, "of the vector environment"',
}
"""What a page says has happened."""

PRINTED = {
    "docs/guide.md": "FOSSILIZE",
    "docs/environment.md": r"(?m)^epoch 10/10(.|\n)*\nreturn -?\d+\.\d{3}, accuracy \d+\.\d, without growth \d+\.\d\n",
}
RUN = "runs/digits-ppo-001"
"""The run that pages speak of."""


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_every_block_of_a_page_runs_in_order(page: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """In a process and a folder of its own: pages register things and write files."""
    shown = blocks(page, "python")
    if any(RUN in block for block in shown):
        shutil.copytree(request.getfixturevalue("recorded_runs") / "learned", tmp_path / RUN)
    (tmp_path / "blocks.json").write_text(json.dumps([*shown, AFTERWARDS.get(page, "")]), encoding="utf-8")
    (tmp_path / "page.py").write_text(RUNNER, encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ESPER_DATA": str(tmp_path), "MPLBACKEND": "agg"}
    command = [sys.executable, "-W", "error::UserWarning:__main__", "page.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert re.search(PRINTED.get(page, ""), done.stdout), done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_page(page: str) -> None:
    path = PROJECT / page
    linked = [link for link in re.findall(r"\]\(([^)#]+)", read(page)) if not link.startswith("https://")]
    assert linked or page == "docs/results.md" or path.is_relative_to(DOCS / "api")
    assert [link for link in linked if not (path.parent / link).is_file()] == []


def test_every_config_shown_is_one() -> None:
    shown = {language: [block for page in PAGES for block in blocks(page, language)] for language in ("toml", "json")}
    assert all(shown.values())
    for block in shown["toml"]:
        tomllib.loads(block)
    for block in shown["json"]:
        for line in block.strip().splitlines():
            json.loads(line)


# Commands


@pytest.fixture(scope="module")
def known() -> list[Context]:
    """What the command line takes."""
    return contexts()


@pytest.mark.parametrize("page", [page for page in PAGES if any(map(commands, blocks(page, "", "console", "sh", "bash", "text")))])
def test_every_command_on_a_page_is_one_that_there_is(page: str, known: list[Context]) -> None:
    lines = [line for block in blocks(page, "", "console", "sh", "bash", "text") for line in commands(block)]
    assert lines
    for line in lines:
        for words in spelt_out(line):
            check(words, known)


def test_every_command_in_a_help_text_is_one_that_there_is(known: list[Context]) -> None:
    found = 0
    for command in COMMANDS:
        for parser in parsers_of(command).values():
            for line in commands(parser.epilog or ""):
                found += 1
                for words in spelt_out(line):
                    check(words, known)
    assert found > 30


@pytest.mark.parametrize(
    "line",
    [
        "esper trane heuristic",
        "esper train heuristic --hots 3",
        "esper train heuristic --task digit",
        "esper train heuristics",
        "esper compare heuristic --arms wiat",
        "esper export --format onnx",
        "esper compare hueristic",
    ],
)
def test_a_command_that_there_is_not_is_noticed(line: str, known: list[Context]) -> None:
    with pytest.raises((AssertionError, ValueError)):
        check(shlex.split(line), known)


@cache
def parsers_of(command: str) -> dict[str, Parser]:
    """Its parsers, made once."""
    found: dict[str, Parser] = import_command(command).parsers()
    return found


def spelt_out(line: str) -> list[list[str]]:
    """The commands that a line stands for: one for each of `bc|iql`, without brackets and dots around what may be left out or repeated."""
    words = [re.sub(r"^\[|\]$|\.\.\.\]?$", "", word) for word in shlex.split(line)]
    methods = words[2].split("|") if len(words) > 2 else []
    return [[*words[:2], method, *words[3:]] for method in methods] or [words]


def check(words: list[str], known: list[Context]) -> None:
    """Parse a command as it would be, and look for every name in it among those that are known. Raises if there is no such thing."""
    _, *rest = words
    if not rest or rest[0] in ("COMMAND", "--help", "--version"):
        return
    assert rest[0] in COMMANDS, words
    context = context_of(rest, known)
    parsers = parsers_of(rest[0])
    if len(context.words) == 1 and "" not in parsers:  # a method of a plug-in, or a word that stands for any
        assert rest[1:2] == ["--help"] or rest[1].isupper() or "--plugins" in rest, f"{words}: there is no such method"
        context = next(each for each in known if each.words[:1] == (rest[0],) and len(each.words) == 2)
        rest = [*context.words, *rest[2:]]
    word = context.words[1] if len(context.words) == 2 else ""
    plain = rest[2:] if word and word != "--resume" else rest[1:]
    if word == "--resume":  # what a run of its kind has may follow
        parsers[word].parse_known_args(plain)
    elif "--help" not in plain and "--help-all" not in plain:
        parsers[word].parse_args(plain)
    if "--plugins" not in plain and word != "--resume":  # the plug-ins of a run are those it began with
        check_names(plain, context)


def check_names(words: list[str], context: Context) -> None:
    """Every value of a flag, and every plain argument, that has to be a known word is one."""
    takes: Values | None = None
    for word in words:
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            flag = context.flag(name)
            takes = flag.takes if flag is not None else None
            if not equals:
                continue
        values = takes or context.arguments
        if values.words and not word.isupper():
            for part in (value if word.startswith("--") else word).split(","):
                is_path = values.paths and ("/" in part or "." in part)
                assert part in values.words or is_path or part.startswith("cuda:"), f"{words}: {part!r} is none of {values.words}"
        takes = takes if takes is not None and takes.many else None
