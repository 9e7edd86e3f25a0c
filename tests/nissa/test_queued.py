"""A sink with a queue: in order, never in the way, and honest about what it missed."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.events import Envelope, Note, SinkBehind, SinkFailed
from esper.nissa import Hub, JsonlSink, QueuedSink, read_events


def note(seq: int) -> Envelope:
    return Envelope(seq=seq, time=1.5, host=None, epoch=None, event=Note(text=str(seq)))


class Slow:
    """A sink that stands still until it is let go on, and fails or ends where it is told to."""

    def __init__(self, fails: BaseException | None = None) -> None:
        self.fails = fails
        self.goes_on = threading.Event()
        self.got: list[int] = []
        self.did: list[str] = []

    def write(self, envelope: Envelope) -> None:
        self.goes_on.wait()
        self.got.append(envelope.seq)
        self.did.append("write")
        if self.fails is not None:
            raise self.fails

    def flush(self) -> None:
        self.did.append("flush")

    def close(self) -> None:
        self.did.append("close")


@given(steps=st.lists(st.one_of(st.integers(1, 30), st.just("flush"), st.just("go on")), max_size=12), capacity=st.integers(1, 40))
def test_what_a_sink_gets_is_in_order_and_the_rest_is_counted(steps: list[int | str], capacity: int) -> None:
    sink = Slow()
    queued, sent = QueuedSink(sink, capacity=capacity), 0
    for step in steps:
        if step == "flush":
            queued.flush()
        elif step == "go on":
            sink.goes_on.set()
        else:
            for _ in range(int(step)):
                queued.write(note(sent))
                sent += 1
    stood_still = not sink.goes_on.is_set()
    sink.goes_on.set()
    queued.close()
    assert sink.got == sorted(set(sink.got))
    assert len(sink.got) + queued.dropped == sent
    assert sink.did[-1] == "close"
    if stood_still:
        assert len(sink.got) == min(sent, capacity)


def test_a_sink_gets_what_waits_at_a_flush_and_then_the_flush() -> None:
    sink = Slow()
    sink.goes_on.set()
    queued = QueuedSink(sink)
    for seq in range(3):
        queued.write(note(seq))
    queued.flush()
    queued.close()
    assert sink.did == ["write", "write", "write", "flush", "close"]


def test_a_sink_that_hangs_is_left_behind_and_everything_else_is_recorded(tmp_path: Path) -> None:
    hanging, told = Slow(), list[str]()
    hub = Hub(JsonlSink(tmp_path / "events.jsonl"), [QueuedSink(hanging, "stuck", capacity=5, close_timeout=0.05)], log=told.append)
    for index in range(20):
        hub.emit(Note(text=str(index)))
        hub.flush()
    hub.close()
    hanging.goes_on.set()
    recorded = [envelope.event for envelope in read_events(tmp_path / "events.jsonl")]
    assert [event for event in recorded if isinstance(event, Note)] == [Note(text=str(index)) for index in range(20)]
    # Once when it began, the events that said so included, and in all at the end.
    assert [event for event in recorded if isinstance(event, SinkBehind)] == [
        SinkBehind(sink="stuck", dropped=1),
        SinkBehind(sink="stuck", dropped=16),
    ]
    failed = [event for event in recorded if isinstance(event, SinkFailed)]
    assert failed == [
        SinkFailed(sink="stuck", error="TimeoutError: it did not end within 0.05 s and was left behind, with 5 events to take")
    ]
    assert len(told) == 3


@pytest.mark.parametrize(
    ("raised", "said"), [(OSError("cable pulled"), "OSError: cable pulled"), (SystemExit(3), "RuntimeError: it ended with SystemExit")]
)
def test_what_a_sink_raises_is_reported_by_the_hub_which_drops_it(tmp_path: Path, raised: BaseException, said: str) -> None:
    broken = Slow(fails=raised)
    queued = QueuedSink(broken)
    hub = Hub(JsonlSink(tmp_path / "events.jsonl"), [queued], log=lambda text: None)
    hub.emit(Note(text="a"))
    hub.flush()
    broken.goes_on.set()
    queued._thread.join()
    hub.emit(Note(text="b"))
    hub.emit(Note(text="c"))
    hub.close()
    assert broken.got == [0]
    kinds = [envelope.event for envelope in read_events(tmp_path / "events.jsonl")]
    assert kinds == [Note(text="a"), Note(text="b"), SinkFailed(sink="Slow", error=said), Note(text="c")]


def test_a_process_that_ends_without_closing_hands_over_what_waits() -> None:
    program = """
from esper.leyline.events import Envelope, Note
from esper.nissa import QueuedSink

class Printing:
    def write(self, envelope):
        print(envelope.seq)
    def flush(self): ...
    def close(self):
        print("closed")

sink = QueuedSink(Printing())
for seq in range(3):
    sink.write(Envelope(seq=seq, time=1.5, host=None, epoch=None, event=Note(text="")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0\n1\n2\nclosed\n", "")
