"""`./go`, run for real in copies of the project, with a stand-in for Python so that nothing is downloaded.

The stand-in answers the script's questions with the real Python, makes environments that hold the stand-in itself, and has a
pip that writes down each installation and waits or fails when a file tells it to.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
TOOLS = ["bash", "env", "cat", "sha256sum", "mkdir", "mv", "rm", "rmdir", "find", "dirname", "readlink", "sleep", "tail", "grep"]
BASH = shutil.which("bash")
PATIENCE = 60.0
"""Seconds to wait for something that takes a fraction of a second on an idle machine."""

LAUNCHER = """#!{bash}
exec '{python}' -IS '{program}' "$0" "$@"
"""

STAND_IN = """
import os, pathlib, shutil, sys, time
control = pathlib.Path({control!r})
launcher, *arguments = sys.argv[1:]
with (control / "calls").open("a") as calls:
    calls.write(" ".join(arguments[:4]).splitlines()[0] + "\\n")
assert arguments.pop(0) == "-I"
if arguments[0] == "-c":
    sys.version_info = {version!r}
    if not {venv!r}:
        sys.modules["ensurepip"] = None
    sys.modules["pip"] = sys
    exec(arguments[1])
elif arguments[:2] == ["-m", "venv"]:
    tools = pathlib.Path(arguments[2]) / "bin"
    tools.mkdir(parents=True)
    shutil.copy(launcher, tools / "python")
elif arguments[:3] == ["-m", "pip", "install"]:
    (control / "pip.pid").write_text(str(os.getpid()))
    while (control / "hold").exists():
        time.sleep(0.02)
    print("Collecting torch")
    if (control / "pip-fails").exists():
        print((control / "pip-fails").read_text())
        sys.exit(1)
    tool = pathlib.Path(launcher).parent / "tool"
    tool.write_text("#!{bash}\\n" + (control / "tool").read_text())
    tool.chmod(0o755)
    shutil.copy(tool, tool.with_name("pytest"))
else:
    sys.exit("the stand-in does not know " + repr(arguments))
