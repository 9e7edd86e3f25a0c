"""Run folders: where everything about one run lies, and the lock that keeps a second process out.

run.json       what marks the folder as a run: its id, the command, when it began
run.lock       locked by the process that runs; the lock dies with it, however it ends
config.toml    the resolved config
events.jsonl   what happened
checkpoints/   what it can go on from
log.txt        the same in plain lines, with the time
points/        the runs that a sweep is made of
report.html    a page about it, by whoever looks at runs
tensorboard/   and wandb/, mlflow/: what those trackers were given
summary.json   the figures; written at the end, so a run that has one is finished
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import secrets
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from esper.leyline import config as configs
from esper.leyline.codec_values import number
from esper.leyline.errors import RunError
from esper.leyline.files import open_file, remove_unfinished, replace_file, sync_folder

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RunStatus = Literal["new", "running", "interrupted", "finished"]

FORMAT = "esper run"
FORMAT_VERSION = 2
"""Goes up by one with every change to the folder that an older reader would not understand."""

_MARKER, _LOCK, _CONFIG, _EVENTS, _CHECKPOINTS, _LOG, _SUMMARY = (
    *("run.json", "run.lock", "config.toml", "events.jsonl", "checkpoints", "log.txt", "summary.json"),
)
POINTS = "points"
"""Where a sweep has its runs."""
_LOCK_TRIES, _LOCK_PAUSE = 20, 0.02
"""Whoever asks for a run's status holds its lock for an instant, so the lock is tried for 0.4 seconds before it counts as taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What can be said about a run from outside."""

    path: Path
    id: str
    command: str
    created: datetime
    status: RunStatus


