"""Views: what there is to see of a recorded run, as plain values. Page, report, terminal, queries and Python all show these."""

from esper.karn.views.arms import arms
from esper.karn.views.feed import feed
from esper.karn.views.host import decision, host
from esper.karn.views.hosts import distribution, hosts
from esper.karn.views.learning import actions, calibration, entropies, rewards, rounds
from esper.karn.views.lives import blueprints, lives
from esper.karn.views.overview import flags, overview
from esper.karn.views.runs import Runs, runs

__all__ = [
    "Runs",
    "actions",
    "arms",
    "blueprints",
    "calibration",
    "decision",
    "distribution",
    "entropies",
    "feed",
    "flags",
    "host",
    "hosts",
    "lives",
    "overview",
    "rewards",
    "rounds",
    "runs",
]