"""

TOOL = r"""printf '%s\n' "$PWD" "$VIRTUAL_ENV" "$(type -P tool)" "$@"
if [[ ${1-} == exit ]]; then exit "$2"; fi
"""


def _ordinary_signals() -> None:
    """A shell cannot trap what was ignored when it started, and tests that run in the background ignore Ctrl-C and hang-ups."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A copy of the project's shell in a folder of its own, with a PATH that holds nothing but what the test puts there."""

    root: Path
    control: Path
    path: Path

    def add_python(self, name: str = "python3.11", version: tuple[int, int, int] = (3, 11, 7), venv: bool = True) -> None:
        """Put a stand-in for Python on PATH."""
        program = self.control / f"{name}.py"
        program.write_text(STAND_IN.format(bash=BASH, control=str(self.control), version=version, venv=venv))
        self.add_script(name, LAUNCHER.format(bash=BASH, python=sys.executable, program=program))

    def add_script(self, name: str, text: str) -> None:
        """Put a program on PATH."""
        (self.path / name).write_text(text)
        (self.path / name).chmod(0o755)

    def start(self, *arguments: str, cwd: Path | None = None, script: Path | None = None) -> subprocess.Popen[str]:
        """Start `./go` and return the running process."""
        return subprocess.Popen(
            [str(script or self.root / "go"), *arguments],
            cwd=cwd or self.root,
            env={"PATH": str(self.path), "HOME": str(self.control)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_ordinary_signals,
        )

    def go(self, *arguments: str, cwd: Path | None = None, script: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run `./go` to its end."""
        process = self.start(*arguments, cwd=cwd, script=script)
        out, err = process.communicate(timeout=PATIENCE)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def calls(self, kind: str = "") -> int:
        """How often Python was started for this: `-m venv`, `-m pip`, or anything at all."""
        calls = self.control / "calls"
        return sum(kind in line for line in calls.read_text().splitlines()) if calls.exists() else 0

    def hold_pip(self) -> None:
        """Make the next installation wait for `release_pip`."""
        (self.control / "pip.pid").unlink(missing_ok=True)
        (self.control / "hold").touch()

    def wait_for_pip(self) -> int:
        """Wait until an installation is under way; returns its process id."""
        wait_until(lambda: (self.control / "pip.pid").exists() and (self.control / "pip.pid").read_text() != "")
        return int((self.control / "pip.pid").read_text())

    def release_pip(self) -> None:
        """Let the waiting installation go on."""
        (self.control / "hold").unlink()


def wait_until(condition) -> None:
    """Wait until the condition holds; fails after PATIENCE."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not collected by its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def bare(tmp_path) -> Copy:
    """A copy of the project in a folder with a space in its name, and no Python on PATH."""
    copy = Copy(root=tmp_path / "the project", control=tmp_path / "control", path=tmp_path / "path")
    for folder in (copy.root, copy.control, copy.path):
        folder.mkdir()
    for name in ("go", "pyproject.toml", "constraints.txt"):
        shutil.copy(PROJECT / name, copy.root / name)
    (copy.control / "tool").write_text(TOOL)
    for name in TOOLS:
        (copy.path / name).symlink_to(shutil.which(name) or "missing")
    return copy


@pytest.fixture(params=["flock", "mkdir"])
def copy(bare, request) -> Copy:
    """A copy with a Python on PATH, once with the `flock` command and once without it."""
    if request.param == "flock":
        flock = shutil.which("flock")
        if flock is None:
            pytest.skip("this machine has no flock")
        (bare.path / "flock").symlink_to(flock)
    bare.add_python()
    return bare


def test_first_use_makes_the_environment_and_runs_the_command_in_it(copy):
    done = copy.go("tool")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(copy.root), str(copy.root / ".venv"), str(copy.root / ".venv/bin/tool")]
    assert (copy.calls("-m venv"), copy.calls("-m pip")) == (1, 1)
    assert [line for line in done.stderr.splitlines() if not line.startswith("go: ")] == []
    assert "Python 3.11.7" in done.stderr


def test_second_use_is_silent_and_starts_no_python_of_its_own(copy):
    copy.go("tool")
    before = copy.calls()
    (copy.root / "pyproject.toml").touch()
    done = copy.go("tool")
    assert (done.returncode, done.stderr) == (0, "")
    assert copy.calls() == before


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_requirement_installs_again_and_keeps_the_environment(copy, name):
    copy.go("tool")
    with (copy.root / name).open("a") as file:
        file.write("# changed\n")
    assert copy.go("tool").returncode == 0
    assert (copy.calls("-m venv"), copy.calls("-m pip")) == (1, 2)
    assert copy.go("tool").stderr == ""


def test_a_set_up_that_was_killed_is_made_anew(copy):
    copy.hold_pip()
    process = copy.start("tool")
    pip = copy.wait_for_pip()
    process.kill()
    process.communicate()
    assert alive(pip), "pip outlives the script, so the next start has to wait for it"
    after = copy.start("tool")
    assert "waiting" in after.stderr.readline()
    copy.release_pip()
    out, err = after.communicate(timeout=PATIENCE)
    assert after.returncode == 0, err
    assert not alive(pip)
    assert (copy.calls("-m venv"), copy.calls("-m pip")) == (2, 2)
    assert str(copy.root / ".venv/bin/tool") in out


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_interrupted_set_up_stops_pip_says_so_and_is_made_anew(copy, sent, code):
    copy.hold_pip()
    process = copy.start("tool")
    pip = copy.wait_for_pip()
    process.send_signal(sent)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (code, "")
    assert err.splitlines()[-1] == "go: interrupted; the next start sets the environment up again"
    assert not alive(pip)
    copy.release_pip()
    assert copy.go("tool").returncode == 0
    assert (copy.calls("-m venv"), copy.calls("-m pip")) == (2, 2)


def test_an_interrupted_update_is_made_anew(copy):
    copy.go("tool")
    (copy.root / "constraints.txt").write_text("")
    copy.hold_pip()
    process = copy.start("tool")
    copy.wait_for_pip()
    process.terminate()
    process.communicate(timeout=PATIENCE)
    copy.release_pip()
    assert copy.go("tool").returncode == 0
    assert copy.calls("-m venv") == 2


def test_two_at_once_install_once_and_both_run(copy):
    copy.hold_pip()
    first = copy.start("tool", "first")
    copy.wait_for_pip()
    second = copy.start("tool", "second")
    line = second.stderr.readline()
    assert "waiting" in line
    copy.release_pip()
    for process, argument in ((first, "first"), (second, "second")):
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
        assert out.splitlines()[-1] == argument
    assert (copy.calls("-m venv"), copy.calls("-m pip")) == (1, 1)


def test_many_started_in_the_same_moment_install_once(copy):
    processes = [copy.start("tool") for _ in range(6)]
    codes = [process.wait(timeout=PATIENCE) for process in processes]
    for process in processes:
        process.communicate()
    assert codes == [0] * 6
    assert (copy.calls("-m venv"), copy.calls("-m pip")) == (1, 1)


def test_a_lock_folder_of_a_dead_process_is_taken_over(bare):
    bare.add_python()
    dead = subprocess.Popen(["true"])
    dead.wait()
    lock = bare.root / ".venv/.go/lock.d"
    lock.mkdir(parents=True)
    (lock / "owner").write_text(f"{dead.pid}\n")
    assert bare.go("tool").returncode == 0
    assert not lock.exists()


def test_without_python_one_sentence_says_what_to_install(bare):
    done = bare.go("tool")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "Python 3.11 or newer" in done.stderr


def test_an_old_python_is_refused_and_named(bare):
    bare.add_python("python3", version=(3, 9, 2))
    done = bare.go("tool")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "python3 is 3.9.2" in done.stderr


def test_a_python_without_venv_is_refused_with_the_package_to_install(bare):
    bare.add_python("python3.12", version=(3, 12, 1), venv=False)
    done = bare.go("tool")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "no venv module" in done.stderr
    assert "python3.12-venv" in done.stderr


def test_the_next_python_is_taken_when_one_does_not_start_or_lacks_venv(bare):
    bare.add_script("python3.11", f"#!{BASH}\necho 'command not found' >&2\nexit 127\n")
    bare.add_python("python3.12", version=(3, 12, 1), venv=False)
    bare.add_python("python3.13", version=(3, 13, 0))
    done = bare.go("tool")
    assert done.returncode == 0, done.stderr
    assert "Python 3.13.0" in done.stderr


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        ("ERROR: from versions: none\nERROR: No distribution found for torch==9\n\nnote: more", "No distribution found for torch==9"),
        ("      OSError: no README.md\n      [end of output]\nerror: metadata-generation-failed\n\nnote: more", "OSError: no README.md"),
        ("error: externally-managed-environment\n\nnote: more", "externally-managed-environment"),
        ("Killed\n\n", "Killed"),
    ],
)
def test_a_failing_pip_is_told_in_its_own_words_and_the_command_does_not_run(bare, output, cause):
    bare.add_python()
    (bare.control / "pip-fails").write_text(output)
    done = bare.go("tool")
    assert (done.returncode, done.stdout) == (1, "")
    start, _, log = done.stderr.splitlines()[-1].rpartition("; pip's output is in ")
    assert start == f"go: the packages could not be installed: {cause}"
    assert output in Path(log).read_text()
    (bare.control / "pip-fails").unlink()
    assert bare.go("tool").returncode == 0