class RunFolder:
    """A run folder that this process works in; made by `create` or `open`. Its lock is held until `close`, or until the process ends."""

    def __init__(self, path: Path, lock: int, id: str, command: str, *, made: Sequence[Path] = ()) -> None:
        self.path = path
        self.id = id
        self.command = command
        self.config = path / _CONFIG
        """The resolved config, for `leyline.config.load`."""
        self.events = path / _EVENTS
        """The journal, for a JsonlSink."""
        self.checkpoints = path / _CHECKPOINTS
        """The folder for a CheckpointStore, which also wants the run's `id`."""
        self._lock: int | None = lock
        self._kept = False
        self._made = made  # the folders that were made for it, the innermost first

    @classmethod
    def create(cls, path: Path | None, *, name: str, config: DataclassInstance, command: str, root: Path = Path("runs")) -> Self:
        """Start a run in the folder `path`, or without one in `root/NAME-001`, with the first number that is free.

        Raises RunError for a folder that holds something else, or a run that has begun.
        """
        toml = configs.to_toml(config).encode()
        made: list[Path] = []
        try:
            place = root if path is None else path
            made = [folder for folder in (place, *place.parents) if not folder.exists()]
            if path is None:
                path = _numbered(root, name)
                made.insert(0, path)
            else:
                _claim(path)
            run = cls(path, _lock(path), secrets.token_hex(8), command, made=made)
        except OSError as error:
            _remove_empty(made)
            raise RunError(f"no run folder can be made at {path or root}: {error.strerror}") from error
        try:
            match _progress(path):
                case "finished":
                    raise RunError(f"{path} holds a finished run; choose another folder, or remove this one first")
                case "interrupted":
                    raise RunError(f"{path} holds an interrupted run; resume it, or choose another folder")
            remove_unfinished(path)
            marker = {"format": FORMAT, "version": FORMAT_VERSION, "id": run.id, "command": command, "created": _now()}
            replace_file(path / _MARKER, _to_json(marker))
            replace_file(path / _CONFIG, toml)
            sync_folder(path.parent)
        except OSError as error:
            run.withdraw()
            run.close()
            raise RunError(f"the run folder {path} cannot be written: {error.strerror}; nothing of it is left") from error
        except RunError:
            run.close()
            raise
        return run

    @classmethod
    def open(cls, path: Path, extend: bool = False) -> Self:
        """Go on with a run that was interrupted, or that has not begun; with `extend`, also a finished one.

        Raises RunError for anything else.
        """
        id, command, _ = _marker(path)
        try:
            lock = _lock(path)
        except OSError as error:
            raise RunError(f"the run folder {path} cannot be opened: {error.strerror}") from error
        if (path / _SUMMARY).exists() and not extend:
            os.close(lock)
            raise RunError(f"the run {path} is finished: there is nothing to resume")
        remove_unfinished(path)
        return cls(path, lock, id, command)

    def change_config(self, config: DataclassInstance) -> None:
        """Write another config in place of the run's, whole or not at all. A finished run is then one that goes on."""
        self._replace(_CONFIG, configs.to_toml(config).encode(), "config")
        (self.path / _SUMMARY).unlink(missing_ok=True)

    def log(self, text: str) -> None:
        """Append to log.txt, each line with the time in front. Should that fail, on a full disk say, the lines go to stderr."""
        lines = "".join(f"{_now()} {line}\n" for line in text.splitlines())
        try:
            with (self.path / _LOG).open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(lines)
        except OSError:
            print(lines, end="", file=sys.stderr)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the figures of the run to summary.json, which makes it a finished one. NaN and infinities become text, as in events."""
        self._replace(_SUMMARY, _to_json(summary), "summary")

    def _replace(self, name: str, content: bytes, what: str) -> None:
        try:
            replace_file(self.path / name, content)
        except OSError as error:
            reason = f"{self.path / name}: {error.strerror}; what the run wrote before is intact"
            raise RunError(f"the {what} of the run cannot be written: {reason}") from error

    def keep(self) -> None:
        """From here on there is something in the run to look at, and `withdraw` leaves it."""
        self._kept = True

    def withdraw(self, also: Sequence[str] = ()) -> None:
        """Remove the run if there is nothing in it to go on from; one with a checkpoint, its own or of a run that it is made of, stays,
        and so does whatever is not ours. also: folders in it that were made for it."""
        kept = [folder for folder in (self.checkpoints, self.path / POINTS) if folder.is_dir() and any(folder.iterdir())]
        if self._kept or (self.path / _SUMMARY).exists() or kept:
            return
        for name in also:
            shutil.rmtree(self.path / name, ignore_errors=True)
        for name in (_MARKER, _CONFIG, _EVENTS, _LOG, _LOCK):
            (self.path / name).unlink(missing_ok=True)
        _remove_empty(self._made)

    def close(self) -> None:
        """Let go of the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read_run(path: Path) -> RunInfo:
    """What a run folder says about itself; changes nothing. Raises RunError for a folder that is not a run."""
    id, command, created = _marker(path)
    return RunInfo(path=path, id=id, command=command, created=created, status=_status(path))


def read_summary(path: Path) -> dict[str, Any]:
    """The figures of a finished run. Raises RunError when there are none."""
    read_run(path)
    try:
        summary = _read_json(path / _SUMMARY)
    except FileNotFoundError:
        raise RunError(f"the run {path} has no {_SUMMARY}: it is not finished") from None
    if not isinstance(summary, dict):
        raise RunError(f"{path / _SUMMARY} holds no table of figures")
    return summary


