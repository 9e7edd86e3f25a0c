"""What the README shows runs, and does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from esper.leyline.actions import Op

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")
EPOCHS = 9
"""Enough for a seed to be blended in, fewer than the README's."""


@pytest.fixture(scope="module")
def ran() -> dict[str, Any]:
    """The names that the snippet leaves behind."""
    (snippet,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    shorter = snippet.replace("epochs=25", f"epochs={EPOCHS}").replace("range(25)", f"range({EPOCHS})")
    assert "25" not in shorter, "the README's number of epochs is the one that is replaced"
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(compile(shorter, "README.md", "exec"), names)
    return names


def test_the_snippet_grows_a_network(ran):
    decided = [entry.decision.op for entry in ran["gardener"].history]
    assert len(decided) == EPOCHS
    assert decided.count(Op.GERMINATE) >= 1
    assert ran["gardener"].history[-1].parameters > ran["gardener"].history[0].parameters


def test_what_it_harvests_is_plain_torch(ran):
    plain = ran["plain"]
    assert not any(type(module).__module__.startswith("esper") for module in plain.modules())
    assert plain(ran["val"].x[:4]).shape == (4, 10)
    assert isinstance(plain, nn.Module)
