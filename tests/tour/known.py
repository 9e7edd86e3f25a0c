"""What is known not to work with a network, and why: by network, then by step."""

from __future__ import annotations

PAST_HOOKS = "its backward pass runs the parts of a layer past the layer's hooks, so a seed gets no gradient"

KNOWN: dict[str, dict[str, str]] = {
    "transformers/reformermodelwithlmhead": {"grows": PAST_HOOKS},
}
