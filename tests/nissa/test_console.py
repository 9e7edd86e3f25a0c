"""Lines for people: the life of the seeds with host and epoch, nothing that only figures are made from."""

from __future__ import annotations

import dataclasses
import typing

import pytest

from esper.leyline.actions import Op
from esper.leyline.events import EVENT_TYPES, Envelope, Event, HostFinished, Note, Refused, RolledBack, StageChanged
from esper.leyline.stages import Stage
from esper.nissa import ConsoleSink, Hub, describe


def envelope(event: Event, host: int | None = 3, epoch: int | None = 12) -> Envelope:
    return Envelope(seq=0, time=0.0, host=host, epoch=epoch, event=event)


def changed(after: Stage) -> StageChanged:
    return StageChanged(slot="r0c1", before=Stage.HOLDING, after=after, cause="prune", blueprint="norm", parameters=1234)


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (changed(Stage.GERMINATED), "epoch 12, host 3: r0c1 norm (1,234 parameters) germinated (prune)"),
        (changed(Stage.FOSSILIZED), "epoch 12, host 3: r0c1 norm (1,234 parameters) fossilised (prune)"),
        (changed(Stage.PRUNED), "epoch 12, host 3: r0c1 norm (1,234 parameters) pruned (prune)"),
        (changed(Stage.RESETTING), None),
        (Refused(op=Op.ADVANCE, slot="r0c1", reason="G2"), "epoch 12, host 3: r0c1 ADVANCE refused: G2"),
        (RolledBack(reason="NaN", to_epoch=5, pruned=("a", "b")), "epoch 12, host 3: rolled back to epoch 5: NaN; pruned a, b"),
        (
            HostFinished(
                val_accuracy=91.5, test_accuracy=None, parameters=6418, germinated=3, fossilized=1, pruned=2, rollbacks=0
            ),
            "epoch 12, host 3: done: val 91.50, 6,418 parameters; 3 germinated, 1 fossilised, 2 pruned",
        ),
    ],
)
def test_a_line_says_when_which_host_which_slot_and_what(event: Event, line: str | None) -> None:
    assert describe(envelope(event)) == line


def test_an_event_of_the_whole_run_has_no_place_in_front() -> None:
    assert describe(envelope(Note(text="hello"), host=None, epoch=None)) == "hello"


def test_the_sink_writes_the_lines_and_nothing_for_the_rest() -> None:
    lines: list[str] = []
    hub = Hub(None, [ConsoleSink(lines.append)])
    for stage in (Stage.GERMINATED, Stage.TRAINING, Stage.PRUNED, Stage.EMBARGOED):
        hub.emit(changed(stage), host=0, epoch=1)
    hub.flush()
    hub.close()
    assert [line.split()[-2] for line in lines] == ["germinated", "pruned"]


@pytest.mark.parametrize("kind", sorted(EVENT_TYPES))
def test_every_kind_of_event_can_be_described(kind: str) -> None:
    examples = {str: "x", int: 1, float: 1.0, bool: True}
    fields = {}
    for field in dataclasses.fields(EVENT_TYPES[kind]):  # type: ignore[arg-type]
        hint = typing.get_type_hints(EVENT_TYPES[kind])[field.name]
        origin = typing.get_origin(hint)
        empty: object = () if origin is tuple else {} if origin is dict else None
        fields[field.name] = examples[hint] if hint in examples else empty if origin else next(iter(hint))
    line = describe(envelope(EVENT_TYPES[kind](**fields)))
    assert line is None or line.startswith("epoch 12, host 3: ")
