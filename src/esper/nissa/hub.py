"""The hub: every event of a run passes here, gets its number and goes to the journal and to the other sinks.

Nothing that listens can stop the run. The journal is the record that the run is judged by: what the disk does not take waits, and the
hub says so once. Any other sink is a convenience: one that raises is reported once and dropped; one that is too slow for its queue
misses events, which is reported when it begins and in all at the end.

A hub that nobody listens to costs nothing; where an event takes work to build, ask `hub.on` first:

    if hub.on:
        hub.emit(Note(text="..."), host=3, epoch=12)

How much is recorded is the config's to say. Whoever emits asks `hub.tells` whether anything of a play is wanted, and `hub.details` for
which of its hosts the whole is; what goes beyond the level of the journal is for the other sinks alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from esper.leyline.errors import RunError
from esper.leyline.events import Envelope, Event, Note, SinkBehind, SinkFailed
from esper.nissa.anomalies import Detectors
from esper.nissa.config import MINIMAL, THINNED_ROUNDS, TelemetryConfig
from esper.nissa.jsonl import JsonlSink
from esper.nissa.queued import QueuedSink

BEGINNING: Mapping[str, Any] = MappingProxyType({"seq": 0, "offset": 0, "detectors": None})
"""The position before the first event."""


@runtime_checkable
class Sink(Protocol):
    """Something that events are sent to."""

    def write(self, envelope: Envelope) -> None:
        """Take one event; it may be held back until `flush`."""

    def flush(self) -> None:
        """Pass on what was held back."""

    def close(self) -> None:
        """Pass on what was held back and let go of everything."""


class Hub:
    """Numbers events without gaps and hands each to every sink.

    journal: the run's own record; None where nothing is to be resumed or analysed later.
    sinks: whoever else listens.
    log: is told, in a sentence, when a sink was dropped or is behind, and when the disk fails.
    config: how much is recorded.
    """

    def __init__(
        self,
        journal: JsonlSink | None = None,
        sinks: Sequence[Sink] = (),
        log: Callable[[str], None] | None = None,
        config: TelemetryConfig | None = None,
    ) -> None:
        self.config = config or TelemetryConfig()
        self._journal = journal
        self._sinks = list(sinks)
        self._log = log or logging.getLogger("esper").warning
        self._seq = 0 if journal is None else journal.next_seq()
        self._position = {"seq": 0, "offset": 0}
        """Without a journal: what `restore` was given."""
        self._recording = True
        self._detectors = Detectors(self.config.anomalies)
        self._behind: dict[int, int] = {}
        """By the identities of sinks that are too slow: the dropped events that were reported."""
        self._remarked: set[str] = set()
        self._disk = ""
        """What was last said of a disk that fails; empty while it does not."""

    @property
    def on(self) -> bool:
        """Whether anybody wants events."""
        return self._journal is not None or bool(self._sinks)

    @property
    def recorded(self) -> bool:
        """Whether there is a journal."""
        return self._journal is not None

    @property
    def full(self) -> bool:
        """Whether the record has reached its size, and is thinned."""
        return self._seq >= self.config.events

    @property
    def observes(self) -> bool:
        """Whether what decisions are made on is wanted too."""
        return self.recorded and self.config.at_least("debug")

    def tells(self, round: int) -> bool:
        """Whether anything of the hosts of a round is wanted: their beginning, course and end."""
        return self.on and (not self.full or round % THINNED_ROUNDS == 0)

    def details(self, round: int, place: int) -> bool:
        """Whether the host at that place among those of a round is told of in full."""
        if not self.tells(round) or not (self._sinks or self.config.at_least("normal")):
            return False
        return place == 0 if self.full else place < self.config.hosts or self.config.at_least("debug")

    def emit(self, event: Event, host: int | None = None, epoch: int | None = None) -> None:
        """Record an event; `host` is an index, None for the run as a whole."""
        if not self.on:
            return
        envelope = Envelope(seq=self._seq, time=time.time(), host=host, epoch=epoch, event=event)
        if self._recording and (type(event) in MINIMAL or self._journal is None or self.config.at_least("normal")):
            if self._journal is not None:
                self._journal.write(envelope)
            self._seq += 1
        if self._sinks:
            self._each(lambda sink: sink.write(envelope))
        if self._recording and self._seq == self.config.events and envelope.seq < self._seq:
            kept = f"one host of every {THINNED_ROUNDS}th round is recorded in full, and none of the others"
            self.emit(Note(text=f"the record has reached its {self.config.events:,} events: from here on {kept}"))
        if self._recording:
            for anomaly in self._detectors.see(envelope):
                self.emit(anomaly, host=host, epoch=epoch)

    def flush(self, fsync: bool = False) -> None:
        """Pass on what the sinks hold back; to be called at the end of each epoch. `fsync` brings the journal down to the disk."""
        self._each(lambda sink: sink.flush())
        for sink in self._sinks:
            if isinstance(sink, QueuedSink) and sink.dropped and id(sink) not in self._behind:
                self._tell_behind(sink)
        if self._journal is not None:
            self._journal.flush(fsync)
            self._tell_disk(self._journal)

    def position(self) -> dict[str, Any]:
        """Where the record stands, for a checkpoint. What came before is on the disk when this returns, if the disk takes it.

        seq: number of the next event. offset: bytes of the journal up to here. Without a journal it is where the record was left, so that a
        run that is recorded again goes on there. kept_seq, kept_offset: the same for what is in the file, where events wait for the disk.
        detectors: what is remembered of the record to tell anomalies by.
        """
        self.flush(fsync=True)
        return {**self._place(), "detectors": self._detectors.state()}

    def _place(self) -> dict[str, int]:
        journal = self._journal
        if journal is None:
            return self._position
        kept = {"seq": self._seq - journal.waiting - journal.lost, "offset": journal.written}
        if journal.lost:
            return kept  # the record ends there
        waits = {f"kept_{name}": value for name, value in kept.items()} if journal.waiting else {}
        return {"seq": self._seq, "offset": journal.offset, **waits}

    def restore(self, position: Mapping[str, Any]) -> None:
        """Go back to where a checkpoint was saved: what was recorded after it is cut off, because it is about to happen again.

        `BEGINNING` starts the record anew. Events that waited for the disk when the checkpoint was saved, and never came to be written, are
        lost: the numbers go on after those that were. Raises RunError, and changes nothing, when the journal is not the one of that
        checkpoint.
        """
        seq, offset = position["seq"], position["offset"]
        lost = 0
        if self._journal is not None:
            if "kept_offset" in position and position["kept_offset"] <= self._journal.written < offset:
                offset = self._journal.written
                found = self._journal.next_seq(offset)
                lost, seq = seq - found, found if position["kept_seq"] <= found <= seq else seq
            else:
                found = self._journal.next_seq(offset)
            if found != seq:
                raise RunError(
                    f"{self._journal.path} holds {found} events up to byte {offset} where the checkpoint counted {seq}: "
                    "it was edited or belongs to another run"
                )
            self._journal.truncate_to(offset)
        self._seq, self._position = seq, {"seq": seq, "offset": offset}
        self._detectors = Detectors(self.config.anomalies)
        if position["detectors"] is not None:
            self._detectors.load_state(position["detectors"])
        if lost:
            self.remark(f"{lost:,} events before the checkpoint are missing from the record: the disk did not take them")

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """What is emitted in here goes to the sinks and not into the journal: what it says happened before, and is there already."""
        before, self._recording = self._recording, False
        try:
            yield
        finally:
            self._recording = before

    def remark(self, text: str, once: str = "") -> None:
        """Tell people something about this process and its machine. It goes to the log and to sinks, and not into the record of the run.

        once: what it is about; of all remarks about the same only the first is told.
        """
        if once in self._remarked:
            return
        self._remarked |= {once} if once else set()
        self._log(text)
        with self.unrecorded():
            self.emit(Note(text=text))

    def close(self) -> None:
        """Pass on what is held back and let go of every sink. Those with a queue come first: how they ended is told to the others."""
        self._close([sink for sink in self._sinks if isinstance(sink, QueuedSink)])
        if self._journal is not None and not self._journal.closed:
            self._journal.flush()
            self._tell_disk(self._journal, last=True)
        self._close(self._sinks)
        if self._journal is not None:
            self._journal.close()

    def _close(self, sinks: Sequence[Sink]) -> None:
        self._each(lambda sink: sink.close(), sinks, keep=False)
        for sink in sinks:
            if isinstance(sink, QueuedSink) and sink.dropped > self._behind.get(id(sink), 0):
                self._tell_behind(sink)

    def _each(self, call: Callable[[Sink], None], sinks: Sequence[Sink] | None = None, keep: bool = True) -> None:
        """Call each of these sinks, by default all, and report those that raise. They are dropped; unless `keep`, so are the others."""
        sinks = self._sinks if sinks is None else sinks
        failures: list[tuple[Sink, Exception]] = []
        for sink in sinks:
            try:
                call(sink)
            except Exception as error:  # whatever a sink does must not end the training
                failures.append((sink, error))
        # All are gone before the first is reported, so that none is told of its own failure.
        gone = {id(sink) for sink, _ in failures} if keep else {id(sink) for sink in sinks}
        if gone:
            self._sinks = [sink for sink in self._sinks if id(sink) not in gone]
        for sink, failure in failures:
            name = sink.name if isinstance(sink, QueuedSink) else type(sink).__name__
            text = f"{type(failure).__name__}: {failure}"
            self._log(f"sink {name} failed and is dropped; the run goes on without it ({text})")
            self.emit(SinkFailed(sink=name, error=text))

    def _tell_behind(self, sink: QueuedSink) -> None:
        self._behind[id(sink)] = sink.dropped
        self._log(f"sink {sink.name} is too slow: {sink.dropped:,} events dropped; the journal has them")
        self.emit(SinkBehind(sink=sink.name, dropped=sink.dropped))

    def _tell_disk(self, journal: JsonlSink, last: bool = False) -> None:
        """Say once that the disk fails, once that it is over, and what is lost."""
        said = ""
        if journal.lost or (last and journal.waiting):
            if self._disk == "ended":
                return
            lost, self._disk = journal.lost + journal.waiting, "ended"
            said = f"the disk does not take events ({journal.problem}), and no more can wait: {lost:,} are lost, and the record ends here"
        elif journal.problem and not self._disk:
            said = f"events cannot be written ({journal.problem}): they wait in memory and are tried again; the run goes on"
            self._disk = "waits"
        elif not journal.problem and self._disk == "waits":
            said, self._disk = "the disk takes events again; none was lost", ""
        if said:
            self.remark(said)
