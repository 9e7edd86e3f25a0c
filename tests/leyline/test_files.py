"""Files that are replaced whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from esper.leyline.files import remove_unfinished, replace_file, write_new


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    for content in (b"first", b"", b"x" * 100_000):
        replace_file(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_failure_on_the_way_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    path = tmp_path / "letter.txt"
    path.write_bytes(b"old")

    def fails(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fails)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_takes_a_part_at_a_time_gets_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: whole(descriptor, content[:7]))
    write_new(tmp_path / "letter.txt", b"a letter of more than seven bytes")
    assert (tmp_path / "letter.txt").read_bytes() == b"a letter of more than seven bytes"


def test_what_a_kill_left_behind_is_removed_and_the_rest_stays(tmp_path: Path) -> None:
    for name in (".letter.txt.0a1b2c3d.tmp", "letter.txt", ".hidden", "other.tmp"):
        (tmp_path / name).touch()
    remove_unfinished(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "letter.txt", "other.tmp"]
