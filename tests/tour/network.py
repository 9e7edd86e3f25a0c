"""What the tour knows of one network: its name, the package it comes from, and how to build it small, with an input."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

Built = tuple[nn.Module, Any]
"""A model without trained weights, and an example input for it: a tensor, a tuple or a dict."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network that others wrote."""

    name: str
    package: str
    """The distribution that has it."""
    kind: str
    """What it is for, in a word or two: text, vision, audio."""
    make: Callable[[], Built]
    """Builds it small. Imports its package only here, so that the catalogue can be read without it."""
    also: tuple[str, ...] = ()
    """Distributions that it needs besides."""

    @property
    def full_name(self) -> str:
        """Its name with the package's in front."""
        return f"{self.package}/{self.name}"


def several(package: str, kind: str, made: Iterable[tuple[str, Callable[[], Built]]], also: tuple[str, ...] = ()) -> list[Network]:
    """Networks of one kind from one package."""
    return [Network(name=name, package=package, kind=kind, make=make, also=also) for name, make in made]
