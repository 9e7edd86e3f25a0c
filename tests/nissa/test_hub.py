"""The hub: numbers without gaps, sinks and disks that may fail, and going back to a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.errors import EventError, RunError
from esper.leyline.events import Envelope, Note, SinkFailed
from esper.nissa import BEGINNING, Hub, JsonlSink, read_events


class Collector:
    """A sink that keeps what it gets, and raises at one of its calls when told to."""

    def __init__(self, fails_at: str = "") -> None:
        self.fails_at = fails_at
        self.got: list[Envelope] = []
        self.closed = False

    def write(self, envelope: Envelope) -> None:
        assert not self.closed
        self.got.append(envelope)
        self._fail("write")

    def flush(self) -> None:
        self._fail("flush")

    def close(self) -> None:
        self.closed = True
        self._fail("close")

    def _fail(self, at: str) -> None:
        if self.fails_at == at:
            raise OSError("cable pulled")


class Stubborn(Collector):
    """A second kind of sink, to tell two by their names."""


def at(hub: Hub) -> dict[str, int]:
    """Where a hub's record stands, without what its detectors remember."""
    return {name: value for name, value in hub.position().items() if name != "detectors"}


def identities(path: Path) -> list[str]:
    return [envelope.identity() for envelope in read_events(path)]


def test_every_sink_gets_every_event_with_its_place_and_number(tmp_path: Path) -> None:
    one, two = Collector(), Collector()
    hub = Hub(JsonlSink(tmp_path / "events.jsonl"), [one, two])
    for index in range(3):
        hub.emit(Note(text=str(index)), host=index, epoch=7)
    hub.close()
    assert one.got == two.got == list(read_events(tmp_path / "events.jsonl"))
    assert [(e.seq, e.host, e.epoch) for e in one.got] == [(0, 0, 7), (1, 1, 7), (2, 2, 7)]
    assert one.closed
    assert two.closed


@pytest.mark.parametrize("moment", ["write", "flush", "close"])
def test_a_sink_that_raises_is_reported_once_and_dropped_while_the_others_go_on(tmp_path: Path, moment: str) -> None:
    healthy, broken, told = Collector(), Stubborn(fails_at=moment), list[str]()
    hub = Hub(JsonlSink(tmp_path / "events.jsonl"), [broken, healthy], log=told.append)
    for text in "ab":
        hub.emit(Note(text=text))
        hub.flush()
    hub.close()
    recorded = [envelope.event for envelope in read_events(tmp_path / "events.jsonl")]
    assert [event for event in recorded if isinstance(event, SinkFailed)] == [SinkFailed(sink="Stubborn", error="OSError: cable pulled")]
    assert [event for event in recorded if isinstance(event, Note)] == [Note(text="a"), Note(text="b")]
    assert [envelope.event for envelope in healthy.got] == (recorded[:-1] if moment == "close" else recorded)
    assert told == ["sink Stubborn failed and is dropped; the run goes on without it (OSError: cable pulled)"]
    assert len(broken.got) == (1 if moment != "close" else 2)


def test_two_sinks_that_fail_at_once_are_both_reported_and_neither_is_told(tmp_path: Path) -> None:
    one, two = Collector(fails_at="write"), Stubborn(fails_at="write")
    hub = Hub(JsonlSink(tmp_path / "events.jsonl"), [one, two], log=lambda text: None)
    hub.emit(Note(text="a"))
    hub.close()
    failed = [envelope.event.sink for envelope in read_events(tmp_path / "events.jsonl") if isinstance(envelope.event, SinkFailed)]
    assert failed == ["Collector", "Stubborn"]
    assert len(one.got) == len(two.got) == 1


