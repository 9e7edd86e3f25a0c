"""Policies that ship for as long as a test lasts, with cards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from esper.policies import POLICIES, shipped
from esper.tamiyo.policy.policy import Policy
from esper.tamiyo.policy.policy_file import save_policy
from tests.simic.runs import opinionated

CARD = """\
# {name}

## What it is

A recurrent policy that grows small networks.
It looks once per epoch, and waits most of the time.

## Trained on

Hosts of the family `digits`.

## For how long and at what cost

No time at all.

## Against every arm

On 8 hosts, points minus rent:

| arm | score | policy minus arm |
| --- | ---: | --- |
| `wait` | 60.0 | +1.0 [0.5, 1.5] |
| static-final | 61.0 | 0.0 [-0.5, 0.5] |

## Limits

It has learned nothing.

## Licence

MIT.
"""
"""A card with every heading that there has to be."""


def ship(folder: Path, name: str, policy: Policy | None = None) -> Path:
    """Write a policy and its card into a folder, and return the policy's file."""
    path = folder / f"{name}.safetensors"
    save_policy(policy or opinionated(), path, {"task": ["digits", "stdlib"], "rounds": 3})
    path.with_suffix(".md").write_text(CARD.format(name=name), encoding="utf-8")
    return path


@contextmanager
def shipping(folder: Path) -> Iterator[None]:
    """The policies in a folder are those that ship."""
    before = dict(POLICIES)
    POLICIES.clear()
    POLICIES.update(shipped(folder))
    try:
        yield
    finally:
        POLICIES.clear()
        POLICIES.update(before)
