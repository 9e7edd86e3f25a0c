"""The lives of a host's seeds, put together while they are lived."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from esper.leyline.actions import Decision, Op
from esper.leyline.events import Event, SeedLife, StageChanged
from esper.leyline.reports import SeedReport
from esper.leyline.stages import BLENDED, Stage

Lives = tuple[SeedLife, ...]
"""In the order of their births. One with no end yet counts as unfinished, and ends where the host has come to."""


def measured(lives: Lives, epoch: int, seeds: Iterable[SeedReport]) -> Lives:
    """The lives after an epoch was measured."""
    found = {seed.slot: seed for seed in seeds}

    def grown(life: SeedLife) -> SeedLife:
        if life.outcome != "unfinished":
            return life
        seed = found.get(life.slot)
        known = seed is not None and seed.stage in BLENDED and seed.contribution is not None
        return replace(life, ended=epoch, contribution=seed.contribution if seed is not None and known else life.contribution)

    return tuple([grown(life) for life in lives])


def happened(lives: Lives, epoch: int, events: Iterable[Event], decision: Decision | None = None) -> Lives:
    """The lives after these events of an epoch, which the decision brought about where there was one."""
    for event in events:
        if not isinstance(event, StageChanged):
            continue
        if event.after is Stage.GERMINATED:
            style = decision.style.name if decision is not None and decision.op is Op.GERMINATE else ""
            born = SeedLife(
                slot=event.slot,
                blueprint=event.blueprint,
                style=style,
                born=epoch,
                ended=epoch,
                outcome="unfinished",
                contribution=None,
                parameters=event.parameters,
            )
            lives = (*lives, born)
        elif event.after is Stage.FOSSILIZED:
            lives = tuple([replace(each, ended=epoch, outcome="fossilized") if _is(each, event.slot) else each for each in lives])
        elif event.after is Stage.PRUNED:
            lives = tuple([replace(each, ended=epoch, outcome="pruned") if _is(each, event.slot) else each for each in lives])
    return lives


def _is(life: SeedLife, slot: str) -> bool:
    return life.slot == slot and life.outcome == "unfinished"
