"""Trying out whether what grows at a place could be harvested, before anything grows there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from esper.kasmina.attach.running import call, evaluating, untouched
from esper.kasmina.attach.variation import Example
from esper.kasmina.fast_path import no_fast_path
from esper.kasmina.grafting import attach, grown_part, way_to
from esper.kasmina.outputs import difference
from esper.kasmina.slot import Place
from esper.leyline.actions import Style
from esper.leyline.errors import in_a_line

TOLERANCE = 1e-6
"""Largest difference, relative to the largest output, between the grown model and what is harvested from it."""


class _Identity(nn.Module):
    """A seed that does nothing but tell that it ran; its attributes would be put back, as the host's are."""

    def __init__(self, tell: Callable[[str], None], path: str) -> None:
        super().__init__()
        self.tell, self.path = tell, path

    def forward(self, h: Tensor) -> Tensor:
        self.tell(self.path)
        return h


def unharvestable(model: nn.Module, example: Example, places: Sequence[Place]) -> dict[str, str]:
    """Those of the places where nothing that grows could be harvested, by path, and why. The model is left exactly as it was.

    Parts that do nothing are hung in all places at once, as a harvest does; while something is wrong, in halves of them.
    """
    with no_fast_path():
        expected = outcome(model, example)
    accepted: list[Place] = []
    refused: dict[str, str] = {}

    def visit(group: Sequence[Place]) -> None:
        why = _objection(model, example, [*accepted, *group], expected)
        if why is None:
            accepted.extend(group)
        elif len(group) == 1:
            refused[group[0].path] = why
        else:
            visit(group[: len(group) // 2])
            visit(group[len(group) // 2 :])

    if places:
        visit(places)
    return refused


def outcome(model: nn.Module, example: Example) -> Any:
    """The model's output for its example, in eval mode, from the present random state, which stays."""
    with untouched(model), evaluating(model):
        return call(model, example)


def is_repeatable(model: nn.Module, example: Example) -> bool:
    """Whether the model gives the same output twice: one with random numbers of its own, or a clock, cannot be compared with anything."""
    return difference(outcome(model, example), outcome(model, example)) <= TOLERANCE


def _objection(model: nn.Module, example: Example, places: Sequence[Place], expected: Any) -> str | None:
    """Why the model cannot have parts in all these places; None when it can."""
    ran: list[str] = []
    detachments = []
    try:
        for place in places:
            way = way_to(model, place.path)
            part = grown_part(way, place, _Identity(ran.append, place.path), None, Style.LINEAR_ADD, 1.0)
            detachments.append(attach(model, place.path, way, part))
        with no_fast_path():
            found = outcome(model, example)
    except Exception as error:
        return f"the network does not run once something has grown there ({in_a_line(error)})"
    finally:
        for detach in reversed(detachments):
            detach()
    for place in places:
        times = ran.count(place.path)
        if times != place.calls:
            ran_too = f"what has grown at {place.path!r} would run {times} times in one forward pass, not {place.calls}"
            return f"{ran_too}, as the network runs what is inside by itself"
    apart = difference(expected, found)
    if apart <= TOLERANCE or not is_repeatable(model, example):
        return None
    return f"the network's output changes by {apart:.2e} once anything has grown there, even what does nothing"
