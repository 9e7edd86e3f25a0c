"""Completion scripts do in real shells what they should, and know what the parsers know."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from esper.cli.grammar import context_of, contexts
from esper.cli.main import COMMANDS, main

TASKS = "digits stdlib cifar10 cifar10-impaired cifar10-deep fashion tinystories"
EXPECTED = {
    "esper ": " ".join(COMMANDS),
    "esper tr": "train",
    "esper --v": "--version",
    "esper train ": "heuristic ppo expert bc iql",
    "esper train heuristic --hos": "--hosts",
    "esper train heuristic --heuristic.temp": "--heuristic.tempo",
    "esper train heuristic --task ": TASKS,
    "esper train heuristic --task = dig": "digits",
    "esper train heuristic --hosts 3 --member f": "family",
    "esper train heuristic --controller h": "heuristic here.py",
    "esper train --resume he": "here.py",
    "esper train --resume here.py --reset": "--reset-heads",
    "esper compare --res": "--resume",
    "esper compare h": "heuristic here.py",
    "esper compare heuristic --task digits st": "stdlib",
    "esper export here.py --format ": "module pt2 onnx",
    "esper query here.py --format ": "table csv json",
    "esper runs --json he": "here.py",
    "esper tasks --json ": "",
    "esper slots --ch": "--check",
    "esper completion z": "zsh",
    "esper no-such ": "",
    "esper train heuristic --seed ": "",
}
"""What is typed, the last word being the one that is completed, and what is offered. A word that bash breaks up is broken up here."""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the three scripts and a file to complete."""
    from esper.cli import shells

    folder = tmp_path_factory.mktemp("scripts")
    found = contexts()
    for name in ("bash", "zsh", "fish"):
        (folder / name).write_text(getattr(shells, name)(found))
    (folder / "files").mkdir()
    (folder / "files/here.py").touch()
    return folder


def test_bash_completes_without_starting_anything(scripts: Path) -> None:
    program = ["source ../bash", "PATH=", 'try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _esper; echo "${COMPREPLY[*]}"; }']
    program += ["try " + " ".join(f"'{word}'" for word in line.split(" ")) for line in EXPECTED]
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run([bash, "--norc", "-c", "\n".join(program)], cwd=scripts / "files", capture_output=True, text=True, check=True)
    assert dict(zip(EXPECTED, done.stdout.split("\n"), strict=False)) == EXPECTED
    assert done.stderr == ""


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish here")
def test_fish_completes(scripts: Path) -> None:
    # It breaks no words up, and a flag has one value there.
    lines = [line for line in EXPECTED if " = " not in line and "--task digits " not in line]
    program = ["source ../fish", *(f"complete -C '{line}' | string replace -r '\\t.*' '' | string join ' '; echo ';'" for line in lines)]
    environment = {"HOME": str(scripts), "PATH": "/usr/bin:/bin"}
    command = ["fish", "--no-config", "-c", "\n".join(program)]
    done = subprocess.run(command, cwd=scripts / "files", capture_output=True, text=True, check=True, env=environment)
    found = [sorted(part.split()) for part in done.stdout.split(";\n")]
    for line, offered in zip(lines, found, strict=False):
        # Hidden settings are offered beside the others, and words of an unknown command are the first ones again.
        assert set(EXPECTED[line].split()) <= set(offered), line
    assert done.stderr == ""


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh here")
def test_zsh_reads_the_script_and_knows_the_commands(scripts: Path) -> None:
    program = "compdef() { print compdef $*; }; source ../zsh; _esper_context ''; print -l $values"
    command = ["zsh", "-f", "-c", f"{program}; _esper_takes 'train ppo' --task; print $values"]
    done = subprocess.run(command, cwd=scripts / "files", capture_output=True, text=True, check=True)
    first, *described, tasks = done.stdout.splitlines()
    assert first == "compdef _esper esper"
    assert [line.partition(":")[0] for line in described] == [*COMMANDS]
    assert described[0] == f"train:{COMMANDS['train']}"
    assert (tasks, done.stderr) == (TASKS, "")


def test_every_command_and_method_is_known() -> None:
    known = contexts()
    assert {context.words[0] for context in known if context.words} == set(COMMANDS)
    assert context_of(["train", "ppo", "--hosts", "3"], known).words == ("train", "ppo")
    assert context_of(["train", "--resume", "runs/a"], known).words == ("train", "--resume")
    assert context_of(["headroom", "--hosts", "3"], known).words == ("headroom",)
    assert all(context.flag("--help") for context in known)


def test_the_command_prints_the_script_and_refuses_other_shells(scripts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == (scripts / "bash").read_text()
    assert main(["completion", "tcsh"]) == 2
    assert capsys.readouterr().err == "esper: unknown shell 'tcsh'; did you mean 'zsh'?\n"
