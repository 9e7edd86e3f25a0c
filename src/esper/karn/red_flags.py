"""Red flags: what no healthy policy shows, each with its threshold.

A policy for growth is a sentinel: it waits nearly always, and rightly. So nothing here is judged by how often it waits, and a head that
is hardly used is judged where it was used. Nothing is judged from next to nothing: a flag that cannot be told is not raised.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from esper.karn.diagnostics.actions import ALL
from esper.karn.evaluate_config import EvaluateConfig
from esper.leyline.actions import Head, Op

if TYPE_CHECKING:
    from esper.karn.report import Diagnosis

FEWEST_SEEDS = 5
"""Seeds that have to be there before their survival is judged."""
FEWEST_USES = 10
"""Steps at which a head other than op has to have had a choice before its entropy is judged."""


@dataclass(frozen=True, slots=True)
class RedFlag:
    """One of them."""

    name: str
    """In a word, for programs: collapse, entropy, no_seeds, survival, values, gates, rollbacks."""
    text: str
    """In a sentence, for people."""


def red_flags(found: Diagnosis, config: EvaluateConfig) -> list[RedFlag]:
    """Every flag that a diagnosis raises, under these thresholds."""
    checks = (_collapse, _entropy, _no_seeds, _survival, _values, _gates, _rollbacks)
    return [RedFlag(check.__name__.strip("_"), text) for check in checks for text in check(found, config)]


def _collapse(found: Diagnosis, config: EvaluateConfig) -> Iterator[str]:
    """One op, whatever the host looks like. WAIT is judged by episodes: one that holds an act is not collapsed, however rare the act."""
    actions, limit = found.actions, config.collapse_threshold
    if actions.waiting is not None and actions.waiting > limit:
        # Where acts are drawn now and then, the likeliest decision can be WAIT all the same.
        open_minded = found.entropies is not None and found.entropies[Head.OP].doubt >= config.entropy_bounds[0]
        hint = "; it may act when decisions are drawn: see --stochastic" if open_minded and not config.stochastic else ""
        yield f"it only waits in {actions.waiting:.0%} of the episodes, above {limit:.0%}, though it could have acted{hint}"
    for op, share in actions.shares[ALL].items():
        if op != Op.WAIT.name and share > limit:
            yield f"{op} is {share:.0%} of its decisions where it had a choice, above {limit:.0%}"


def _entropy(found: Diagnosis, config: EvaluateConfig) -> Iterator[str]:
    """A head that always says the same and has nothing left to learn with, or an op that is drawn by lot.

    A head that is sure of itself and chooses differently on different hosts is a good one. The op is judged by its doubt, its largest
    entropy in an episode, since a sentinel is sure at most steps; the other heads by their mean, as they are used at acts alone. Only the
    op is judged for being open: how a seed is blended in, say, may not matter on these hosts.
    """
    low, high = config.entropy_bounds
    for name, head in (found.entropies or {}).items():
        whole = head.phases[ALL]
        if name == Head.OP:
            if head.doubt < low and any(_collapse(found, config)):
                yield f"the op is never in doubt: its normalised entropy is {head.doubt:.3f} at most in an episode, below {low:g}"
            if whole.mean > high:
                yield f"the op is as good as drawn by lot: its normalised entropy is {whole.mean:.3f}, above {high:g}"
        elif whole.n >= FEWEST_USES and whole.mean < low and head.share > config.collapse_threshold:
            always = f"it chose {head.commonest} in {head.share:.0%} of {whole.n} uses"
            yield f"the {name} head has collapsed: its normalised entropy is {whole.mean:.3f}, below {low:g}, and {always}"


def _no_seeds(found: Diagnosis, config: EvaluateConfig) -> Iterator[str]:
    if found.seeds[ALL][ALL].created == 0 and found.actions.choices:
        yield "not one seed was germinated on any host"


def _survival(found: Diagnosis, config: EvaluateConfig) -> Iterator[str]:
    seeds = found.seeds[ALL][ALL]
    if seeds.created >= FEWEST_SEEDS and seeds.survival is not None and seeds.survival < config.survival_threshold:
        yield f"{seeds.fossilized} of {seeds.created} seeds were fossilised, {seeds.survival:.0%}, below {config.survival_threshold:.0%}"


def _values(found: Diagnosis, config: EvaluateConfig) -> Iterator[str]:
    values, limit = found.calibration, config.value_correlation
    if values is not None and values.correlation < limit:
        yield f"the critic's values correlate by {values.correlation:.2f} with the returns that followed, below {limit:g}"


def _gates(found: Diagnosis, config: EvaluateConfig) -> Iterator[str]:
    if violations := found.audit.violations:
        yield f"{len(violations)} changes of stage break the rules of a seed's life; the first: {violations[0]}"


def _rollbacks(found: Diagnosis, config: EvaluateConfig) -> Iterator[str]:
    share, limit = found.outcomes.rolled_back, config.rollback_threshold
    if share > limit:
        yield f"the governor rolled back {share:.0%} of the hosts while seeds were in the network, above {limit:.0%}"
