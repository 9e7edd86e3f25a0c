"""The `esper` command: what it lists, how it hands over to a command, and what a user sees when something is wrong."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.metadata import entry_points, version
from types import ModuleType

import pytest

from esper.cli.main import COMMANDS, main

COMMAND_MODULE = '''
"""A command that ends in every way a command can end."""
from esper.leyline.errors import DataError

def main(argv):
    match argv[0]:
        case "echo":
            print(argv)
            return 7
        case "mistake":
            raise DataError("no data in 'here'; expected 'there'")
        case "bug":
            raise KeyError("a bug")
        case "file":
            open("/nowhere/at/all")
        case "interrupt":
            raise KeyboardInterrupt
        case "flood":
            for _ in range(100_000):
                print("a line that nobody reads")
            return 0
'''


@pytest.fixture
def command(monkeypatch):
    """Adds COMMAND_MODULE to the table, as the command `end`."""
    module = ModuleType("esper.cli.end")
    exec(COMMAND_MODULE, module.__dict__)
    monkeypatch.setitem(sys.modules, "esper.cli.end", module)
    monkeypatch.setitem(COMMANDS, "end", "for this test")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_listed_command_exists(name):
    assert callable(import_module(f"esper.cli.{name}").main)


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_every_command_and_every_option(flag, capsys):
    assert main([flag]) == 0
    shown = capsys.readouterr().out
    for name, text in COMMANDS.items():
        assert f"  {name}" in shown
        assert text in shown
    assert "--version" in shown


def test_without_arguments_the_help_goes_to_stderr(capsys):
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("usage: esper COMMAND")


def test_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"esper {version('esper-lite')}\n"


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("blueprnts", "esper: unknown command 'blueprnts'; did you mean 'blueprints'?\n"),
        ("--versoin", "esper: unknown option '--versoin'; did you mean '--version'?\n"),
    ],
)
def test_an_unknown_word_gets_one_sentence_with_the_nearest_name(argument, sentence, capsys):
    assert main([argument]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", sentence)


@pytest.mark.usefixtures("command")
def test_a_command_gets_its_arguments_and_gives_its_exit_code(capsys):
    assert main(["end", "echo", "--help", "two words"]) == 7
    assert capsys.readouterr().out == "['echo', '--help', 'two words']\n"


@pytest.mark.usefixtures("command")
def test_a_users_mistake_is_one_sentence_without_a_traceback(capsys):
    assert main(["end", "mistake"]) == 2
    assert capsys.readouterr().err == "esper: no data in 'here'; expected 'there'\n"


@pytest.mark.usefixtures("command")
def test_a_bug_keeps_its_traceback():
    with pytest.raises(KeyError, match="a bug"):
        main(["end", "bug"])
    with pytest.raises(FileNotFoundError, match="/nowhere/at/all"):
        main(["end", "file"])


@pytest.mark.usefixtures("command")
def test_an_interrupt_ends_with_130_and_one_line(capsys):
    assert main(["end", "interrupt"]) == 130
    assert capsys.readouterr().err == "\nesper: interrupted\n"


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    (tmp_path / "command_module.py").write_text(COMMAND_MODULE)
    program = (
        "import sys, command_module; from esper.cli.main import COMMANDS, main\n"
        "COMMANDS['end'], sys.modules['esper.cli.end'] = 'for this test', command_module\n"
        "sys.exit(main(['end', 'flood']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "a line that nobody reads\n"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 141


def test_the_installed_command_is_this_one():
    (script,) = entry_points(group="console_scripts", name="esper")
    assert script.load() is main


def test_a_mistake_in_a_fresh_process_is_one_line_and_exit_code_2():
    done = subprocess.run([sys.executable, "-m", "esper.cli.main", "no-such"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("esper: unknown command 'no-such'")
    assert done.stderr.count("\n") == 1