def test_a_missing_network_is_named(copy):
    (copy.control / "pip-fails").write_text(
        "WARNING: Retrying after connection broken by 'NewConnectionError(...)'\nERROR: No matching distribution found for torch"
    )
    assert "check the network" in copy.go("tool").stderr.splitlines()[-1]


def test_a_failed_update_keeps_the_environment_and_is_tried_again(copy):
    copy.go("tool")
    (copy.root / "constraints.txt").write_text("")
    (copy.control / "pip-fails").write_text("ERROR: no")
    assert copy.go("tool").returncode == 1
    (copy.control / "pip-fails").unlink()
    assert copy.go("tool").returncode == 0
    assert (copy.calls("-m venv"), copy.calls("-m pip")) == (1, 3)


def test_a_project_that_was_moved_gets_a_new_environment(bare):
    bare.add_python()
    bare.go("tool")
    moved = Copy(root=bare.root.with_name("moved"), control=bare.control, path=bare.path)
    bare.root.rename(moved.root)
    assert str(moved.root / ".venv/bin/tool") in moved.go("tool").stdout
    assert bare.calls("-m venv") == 2


def test_an_environment_whose_python_is_gone_is_made_anew(bare):
    bare.add_python()
    bare.go("tool")
    python = bare.root / ".venv/bin/python"
    python.unlink()
    python.symlink_to(bare.root / "uninstalled")
    assert bare.go("tool").returncode == 0
    assert bare.calls("-m venv") == 2


def test_an_environment_made_by_hand_is_installed_into_and_not_removed(bare):
    bare.add_python()
    subprocess.run([bare.path / "python3.11", "-I", "-m", "venv", bare.root / ".venv"], check=True)
    (bare.root / ".venv/precious").touch()
    assert bare.go("tool").returncode == 0
    assert (bare.root / ".venv/precious").exists()
    assert (bare.calls("-m venv"), bare.calls("-m pip")) == (1, 1)


