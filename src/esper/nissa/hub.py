"""The hub: every event of a run passes here, gets its number and goes to the journal and to the other sinks.

The journal is the record that the run is judged by, so a run that cannot write it stops with a RunError. Any other sink is a
convenience: one that raises is reported once and dropped, and the run goes on.

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
from esper.leyline.events import Envelope, Event, Note, SinkFailed
from esper.nissa.anomalies import Detectors
from esper.nissa.config import MINIMAL, THINNED_ROUNDS, TelemetryConfig
from esper.nissa.jsonl import JsonlSink

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
    log: is told, in a sentence, when a sink was dropped.
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
            self._each("write", lambda sink: sink.write(envelope))
        if self._recording and self._seq == self.config.events and envelope.seq < self._seq:
            kept = f"one host of every {THINNED_ROUNDS}th round is recorded in full, and none of the others"
            self.emit(Note(text=f"the record has reached its {self.config.events:,} events: from here on {kept}"))
        if self._recording:
            for anomaly in self._detectors.see(envelope):
                self.emit(anomaly, host=host, epoch=epoch)

    def flush(self, fsync: bool = False) -> None:
        """Pass on what the sinks hold back; to be called at the end of each epoch. `fsync` brings the journal down to the disk."""
        self._each("flush", lambda sink: sink.flush())
        if self._journal is not None:
            self._journal.flush(fsync)

    def position(self) -> dict[str, Any]:
        """Where the record stands, for a checkpoint. What came before is on the disk when this returns.

        seq: number of the next event. offset: bytes of the journal up to here. Without a journal it is where the record was left, so that a
        run that is recorded again goes on there. detectors: what is remembered of it to tell anomalies by.
        """
        self.flush(fsync=True)
        position = self._position if self._journal is None else {"seq": self._seq, "offset": self._journal.offset}
        return {**position, "detectors": self._detectors.state()}

    def restore(self, position: Mapping[str, Any]) -> None:
        """Go back to where a checkpoint was saved: what was recorded after it is cut off, because it is about to happen again.

        `BEGINNING` starts the record anew. Raises RunError, and changes nothing, when the journal is not the one of that checkpoint.
        """
        seq, offset = position["seq"], position["offset"]
        if self._journal is not None:
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

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """What is emitted in here goes to the sinks and not into the journal: what it says happened before, and is there already."""
        self._recording = False
        try:
            yield
        finally:
            self._recording = True

    def close(self) -> None:
        """Pass on what is held back and let go of every sink."""
        self._each("close", lambda sink: sink.close(), keep=False)
        if self._journal is not None:
            self._journal.close()

    def _each(self, action: str, call: Callable[[Sink], None], keep: bool = True) -> None:
        failures: list[tuple[Sink, Exception]] = []
        for sink in self._sinks:
            try:
                call(sink)
            except Exception as error:  # whatever a sink does must not end the training
                failures.append((sink, error))
        # All are gone before the first is reported, so that none is told of its own failure.
        self._sinks = [sink for sink in self._sinks if keep and all(sink is not failed for failed, _ in failures)]
        for sink, failure in failures:
            name, text = type(sink).__name__, f"{type(failure).__name__}: {failure}"
            self._log(f"sink {name} failed to {action} and is dropped; the run goes on without it ({text})")
            self.emit(SinkFailed(sink=name, error=text))
