"""A queue between a run and a sink, so that a sink that is slow, hangs or raises never holds up the training."""

from __future__ import annotations

import atexit
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from esper.leyline.events import Envelope
    from esper.nissa.hub import Sink

CAPACITY = 10_000
"""Events that may wait for a sink; what comes while so many wait is dropped."""
CLOSE_TIMEOUT = 10.0
"""Seconds that a sink has at the end to take what waits and to close."""
WAKE_AT = 500
"""Waiting events that wake a sink's thread before a flush does."""


class QueuedSink:
    """Hands the events of a run to a sink in a thread of the sink's own. No call waits for it but `close`, which gives up in time.

    What does not fit into the queue is dropped and counted. What the sink raises is raised here by the next call; it gets nothing more.
    """

    def __init__(self, sink: Sink, name: str = "", capacity: int = CAPACITY, close_timeout: float = CLOSE_TIMEOUT) -> None:
        self.sink, self.capacity, self.close_timeout = sink, capacity, close_timeout
        self.name = name or type(sink).__name__
        """What people know the sink by."""
        self.dropped = 0
        """Events that the sink will never see, because its queue was full."""
        self._waiting: deque[Envelope | None] = deque()  # None stands for a flush
        self._sent = self._taken = 0  # each has one thread that writes it, so their difference needs no lock
        self._failure: BaseException | None = None
        self._ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=f"esper sink {self.name}", daemon=True)
        self._thread.start()
        # Whoever never closes it, a Gardener without a run say, loses nothing: threads like this one die with the process.
        atexit.register(self._at_exit)

    def write(self, envelope: Envelope) -> None:
        """Queue an event, or count it as dropped."""
        self._raise_failure()
        if self._sent - self._taken >= self.capacity:
            self.dropped += 1
            return
        with self._changed:
            self._waiting.append(envelope)
            self._sent += 1
            if len(self._waiting) == WAKE_AT:
                self._changed.notify()

    def flush(self) -> None:
        """Ask for a flush, after what was queued before."""
        self._raise_failure()
        with self._changed:
            if not self._waiting or self._waiting[-1] is not None:  # one flush is as good as two
                self._waiting.append(None)
            self._changed.notify()

    def close(self) -> None:
        """Let the sink take what waits, and close it. Raises TimeoutError for one that takes too long, and leaves it behind."""
        atexit.unregister(self._at_exit)
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join(self.close_timeout)
        self._raise_failure()
        if self._thread.is_alive():
            left = self._sent - self._taken
            raise TimeoutError(f"it did not end within {self.close_timeout:g} s and was left behind, with {left} events to take")

    def _work(self) -> None:
        try:
            while (batch := self._next()) is not None:
                for item in batch:
                    if item is None:
                        self.sink.flush()
                    else:
                        self.sink.write(item)
                        self._taken += 1
            self.sink.close()
        except BaseException as error:  # whatever it is, it is for the thread that trains to report
            self._failure = error

    def _next(self) -> deque[Envelope | None] | None:
        """What waits, as soon as there is something; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or (self._waiting and (len(self._waiting) >= WAKE_AT or self._waiting[-1] is None)))
            batch, self._waiting = self._waiting, deque()
            return batch or None

    def _raise_failure(self) -> None:
        if self._failure is None:
            return
        atexit.unregister(self._at_exit)
        if isinstance(self._failure, Exception):
            raise self._failure
        raise RuntimeError(f"it ended with {type(self._failure).__name__}") from self._failure

    def _at_exit(self) -> None:
        with suppress(Exception):
            self.close()
