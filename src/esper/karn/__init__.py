"""The eyes: analysis of recorded runs, diagnostics, comparison, report and live page.

    report = esper.karn.evaluate(["heuristic", "runs/digits-ppo-001"])

What loads torch is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esper.karn.evaluation import evaluate as evaluate

__all__ = ["evaluate"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'esper.karn' has no attribute {name!r}")
    return importlib.import_module("esper.karn.evaluation").evaluate