def test_a_dropped_sink_is_logged_where_no_log_was_given(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Hub(None, [Collector(fails_at="write")]).emit(Note(text="a"))
    assert "sink Collector failed" in caplog.text


def disk(path: Path) -> None:
    """A journal whose disk is full."""
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/full")


def test_a_full_disk_is_told_of_once_and_stops_nothing(tmp_path: Path) -> None:
    disk(tmp_path / "events.jsonl")
    display, told = Collector(), list[str]()
    hub = Hub(JsonlSink(tmp_path / "events.jsonl"), [display], log=told.append)
    for text in "abc":
        hub.emit(Note(text=text))
        hub.flush()
    position = hub.position()
    hub.close()
    waits = "events cannot be written (No space left on device): they wait in memory and are tried again; the run goes on"
    ends = "the disk does not take events (No space left on device), and no more can wait: 3 are lost, and the record ends here"
    assert told == [waits, ends]
    assert [envelope.event for envelope in display.got] == [Note(text=text) for text in ("a", waits, "b", "c", ends)]
    assert (position["seq"], position["kept_seq"], position["kept_offset"]) == (3, 0, 0)


def test_a_record_beyond_its_bound_ends_where_the_file_does_and_a_resumed_run_goes_on_from_there(tmp_path: Path) -> None:
    path, told = tmp_path / "events.jsonl", list[str]()
    hub = Hub(JsonlSink(path))
    hub.emit(Note(text="kept"))
    hub.close()
    hub = Hub(Full(path, most_waiting=300), log=told.append)
    for index in range(10):
        hub.emit(Note(text=str(index)))
        hub.flush()
    position = hub.position()
    hub.close()
    assert (position["seq"], position["offset"]) == (1, path.stat().st_size)
    assert "kept_seq" not in position
    assert len(told) == 2
    assert "are lost, and the record ends here" in told[1]
    hub = Hub(JsonlSink(path))
    hub.restore(position)
    hub.emit(Note(text="again"))
    hub.close()
    assert [envelope.event for envelope in read_events(path)] == [Note(text="kept"), Note(text="again")]


class Full(JsonlSink):
    """A journal on a disk that takes nothing, until it is told to."""

    full = True

    def _append(self, descriptor: int, content: bytes) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        super()._append(descriptor, content)


@pytest.mark.parametrize("written", [False, True])
def test_events_that_waited_when_a_checkpoint_was_saved_are_kept_if_they_came_to_the_disk(tmp_path: Path, written: bool) -> None:
    path, told = tmp_path / "events.jsonl", list[str]()
    journal = Full(path)
    hub = Hub(journal, log=told.append)
    for text in "ab":
        hub.emit(Note(text=text))
    position = hub.position()
    journal.full = not written
    hub.emit(Note(text="after the checkpoint"))
    hub.close()
    assert told[1:] == (["the disk takes events again; none was lost"] if written else told[1:])
    hub = Hub(JsonlSink(path), log=told.append)
    hub.restore(position)
    hub.emit(Note(text="c"))
    hub.close()
    assert [envelope.event for envelope in read_events(path)] == [Note(text=text) for text in ("abc" if written else "c")]
    assert ("2 events before the checkpoint are missing from the record" in told[-1]) is not written


def test_an_event_of_the_wrong_type_uses_up_no_number(tmp_path: Path) -> None:
    hub = Hub(JsonlSink(tmp_path / "events.jsonl"))
    with pytest.raises(EventError):
        hub.emit(Note(text=3))  # type: ignore[arg-type]
    hub.emit(Note(text="a"))
    hub.close()
    assert [envelope.seq for envelope in read_events(tmp_path / "events.jsonl")] == [0]


def test_a_second_hub_goes_on_with_the_numbers_of_the_first(tmp_path: Path) -> None:
    for text in "abc":
        hub = Hub(JsonlSink(tmp_path / "events.jsonl"))
        hub.emit(Note(text=text))
        hub.close()
    assert [envelope.seq for envelope in read_events(tmp_path / "events.jsonl")] == [0, 1, 2]


def test_what_a_position_names_is_in_the_file(tmp_path: Path) -> None:
    hub = Hub(JsonlSink(tmp_path / "events.jsonl"))
    hub.emit(Note(text="a"))
    assert at(hub) == {"seq": 1, "offset": (tmp_path / "events.jsonl").stat().st_size}
    hub.close()


@given(before=st.integers(0, 4), lost=st.integers(0, 4), flushed=st.booleans(), torn=st.integers(0, 40))
def test_after_going_back_to_a_checkpoint_each_event_is_there_exactly_once(
    tmp_path_factory: pytest.TempPathFactory, before: int, lost: int, flushed: bool, torn: int
) -> None:
    folder = tmp_path_factory.mktemp("restore")
    straight, resumed = folder / "straight.jsonl", folder / "resumed.jsonl"
    hub = Hub(JsonlSink(straight))
    for index in range(before + 5):
        hub.emit(Note(text=str(index)), epoch=index)
    hub.close()

    hub = Hub(JsonlSink(resumed))
    for index in range(before):
        hub.emit(Note(text=str(index)), epoch=index)
    position = hub.position()
    for index in range(before, before + lost):
        hub.emit(Note(text=str(index)), epoch=index)
    if flushed:
        hub.flush()
    with resumed.open("ab") as file:  # a kill in the middle of a write
        file.write(b'{"v":1,"seq":99,"time":1.0,"host":null,"epoch":'[:torn])
    hub = Hub(JsonlSink(resumed))
    hub.restore(position)
    for index in range(before, before + 5):
        hub.emit(Note(text=str(index)), epoch=index)
    hub.close()
    assert identities(resumed) == identities(straight)


def test_the_beginning_starts_the_record_anew(tmp_path: Path) -> None:
    hub = Hub(JsonlSink(tmp_path / "events.jsonl"))
    hub.emit(Note(text="old"))
    hub.flush()
    hub.restore(BEGINNING)
    hub.emit(Note(text="new"))
    hub.close()
    assert [envelope.event for envelope in read_events(tmp_path / "events.jsonl")] == [Note(text="new")]


@pytest.mark.parametrize("wrong", [{"offset": 0}, {"offset": 3}, {"offset": 9999}, {"seq": 5}])
def test_a_position_of_another_journal_is_refused_and_changes_nothing(tmp_path: Path, wrong: dict[str, int]) -> None:
    hub = Hub(JsonlSink(tmp_path / "events.jsonl"))
    hub.emit(Note(text="a"))
    end = hub.position()
    with pytest.raises(RunError, match="edited or belongs to another run"):
        hub.restore({**end, **wrong})
    assert hub.position() == end
    hub.close()


def test_switched_off_nothing_is_emitted_and_a_position_is_kept(tmp_path: Path) -> None:
    hub = Hub()
    hub.emit(Note(text="a"))
    hub.flush(fsync=True)
    assert not hub.on
    assert at(hub) == {"seq": 0, "offset": 0}
    hub.restore({"seq": 3, "offset": 70, "detectors": None})
    hub.emit(Note(text="a"))
    assert at(hub) == {"seq": 3, "offset": 70}
    hub.close()
    assert list(tmp_path.iterdir()) == []
