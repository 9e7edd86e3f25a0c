"""What the heuristic remembers: trials, outcomes, fading penalties and trust, worked by hand."""

from __future__ import annotations

import json

import pytest

from esper.leyline.codec import from_plain, to_plain
from esper.leyline.errors import StateError
from esper.leyline.stages import Stage
from esper.tamiyo.controllers.heuristic_memory import HeuristicMemory, Outcome, Trial
from tests.tamiyo.samples import report, seed

STARTED = HeuristicMemory().started("r0c0", "conv_light", 2.0)


def outcome(blueprint: str, epoch: int, *, expected: float = 2.0, credit: float = 0.0, kept: bool = False) -> Outcome:
    return Outcome(blueprint=blueprint, epoch=epoch, expected=expected, credit=credit, kept=kept)


def test_contributions_count_only_when_new_and_only_in_holding() -> None:
    memory = STARTED.after(report(seed("r0c0", Stage.BLENDING, contribution=9.0)))
    for contribution, age in ((2.0, 0), (2.0, 1), (4.0, 0), (None, 0), (float("nan"), 0)):
        memory = memory.after(report(seed("r0c0", Stage.HOLDING, contribution=contribution, contribution_age=age)))
    trial = memory.trial("r0c0")
    assert trial == Trial(slot="r0c0", blueprint="conv_light", expected=2.0, total=6.0, count=2)
    assert trial.mean == 3.0


def test_a_retarget_starts_the_mean_anew() -> None:
    held = STARTED.after(report(seed("r0c0", Stage.HOLDING, contribution=2.0)))
    moved = held.after(report(seed("r0c0", Stage.BLENDING, contribution=2.0))).trial("r0c0")
    assert moved is not None
    assert (moved.count, moved.mean) == (0, 0.0)


def test_a_fossil_is_a_success_with_its_mean_as_credit() -> None:
    held = STARTED.after(report(seed("r0c0", Stage.HOLDING, contribution=3.0)))
    kept = held.after(report(seed("r0c0", Stage.FOSSILIZED, contribution=3.5), epoch=9))
    assert kept == HeuristicMemory(outcomes=(outcome("conv_light", 9, credit=3.0, kept=True),))


@pytest.mark.parametrize("stage", [Stage.PRUNED, Stage.EMBARGOED])
def test_a_seed_that_is_gone_is_a_failure_whoever_pruned_it(stage: Stage) -> None:
    assert STARTED.after(report(seed("r0c0", stage), epoch=4)) == HeuristicMemory(outcomes=(outcome("conv_light", 4),))


def test_a_live_seed_that_somebody_else_started_is_taken_on() -> None:
    taken = HeuristicMemory().after(report(seed("r0c0"), seed("r0c1", Stage.TRAINING, blueprint="norm")))
    assert taken.trials == (Trial(slot="r0c1", blueprint="norm", expected=0.0),)


def test_the_penalty_is_one_for_each_failure_and_fades() -> None:
    memory = HeuristicMemory(outcomes=(outcome("norm", 2), outcome("norm", 4), outcome("mlp", 4), outcome("norm", 4, kept=True)))
    assert memory.penalty("norm", 4, decay=0.5) == pytest.approx(0.25 + 1.0)
    assert memory.penalty("norm", 6, decay=0.5) == pytest.approx(0.0625 + 0.25)
    assert memory.penalty("conv_light", 6, decay=0.5) == 0.0


def test_trust_starts_at_one_moves_with_experience_and_falls_back_on_other_blueprints() -> None:
    assert HeuristicMemory().trust("norm", strength=3.0) == 1.0
    memory = HeuristicMemory(outcomes=(outcome("norm", 1, expected=4.0, credit=6.0, kept=True),))
    # It brought 1.5 times what was expected. All seeds: (3 + 1.5) / (3 + 1) = 1.125, which stands in for any other;
    # this one: (3 * 1.125 + 1.5) / (3 + 1) = 1.21875.
    assert memory.trust("mlp", strength=3.0) == pytest.approx(1.125)
    assert memory.trust("norm", strength=3.0) == pytest.approx(1.21875)
    failed = HeuristicMemory(outcomes=(outcome("norm", 1, expected=4.0),))
    assert failed.trust("mlp", strength=3.0) == pytest.approx(0.75)
    assert failed.trust("norm", strength=3.0) == pytest.approx(0.5625)


def test_one_lucky_seed_counts_as_twice_the_expected_at_most_and_one_without_expectation_not_at_all() -> None:
    lucky = HeuristicMemory(
        outcomes=(outcome("norm", 1, expected=0.1, credit=50.0, kept=True), outcome("norm", 1, expected=0.0, credit=9.0))
    )
    assert lucky.trust("mlp", strength=1.0) == pytest.approx(1.5)


def test_memory_goes_through_json_unchanged_and_damage_is_refused() -> None:
    memory = HeuristicMemory(trials=STARTED.trials, outcomes=(outcome("norm", 3, credit=0.1 + 0.2, kept=True),))
    assert from_plain(HeuristicMemory, json.loads(json.dumps(to_plain(memory)))) == memory
    with pytest.raises(StateError, match="a saved HeuristicMemory cannot be read"):
        from_plain(HeuristicMemory, {"trials": [{"slot": "r0c0"}], "outcomes": []})