def list_runs(root: Path = Path("runs")) -> tuple[list[RunInfo], list[str]]:
    """The runs in a folder, oldest first, and a sentence for each that is damaged. Folders that are no runs are left out."""
    runs: list[RunInfo] = []
    problems: list[str] = []
    try:
        paths = sorted(root.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return runs, problems
    except OSError as error:
        raise RunError(f"the runs in {root} cannot be listed: {error.strerror}") from error
    for path in paths:
        if (path / _MARKER).exists():
            try:
                runs.append(read_run(path))
            except RunError as error:
                problems.append(str(error))
    return sorted(runs, key=lambda run: run.created), problems


def _numbered(root: Path, name: str) -> Path:
    """Make the folder with the next free number."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"
    root.mkdir(parents=True, exist_ok=True)
    taken = [int(match[1]) for entry in os.listdir(root) if (match := re.fullmatch(re.escape(plain) + r"-(\d+)", entry))]
    number = max(taken, default=0) + 1
    while True:
        path = root / f"{plain}-{number:03}"
        try:
            path.mkdir()
            return path
        except FileExistsError:  # another process was quicker
            number += 1


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # not empty, or never made
            folder.rmdir()


def _claim(path: Path) -> None:
    """Make the folder that was asked for, or take it when it is empty or a run."""
    if path.exists() and not path.is_dir():
        raise RunError(f"{path} is a file; a run needs a folder of its own")
    path.mkdir(parents=True, exist_ok=True)
    # A kill while a run is made can leave these behind; they are no reason to refuse the folder.
    others = [name for name in sorted(os.listdir(path)) if name != _LOCK and not re.fullmatch(r"\..+\.tmp", name)]
    if others and not (path / _MARKER).exists():
        raise RunError(f"{path} is not empty and not a run (it holds {others[0]!r}); choose another folder")


def _lock(path: Path) -> int:
    """Lock a run for this process and return the lock's file; raises RunError that names who holds it."""
    lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    for attempt in range(_LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if attempt + 1 == _LOCK_TRIES:
                holder = os.pread(lock, 200, 0).decode(errors="replace").strip()
                os.close(lock)
                raise RunError(f"the run {path} is in use by {holder or 'another process'}; one process at a time can work in it") from None
            time.sleep(_LOCK_PAUSE)
    with suppress(OSError):  # on a full disk the lock is as good without a name
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()} on {platform.node()}\n".encode(), 0)
    return lock


def _status(path: Path) -> RunStatus:
    progress = _progress(path)
    if progress == "finished":
        return progress
    try:
        lock = os.open(path / _LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return progress
    except OSError as error:
        raise RunError(f"{path / _LOCK} cannot be read: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return progress
    except BlockingIOError:
        return "running"
    finally:
        os.close(lock)


def _progress(path: Path) -> Literal["new", "interrupted", "finished"]:
    """How far a run came, whether or not a process works on it now."""
    if (path / _SUMMARY).exists():
        return "finished"
    events, checkpoints = path / _EVENTS, path / _CHECKPOINTS
    begun = (events.exists() and events.stat().st_size > 0) or (checkpoints.is_dir() and any(checkpoints.iterdir()))
    return "interrupted" if begun else "new"


def _marker(path: Path) -> tuple[str, str, datetime]:
    """What run.json says, checked: id, command, and when the run began."""
    try:
        marker = _read_json(path / _MARKER)
    except (FileNotFoundError, NotADirectoryError):
        found = "there is no such folder" if not path.exists() else f"it has no {_MARKER}"
        raise RunError(f"{path} is not a run: {found}") from None
    if not isinstance(marker, dict) or "format" not in marker or marker["format"] != FORMAT:
        raise RunError(f"{path / _MARKER} was not written by Esper")
    if "version" not in marker or marker["version"] != FORMAT_VERSION:
        raise RunError(f"{path} has another format version; this version of Esper reads {FORMAT_VERSION}")
    match marker:
        case {"id": str(id), "command": str(command), "created": str(created)}:
            pass
        case _:
            raise RunError(f"{path / _MARKER} is damaged: id, command and created should be text")
    try:
        return id, command, datetime.fromisoformat(created).astimezone()
    except ValueError:
        raise RunError(f"{path / _MARKER} is damaged: {created!r} is not a date and time") from None


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _read_json(path: Path) -> Any:
    """What a file holds. Raises RunError for one that cannot be read, and leaves one that is not there to the caller."""
    try:
        with open_file(path) as file:
            return json.loads(file.read())
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error


def _to_json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(_finite(value), indent=2, allow_nan=False).encode() + b"\n"


def _finite(value: Any) -> Any:
    """The value with NaN and infinities as text, which is all that JSON has for them."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return number(value) if isinstance(value, float) else value
