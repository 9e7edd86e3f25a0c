"""What holds of every reward, whatever is reported: bounds, sums that telescope, and a state that goes on exactly."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.actions import WAIT, Decision, Op
from esper.leyline.config import from_mapping, load, to_toml
from esper.leyline.errors import ConfigError, StateError
from esper.leyline.events import StageChanged
from esper.leyline.reports import EpochReport
from esper.leyline.score import rent_points
from esper.leyline.stages import Stage
from esper.simic.rewards import COMPONENTS, FinalScore, Mode, RewardConfig, RewardInput, RewardTracker
from esper.simic.rewards import components as parts
from tests.simic.plans import flat, one_step
from tests.tamiyo.samples import anything, report, report_streams, seed

CONFIG = RewardConfig()
MODES: tuple[Mode, ...] = ("shaped", "simplified", "sparse", "loss")
A, B = "r0c0", "r0c1"
KEPT = StageChanged(slot=A, before=Stage.HOLDING, after=Stage.FOSSILIZED, cause="fossilize", blueprint="conv_light", parameters=600)
finals = st.builds(FinalScore, accuracy=anything, loss=anything, parameters=st.integers(0, 10**30))


# Bounds


def bounds(slots: int) -> dict[str, tuple[float, float]]:
    """What each component must stay within."""
    most = {"progress": 2.0, "attribution": 1.0, "pbrs": 0.16 * slots, "rent": 0.25, "terminal": 2.1}
    return {**{name: (-bound, bound) for name, bound in most.items()}, "costs": (-0.5, 0.0)}


decisions = st.builds(Decision, op=st.sampled_from(Op), slot=st.just(A), blueprint=st.sampled_from(["norm", "conv_light"]))


@given(
    st.sampled_from(MODES),
    report_streams(),
    st.lists(st.tuples(decisions, st.booleans()), min_size=6, max_size=6),
    st.none() | st.tuples(anything, anything),
    finals,
    st.sampled_from(["", "diverged"]),
)
def test_every_component_is_finite_and_within_its_bounds_whatever_is_reported(
    mode: Mode,
    stream: list[EpochReport],
    acts: list[tuple[Decision, bool]],
    curve: tuple[float, float] | None,
    final: FinalScore,
    anomaly: str,
) -> None:
    slots = tuple(each.slot for each in stream[0].seeds)
    control = None if curve is None else flat(*curve)
    tracker = RewardTracker(RewardConfig(mode=mode), slots)
    limits = bounds(len(slots))
    for i, before in enumerate(stream):
        decision, refused = acts[i]
        end = final if i + 1 == len(stream) else None
        after = before if end is not None else replace(stream[i + 1], anomaly=anomaly)
        found = tracker.step(
            RewardInput(
                before=before,
                decision=decision if slots else WAIT,
                refused=refused,
                events=(KEPT,),
                report=after,
                control=control,
                final=end,
            )
        )
        for name, value in found.components.items():
            low, high = limits[name]
            assert low <= value <= high, f"{name} is {value}"
        json.dumps(tracker.state(), allow_nan=False)


# Telescoping


@given(report_streams(), finals)
def test_what_is_paid_for_stages_sums_to_nothing_but_the_potential_at_the_start(stream: list[EpochReport], final: FinalScore) -> None:
    sums = discounted(stream, final)
    start = 0.02 * sum(map(parts.stage_potential, stream[0].seeds))
    assert sums["pbrs"] == pytest.approx(-start, abs=1e-12)


@given(report_streams(), finals)
def test_progress_and_rent_sum_to_where_the_harvested_network_stands(stream: list[EpochReport], final: FinalScore) -> None:
    first, sums, end = stream[0], discounted(stream, final), 0.995 ** len(stream)
    leads = [parts.accuracy_points(each) - 60.0 for each in (first.val_accuracy, final.accuracy)]
    sizes = (parts.effective_parameters(first.seeds, 1000), final.parameters)
    rents = [rent_points(each, 1000, first.rent) for each in sizes]
    assert sums["progress"] == pytest.approx(end * math.tanh(leads[1] / 40.0) - math.tanh(leads[0] / 40.0), abs=1e-12)
    scores = [math.tanh((lead - rent) / 40.0) for lead, rent in zip(leads, rents, strict=True)]
    assert sums["progress"] + sums["rent"] == pytest.approx(end * scores[1] - scores[0], abs=1e-12)


@given(report_streams(), finals)
def test_what_was_credited_to_seeds_that_are_not_kept_is_taken_back(stream: list[EpochReport], final: FinalScore) -> None:
    dormant = tuple(seed(each.slot) for each in stream[0].seeds)
    first, last = (replace(each, seeds=dormant, epoch=each.epoch) for each in (stream[0], stream[-1]))
    sums = discounted([first, *stream[1:-1], last] if len(stream) > 1 else [first], final)
    assert sums["attribution"] == pytest.approx(0.0, abs=1e-12)


def discounted(stream: list[EpochReport], final: FinalScore) -> dict[str, float]:
    """Discounted sums of the components over an episode in which nothing is decided."""
    tracker = RewardTracker(CONFIG, tuple(each.slot for each in stream[0].seeds))
    sums = dict.fromkeys(COMPONENTS["shaped"], 0.0)
    for time, before in enumerate(stream):
        end = final if time + 1 == len(stream) else None
        after = before if end is not None else stream[time + 1]
        for name, value in one_step(before, after, tracker=tracker, final=end).components.items():
            sums[name] += 0.995**time * value
    return sums


# State, config, mistakes


@given(report_streams(), st.integers(0, 5))
def test_a_saved_tracker_goes_on_exactly(stream: list[EpochReport], cut: int) -> None:
    slots = tuple(each.slot for each in stream[0].seeds)
    straight, saved = RewardTracker(CONFIG, slots), RewardTracker(CONFIG, slots)
    for i, (before, after) in enumerate(pairwise(stream)):
        if i == cut:
            state = json.loads(json.dumps(saved.state(), allow_nan=False))
            saved = RewardTracker(CONFIG, slots)
            saved.load_state(state)
        assert one_step(before, after, tracker=saved) == one_step(before, after, tracker=straight)
    assert saved.state() == straight.state()


def test_a_state_of_other_slots_or_without_a_part_is_refused() -> None:
    tracker = RewardTracker(CONFIG, (A,))
    with pytest.raises(StateError, match="r0c1"):
        tracker.load_state(RewardTracker(CONFIG, (B,)).state())
    broken = tracker.state()
    del broken["held"]
    with pytest.raises(StateError, match="held"):
        tracker.load_state(broken)


def test_a_report_of_other_slots_and_a_control_that_is_too_short_are_refused() -> None:
    before, after = report(seed(A), epoch=5), report(seed(A), epoch=6)
    with pytest.raises(StateError, match="r0c0"):
        one_step(before, after, tracker=RewardTracker(CONFIG, (B,)))
    with pytest.raises(ConfigError, match="5 epochs"):
        one_step(before, after, control=flat(epochs=5))


def test_a_config_is_read_from_toml_and_its_ranges_are_checked(tmp_path: Any) -> None:
    config = RewardConfig(mode="loss", gamma=0.99, holding_cap=0.2)
    (tmp_path / "reward.toml").write_text(to_toml(config))
    assert load(RewardConfig, tmp_path / "reward.toml") == config
    for key, value in {"gamma": 1.1, "scale": 0.0, "mode": "dense", "thrash_epochs": 0}.items():
        with pytest.raises(ConfigError, match=key):
            from_mapping(RewardConfig, {key: value})
