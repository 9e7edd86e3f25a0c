"""What every kind of run shows of itself while it goes on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from esper.leyline.events import Envelope, RunStarted

if TYPE_CHECKING:
    from rich.console import RenderableType


class Scene(ABC):
    """One kind of run as it is seen so far."""

    unit: str
    """What a round is called."""

    def __init__(self, started: RunStarted) -> None:
        self.started = started

    @abstractmethod
    def headline(self) -> str:
        """What is being done, in a line."""

    def machine(self) -> str:
        """What trains the hosts, and why, as the end of a line; nothing where a loop of one's own does."""
        about = self.started.about
        return f"; {about['engine']} engine on {about['devices']}: {about['engine_why']}" if "engine" in about else ""

    @abstractmethod
    def see(self, envelope: Envelope) -> str | None:
        """Take an event; a line for one that a log should show at once."""

    @abstractmethod
    def line(self, round: int) -> str | None:
        """A round that is over, in a line; None for one that is not worth one."""

    def rewards(self, envelope: Envelope) -> str | None:
        """What an event says about rewards, in a line; None for one that says nothing."""
        return None

    def total(self) -> int:
        """Rounds in all, and whatever comes after them, in rounds."""
        return self.started.rounds

    @abstractmethod
    def body(self) -> list[RenderableType]:
        """All of it as tables and lines."""


def mean_of(values: Sequence[float]) -> float:
    return sum(values) / len(values)