def test_a_folder_where_nothing_can_be_written_is_named(bare):
    bare.add_python()
    (bare.root / ".venv").write_text("a file where the environment should be")
    done = bare.go("tool")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert str(bare.root / ".venv") in done.stderr


@pytest.fixture
def ready(bare) -> Copy:
    """A copy whose environment is made."""
    bare.add_python()
    assert bare.go("tool").returncode == 0
    return bare


def test_the_command_runs_in_the_callers_folder(ready, tmp_path):
    link = tmp_path / "link to go"
    link.symlink_to(Path("the project/go"))
    for script in (ready.root / "go", link):
        done = ready.go("tool", cwd=ready.control, script=script)
        assert done.stdout.splitlines() == [str(ready.control), str(ready.root / ".venv"), str(ready.root / ".venv/bin/tool")]


def test_pytest_runs_in_the_projects_folder_unless_a_path_is_meant_inside_it(ready):
    (ready.root / "tests/deep").mkdir(parents=True)
    (ready.control / "tests").mkdir()

    def folder(cwd: Path, *arguments: str) -> Path:
        return Path(ready.go("pytest", *arguments, cwd=cwd).stdout.splitlines()[0])

    assert folder(ready.control) == ready.root
    assert folder(ready.control, "tests") == ready.root
    assert folder(ready.root / "tests") == ready.root
    assert folder(ready.root / "tests", "-k", "name") == ready.root
    assert folder(ready.root / "tests", "deep::test") == ready.root / "tests"


def test_arguments_arrive_unchanged(ready):
    arguments = ["two words", "", "*", "$HOME", "a\"b'c", "--", "-n"]
    assert ready.go("tool", *arguments).stdout.splitlines()[3:] == arguments


@pytest.mark.parametrize("code", [0, 1, 42])
def test_the_commands_exit_code_is_kept(ready, code):
    assert ready.go("tool", "exit", str(code)).returncode == code


def test_the_command_replaces_the_script_so_that_signals_reach_it(ready):
    ready.add_script("sleeper", f"#!{BASH}\necho $$\nexec sleep 600\n")
    process = ready.start("sleeper")
    assert int(process.stdout.readline()) == process.pid
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGTERM


def test_the_lock_is_not_held_while_the_command_runs(copy):
    copy.add_script("waiter", f"#!{BASH}\necho started\nread\n")
    read, write = os.pipe()
    process = subprocess.Popen([copy.root / "go", "waiter"], env={"PATH": str(copy.path)}, stdin=read, stdout=subprocess.PIPE, text=True)
    os.close(read)
    assert process.stdout.readline() == "started\n"
    (copy.root / "constraints.txt").write_text("")
    done = copy.go("tool")
    os.close(write)
    process.communicate(timeout=PATIENCE)
    assert done.returncode == 0
    assert "waiting" not in done.stderr


def test_without_arguments_the_usage_is_shown_and_nothing_is_made(bare):
    done = bare.go()
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ./go COMMAND")
    asked = bare.go("--help")
    assert (asked.returncode, asked.stdout) == (0, done.stderr)
    assert not (bare.root / ".venv").exists()


def test_a_command_that_does_not_exist_is_named(ready):
    done = ready.go("no-such-command")
    assert done.returncode == 127
    assert done.stderr == "go: there is no command no-such-command, neither in the project's environment nor on PATH\n"


@pytest.mark.parametrize("failing", ["ruff", "mypy", "lint-imports", "pytest", "nothing"])
def test_ci_runs_every_check_in_order_and_stops_at_the_first_that_fails(tmp_path, failing):
    (tmp_path / ".ci").mkdir()
    shutil.copy(PROJECT / ".ci/run", tmp_path / ".ci/run")
    (tmp_path / "go").write_text(f'#!{BASH}\nprintf "ran %s\\n" "$1"\nif [[ $1 == {failing} ]]; then exit 3; fi\n')
    (tmp_path / "go").chmod(0o755)
    checks = ["ruff", "mypy", "lint-imports", "pytest"]
    done = subprocess.run([tmp_path / ".ci/run"], cwd="/", capture_output=True, text=True)
    ran = [line.removeprefix("ran ") for line in done.stdout.splitlines() if line.startswith("ran ")]
    if failing == "nothing":
        assert (done.returncode, ran, done.stderr) == (0, checks, "")
    else:
        assert (done.returncode, ran) == (3, checks[: checks.index(failing) + 1])
        assert f"./go {failing}" in done.stderr
        assert done.stderr.count("\n") == 1
