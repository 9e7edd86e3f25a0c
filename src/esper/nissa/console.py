"""A run in plain lines, for a terminal or a log: what happened to the seeds, to whom, and when."""

from __future__ import annotations

from collections.abc import Callable

from esper.leyline.events import (
    Envelope,
    Event,
    HostFinished,
    Note,
    Refused,
    RolledBack,
    RunFinished,
    RunStarted,
    SinkFailed,
    StageChanged,
)
from esper.leyline.stages import Stage

SHOWN_STAGES: dict[Stage, str] = {
    Stage.GERMINATED: "germinated",
    Stage.BLENDING: "is blending in",
    Stage.HOLDING: "is on probation",
    Stage.FOSSILIZED: "fossilised",
    Stage.PRUNED: "pruned",
}
"""Stages whose beginning is worth a line, and its words; the others follow from these by themselves."""


class ConsoleSink:
    """Gives a line to `write` for each event that a person wants to see as it happens.

    write: `print` by default; a progress bar passes its own, so that lines go above it.
    """

    def __init__(self, write: Callable[[str], object] = print) -> None:
        self._write = write

    def write(self, envelope: Envelope) -> None:
        """Show the event, if it is worth a line."""
        line = describe(envelope)
        if line is not None:
            self._write(line)

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Nothing is held."""


def describe(envelope: Envelope) -> str | None:
    """The event in one line, with its epoch and host in front; None for one that only figures are made from."""
    text = _words(envelope.event)
    if text is None:
        return None
    place = [f"{name} {index}" for name, index in (("epoch", envelope.epoch), ("host", envelope.host)) if index is not None]
    return f"{', '.join(place)}: {text}" if place else text


def _words(event: Event) -> str | None:
    match event:
        case RunStarted():
            return f"{event.command}: {event.hosts} x {event.task}, {event.epochs} epochs, seed {event.seed}"
        case RunFinished():
            return f"finished: {event.outcome}"
        case HostFinished():
            test = "" if event.test_accuracy is None else f", test {event.test_accuracy:.2f}"
            seeds = f"{event.germinated} germinated, {event.fossilized} fossilised, {event.pruned} pruned"
            return f"done: val {event.val_accuracy:.2f}{test}, {event.parameters:,} parameters; {seeds}"
        case StageChanged() if event.after in SHOWN_STAGES:
            return f"{event.slot} {event.blueprint} ({event.parameters:,} parameters) {SHOWN_STAGES[event.after]} ({event.cause})"
        case Refused():
            return f"{event.slot} {event.op.name} refused: {event.reason}"
        case RolledBack():
            pruned = f"; pruned {', '.join(event.pruned)}" if event.pruned else ""
            return f"rolled back to epoch {event.to_epoch}: {event.reason}{pruned}"
        case SinkFailed():
            return f"sink {event.sink} failed and is dropped: {event.error}"
        case Note():
            return event.text
    return None
