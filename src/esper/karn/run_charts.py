"""What a recorded run looks like: a chart for each question, by name. Report, pictures and notebooks all take them from here."""

from __future__ import annotations

from collections.abc import Callable

from esper.karn.charts import Chart
from esper.karn.host_charts import accuracy, accuracy_against_operations, accuracy_against_parameters, blueprints, growth, lives
from esper.karn.learning_charts import actions, arms, calibration, critic, differences, entropies, returns, rewards, updates
from esper.karn.record import Record

CHARTS: dict[str, Callable[[Record], Chart | None]] = {
    "accuracy": accuracy,
    "growth": growth,
    "accuracy_against_parameters": accuracy_against_parameters,
    "accuracy_against_operations": accuracy_against_operations,
    "arms": arms,
    "differences": differences,
    "lives": lives,
    "blueprints": blueprints,
    "actions": actions,
    "entropies": entropies,
    "rewards": rewards,
    "calibration": calibration,
    "returns": returns,
    "critic": critic,
    "updates": updates,
}
"""Every chart by its name; None for a run that has nothing of the kind."""


def charts_of(record: Record) -> dict[str, Chart]:
    """Every chart that there is of a run, by name."""
    return {name: chart for name, make in CHARTS.items() if (chart := make(record)) is not None}
