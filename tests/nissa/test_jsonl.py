"""The journal: whole lines, cut where they are torn, and read back strictly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.errors import EventError, RunError
from esper.leyline.events import Envelope, Note, to_json_line
from esper.nissa import JsonlSink, read_events


def note(seq: int, text: str = "") -> Envelope:
    return Envelope(seq=seq, time=1.5, host=None, epoch=None, event=Note(text=text or f"note {seq}"))


def write(path: Path, *envelopes: Envelope) -> None:
    sink = JsonlSink(path)
    for envelope in envelopes:
        sink.write(envelope)
    sink.close()


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, note(0, "é\n\u2028"), note(1))
    write(path, note(2))
    assert list(read_events(path)) == [note(0, "é\n\u2028"), note(1), note(2)]


def test_nothing_reaches_the_file_before_flush_and_then_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    sink = JsonlSink(path)
    sink.write(note(0))
    sink.write(note(1))
    assert path.stat().st_size == 0
    sink.flush()
    assert path.stat().st_size == sink.offset == len(to_json_line(note(0)) + to_json_line(note(1))) + 2
    sink.close()


@given(cut=st.integers(min_value=1), count=st.integers(1, 4))
def test_a_torn_last_line_is_left_out_by_readers_and_cut_off_by_the_next_writer(
    tmp_path_factory: pytest.TempPathFactory, cut: int, count: int
) -> None:
    path = tmp_path_factory.mktemp("torn") / "events.jsonl"
    write(path, *map(note, range(count)))
    last = len(to_json_line(note(count - 1))) + 1
    os.truncate(path, path.stat().st_size - (1 + cut % (last - 1)))
    assert [envelope.seq for envelope in read_events(path)] == list(range(count - 1))
    sink = JsonlSink(path)
    assert sink.next_seq() == count - 1
    sink.write(note(count - 1))
    sink.close()
    assert [envelope.seq for envelope in read_events(path)] == list(range(count))


def test_a_torn_line_longer_than_a_block_is_cut_off_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, note(0, "x" * 200_000), note(1, "y" * 200_000))
    os.truncate(path, path.stat().st_size - 1)
    sink = JsonlSink(path)
    assert (sink.next_seq(), sink.offset) == (1, len(to_json_line(note(0, "x" * 200_000))) + 1)
    sink.close()


def test_cutting_back_drops_what_came_after_and_what_waits(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    sink = JsonlSink(path)
    sink.write(note(0))
    sink.flush()
    offset = sink.offset
    sink.write(note(1, "old"))
    sink.flush()
    sink.write(note(2, "old"))
    sink.truncate_to(offset)
    sink.write(note(1, "new"))
    sink.close()
    assert list(read_events(path)) == [note(0), note(1, "new")]


@pytest.mark.parametrize("offset", [-1, 5, 10_000])
def test_cutting_anywhere_but_at_the_end_of_a_line_is_refused_and_changes_nothing(tmp_path: Path, offset: int) -> None:
    path = tmp_path / "events.jsonl"
    write(path, note(0), note(1))
    before = path.read_bytes()
    sink = JsonlSink(path)
    with pytest.raises(RunError, match=f"byte {offset} of"):
        sink.truncate_to(offset)
    sink.close()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[1]\n", "line 1: not an event"),
        (b"\x80\n", "line 1"),
        (b"\n", "line 1: event is not valid JSON"),
        (f"{to_json_line(note(1))}\n".encode(), "line 1: holds event 1, expected 0"),
        (f"{to_json_line(note(0))}\n{to_json_line(note(0))}\n".encode(), "line 2: holds event 0, expected 1"),
        (f"{to_json_line(note(0))}\n{to_json_line(note(2))}\n".encode(), "line 2: holds event 2, expected 1"),
    ],
)
def test_a_damaged_line_and_a_lost_or_doubled_event_are_named_by_their_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(content)
    with pytest.raises(EventError, match=message):
        list(read_events(path))


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"none\.jsonl: No such file"):
        list(read_events(tmp_path / "none.jsonl"))


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "events.jsonl")
    with pytest.raises(RunError, match=r"events\.jsonl: Not a regular file"):
        list(read_events(tmp_path / "events.jsonl"))


def test_a_full_disk_is_a_problem_and_closing_afterwards_is_quiet(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.symlink_to("/dev/full")
    sink = JsonlSink(path)
    sink.write(note(0))
    sink.flush()
    assert (sink.problem, sink.waiting, sink.lost, sink.written) == ("No space left on device", 1, 0, 0)
    sink.close()
    assert (sink.waiting, sink.lost) == (0, 1)
    sink.close()
    with pytest.raises(RunError, match="closed"):
        sink.flush()


LIMITED = """
import resource, sys
from pathlib import Path
from esper.leyline.events import Envelope, Note
from esper.nissa import JsonlSink, read_events

path = Path(sys.argv[1])
sink = JsonlSink(path)
for room in range(1, 3000, 41):  # every few bytes the disk is full, and then it is not
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    sink.write(Envelope(seq=room // 41, time=1.5, host=None, epoch=None, event=Note(text="x" * (room % 7))))
    sink.flush()
    content = path.read_bytes()
    assert len(content) == sink.written and content[-1:] in (b"", b"\\n"), "whole lines alone"
    assert sink.waiting == 0 or sink.problem == "File too large", sink.problem
    list(read_events(path))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
sink.close()
print(sink.lost, [envelope.seq for envelope in read_events(path)] == list(range(room // 41 + 1)))
"""


def test_a_file_that_may_not_grow_gets_whole_lines_and_all_of_them_in_the_end(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "events.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0 True\n", "")


def test_a_folder_that_is_not_there_is_a_run_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be opened"):
        JsonlSink(tmp_path / "none" / "events.jsonl")
