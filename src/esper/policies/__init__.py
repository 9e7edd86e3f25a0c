"""Trained policies that ship with the package, and how they are found by their names. No torch is loaded here.

A policy is two files: `NAME-N.safetensors`, and `NAME-N.md`, its card. `tamiyo-1` names that very generation, `tamiyo` the newest one.
"""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parent
GENERATION = re.compile(r"([a-z][a-z0-9]*)-([1-9][0-9]*)")


def shipped(folder: Path = FOLDER) -> dict[str, Path]:
    """The files of the policies in a folder, by their exact names; of each name the oldest generation first."""
    found = [(match, path) for path in folder.glob("*.safetensors") if (match := GENERATION.fullmatch(path.stem))]
    return {path.stem: path for _, path in sorted(found, key=lambda each: (each[0][1], int(each[0][2])))}


POLICIES: dict[str, Path] = shipped()
"""The files of those that ship, by their exact names."""


def names() -> list[str]:
    """Every name that a policy which ships can be asked for by: those that mean the newest generation, then the exact ones."""
    return list(dict.fromkeys([*map(_family, POLICIES), *POLICIES]))


def exact_name(name: str) -> str | None:
    """The generation that a name means: `tamiyo-1` itself, and of `tamiyo` the newest. None where no policy ships under the name."""
    generations = [each for each in POLICIES if name in (each, _family(each))]
    return generations[-1] if generations else None


def _family(exact: str) -> str:
    return exact.rpartition("-")[0]
