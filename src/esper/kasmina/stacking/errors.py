"""Why something cannot be stacked."""

from __future__ import annotations


class Unstackable(Exception):
    """This model cannot be one of many in one program; the message says why, and begins with the module's path once that is known."""


class UnstackableSeed(Unstackable):
    """Seeds of a blueprint cannot be stacked at a slot."""

    def __init__(self, slot: str, blueprint: str, reason: str) -> None:
        super().__init__(f"the blueprint {blueprint!r} at slot {slot!r}: {reason}")
        self.slot, self.blueprint = slot, blueprint
