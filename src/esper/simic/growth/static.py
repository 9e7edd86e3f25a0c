"""Networks that do not grow, as large from the first step on as seeds could make them: what growth is compared with."""

from __future__ import annotations

from collections.abc import Sequence

from esper.kasmina import Growable
from esper.kasmina.blueprints import names, parameter_count
from esper.leyline.actions import Planted


def sized(model: Growable, size: float, slots: Sequence[str], most: int | None) -> list[Planted]:
    """The seeds of a network of that size: in every slot the blueprint whose rank by parameters is that share of the way from none to the
    largest, so that 0 is the bare host.

    slots: those that may be used, of which the first `most` are.
    """
    planted = []
    for slot in slots[:most]:
        shape = model.slots[slot].place.shape
        ranked = sorted(names(shape.topology), key=lambda name: (parameter_count(name, shape), name))
        rank = round(size * len(ranked))
        if rank:
            planted.append(Planted(slot=slot, blueprint=ranked[rank - 1]))
    return planted
