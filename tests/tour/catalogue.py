"""All networks of the tour, in one list."""

from __future__ import annotations

from collections.abc import Sequence

from tests.tour.network import Network
from tests.tour.networks import images_made, others, torch_own, transformers_senses, transformers_text, vision

MODULES = (torch_own, transformers_text, transformers_senses, vision, images_made, others)

NETWORKS: list[Network] = [network for module in MODULES for network in module.NETWORKS]


def find(parts: Sequence[str]) -> list[Network]:
    """Networks whose package, kind or name holds one of these; all for none."""
    return [n for n in NETWORKS if not parts or any(part in f"{n.full_name}/{n.kind}" for part in parts)]


def named(name: str) -> Network:
    """The network of this package/name."""
    return next(n for n in NETWORKS if n.full_name == name)
