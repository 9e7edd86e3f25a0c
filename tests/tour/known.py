"""What is known not to work with a network, and why: by network, then by step."""

from __future__ import annotations

LATE_HOOKS = "the model reads hidden states by hooks of its own, which are in another order in what is harvested"
PAST_HOOKS = "its backward pass runs the parts of a layer past the layer's hooks, so a seed gets no gradient"

KNOWN: dict[str, dict[str, str]] = {
    "transformers/reformermodelwithlmhead": {"grows": PAST_HOOKS},
    "transformers/segformerforsemanticsegmentation": {"saves": LATE_HOOKS, "harvests": LATE_HOOKS},
    "transformers/dptfordepthestimation": {"saves": LATE_HOOKS, "harvests": LATE_HOOKS},
}
