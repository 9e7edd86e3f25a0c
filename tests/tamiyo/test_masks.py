"""Masks allow exactly what the rules allow: against a second, plain reading of them, over every combination of stages."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.actions import ALPHA_SPEEDS, ALPHA_TARGETS, TEMPOS, WAIT, Curve, Decision, Head, Op, Style, matters
from esper.leyline.config import from_mapping
from esper.leyline.errors import BlueprintError, ConfigError, GateError, TransitionError, UnknownNameError
from esper.leyline.reports import EpochReport, SeedReport, Topology
from esper.leyline.stages import Stage
from esper.tamiyo import Masks, Rules
from esper.tamiyo.observe.masks import choose
from tests.tamiyo.samples import BLUEPRINTS, SLOTS, STAGES, report, report_streams, seed, verdict

NAMES = ("conv_heavy", "conv_light", "mlp", "norm")
BUSY = {"GERMINATED", "TRAINING", "PRUNED", "EMBARGOED", "RESETTING"}
IN_NETWORK = {"GERMINATED", "TRAINING", "BLENDING", "HOLDING", "FOSSILIZED"}


def expected(seeds: list[SeedReport], passed: list[bool], rules: Rules) -> set[tuple[str, str]]:
    """The legal pairs of op and slot, written down from the rules by hand."""
    stages = [each.stage.name for each in seeds]
    room = rules.max_seeds is None or sum(stage in IN_NETWORK for stage in stages) < rules.max_seeds
    start = room and not BUSY & set(stages)
    pairs = set()
    for each, stage, gate in zip(seeds, stages, passed, strict=True):
        if stage == "DORMANT" and start and (rules.enabled is None or each.slot in rules.enabled):
            pairs.add(("GERMINATE", each.slot))
        if stage in {"GERMINATED", "TRAINING", "BLENDING"} and gate and not each.pruning:
            pairs.add(("ADVANCE", each.slot))
        if stage == "HOLDING" and gate:
            pairs.add(("FOSSILIZE", each.slot))
        if stage in {"GERMINATED", "TRAINING", "BLENDING", "HOLDING"} and not each.pruning:
            newest = each.contribution if each.contribution is not None else each.trial_contribution
            needed = 2 if newest is not None and newest < 0 else 5
            if each.age >= needed:
                pairs.add(("PRUNE", each.slot))
        if stage in {"BLENDING", "HOLDING"} and each.ramp_left == 0 and not each.pruning:
            pairs.add(("SET_ALPHA_TARGET", each.slot))
    return pairs


def found(masks: Masks) -> set[tuple[str, str]]:
    """The pairs of op and slot that the masks allow."""
    return {(op.name, slot) for op in Op for slot, legal in zip(masks.slot_names, masks.slots(op), strict=True) if legal}


def masks_of(seeds: list[SeedReport], passed: list[bool], rules: Rules) -> Masks:
    verdicts = tuple(verdict(each, ok) for each, ok in zip(seeds, passed, strict=True))
    return Masks(report(*seeds, verdicts=verdicts), rules, BLUEPRINTS)


RAMPS: tuple[dict[str, Any], ...] = ({}, {"ramp_left": 2}, {"ramp_left": 2, "pruning": True, "alpha_target": 0.0})


def test_one_slot_in_every_stage_age_worth_ramp_and_verdict_is_as_the_rules_say() -> None:
    worths = (None, -0.1, 0.0)
    cases = itertools.product(STAGES, (1, 2, 4, 5), worths, worths, RAMPS, (True, False), (None, 1), (None, ("r0c0",), ()))
    for stage, age, contribution, trial, ramp, passed, limit, enabled in cases:
        one = seed("r0c0", stage, age=age, contribution=contribution, trial_contribution=trial, **ramp)
        rules = Rules(max_seeds=limit, enabled=enabled)
        masks = masks_of([one], [passed], rules)
        assert found(masks) == expected([one], [passed], rules), (one, passed, rules)


@pytest.mark.parametrize("slots", [2, 3])
def test_every_combination_of_stages_is_as_the_rules_say(slots: int) -> None:
    rng = random.Random(slots)
    for stages in itertools.product(STAGES, repeat=slots):
        for limit, enabled in itertools.product((None, 1, 2, 3), (None, SLOTS[:1], SLOTS[:2])):
            seeds = [
                seed(slot, stage, age=rng.choice((1, 2, 5)), contribution=rng.choice((None, -1.0, 1.0)), **rng.choice(RAMPS))
                for slot, stage in zip(SLOTS, stages, strict=False)
            ]
            passed = [rng.random() < 0.5 for _ in seeds]
            rules = Rules(max_seeds=limit, enabled=enabled)
            masks = masks_of(seeds, passed, rules)
            legal = expected(seeds, passed, rules)
            assert found(masks) == legal, (seeds, passed, rules)
            assert {op.name for op in Op if masks.ops()[op]} == {"WAIT", *(op for op, _ in legal)}


@pytest.mark.parametrize("stage", sorted(BUSY))
def test_no_seed_starts_while_another_is_starting_or_its_slot_is_cleaned(stage: str) -> None:
    seeds = [seed("r0c0"), seed("r0c1", Stage[stage])]
    assert not masks_of(seeds, [True, True], Rules()).ops()[Op.GERMINATE]
    seeds[1] = seed("r0c1", Stage.BLENDING)
    assert masks_of(seeds, [True, True], Rules()).ops()[Op.GERMINATE]


def test_the_limit_counts_seeds_in_the_network_so_that_a_pruned_one_makes_room() -> None:
    rules = Rules(max_seeds=1)
    kept = [seed("r0c0"), seed("r0c1", Stage.FOSSILIZED)]
    assert not masks_of(kept, [True, True], rules).ops()[Op.GERMINATE]
    after_prune = Masks(report(seed("r0c0"), seed("r0c1"), germinated=7), rules, BLUEPRINTS)
    assert after_prune.ops()[Op.GERMINATE]


def every_decision(slots: tuple[str, ...]) -> set[Decision]:
    """Every decision with its idle heads at their defaults, legal or not."""
    decisions = {WAIT}
    for slot in slots:
        decisions |= {Decision(op=op, slot=slot) for op in (Op.ADVANCE, Op.FOSSILIZE)}
        decisions |= {
            Decision(op=Op.GERMINATE, slot=slot, blueprint=name, style=style, tempo=tempo, alpha_target=target)
            for name, style, tempo, target in itertools.product(NAMES, Style, TEMPOS, ALPHA_TARGETS)
        }
        ramps = list(itertools.product(ALPHA_SPEEDS, Curve))
        decisions |= {Decision(op=Op.PRUNE, slot=slot, alpha_speed=speed, alpha_curve=curve) for speed, curve in ramps}
        decisions |= {
            Decision(op=Op.SET_ALPHA_TARGET, slot=slot, style=style, alpha_target=target, alpha_speed=speed, alpha_curve=curve)
            for style, target, (speed, curve) in itertools.product(Style, ALPHA_TARGETS, ramps)
        }
    return decisions


def reachable(masks: Masks, decision: Decision = WAIT, heads: tuple[Head, ...] = tuple(Head)) -> set[Decision]:
    """Every decision that choosing head by head through the masks can end in."""
    if not heads:
        return {decision}
    head, *rest = heads
    values = [value for value, legal in zip(masks.choices(head), masks.head(head, decision), strict=True) if legal]
    if not matters(head, decision.op):
        assert values == [masks.choices(head)[masks.idle(head)]]
        return reachable(masks, decision, tuple(rest))
    return set().union(*(reachable(masks, replace(decision, **{head.value: value}), tuple(rest)) for value in values))


MIXED = report(
    seed("r0c0"),
    seed("r0c1", topology=Topology.TOKENS),
    seed("r0c2", Stage.HOLDING, age=9, contribution=1.0),
)
STARTING = report(
    seed("r0c0"),
    seed("r0c1", Stage.TRAINING, age=3, trial_contribution=-1.0),
    seed("r0c2", Stage.BLENDING, ramp_left=2, age=6),
)


@pytest.mark.parametrize("moment", [MIXED, STARTING], ids=["mixed", "starting"])
def test_what_the_heads_can_reach_is_exactly_what_is_legal(moment: EpochReport) -> None:
    masks = Masks(moment, Rules(), BLUEPRINTS)
    legal = {decision for decision in every_decision(SLOTS) if masks.legal(decision)}
    assert reachable(masks) == legal
    assert len(legal) > 1


@given(stream=report_streams(length=1), draws=st.randoms(use_true_random=False))
def test_a_random_choice_head_by_head_is_always_legal_and_survives_indices(stream: list[EpochReport], draws: random.Random) -> None:
    masks = Masks(stream[0], Rules(), BLUEPRINTS)
    decision = choose(masks, lambda head, mask: draws.choice(np.flatnonzero(mask).tolist()))
    masks.check(decision)
    assert masks.legal(decision)
    indices = masks.indices(decision)
    assert masks.decision(indices) == decision
    assert all(masks.head(head, decision)[index] for head, index in zip(Head, indices, strict=True) if len(masks.choices(head)))


def test_a_head_that_does_not_matter_has_one_legal_value_that_stands_for_the_default() -> None:
    masks = Masks(MIXED, Rules(), BLUEPRINTS)
    for head in list(Head)[1:]:
        assert masks.head(head, WAIT).sum() == 1
    assert masks.decision(masks.indices(WAIT)) == WAIT
    assert masks.choices(Head.TEMPO)[masks.idle(Head.TEMPO)] == WAIT.tempo


def test_a_blueprint_is_legal_only_where_the_features_have_its_shape() -> None:
    masks = Masks(MIXED, Rules(), BLUEPRINTS)
    assert masks.blueprint_names == NAMES
    assert masks.blueprints("r0c0").tolist() == [True, True, False, True]
    assert masks.blueprints("r0c1").tolist() == [False, False, True, True]
    assert not Masks(MIXED, Rules(), {Topology.TOKENS: ("mlp",)}).slots(Op.GERMINATE)[0]


def test_masks_cannot_be_changed_by_those_who_read_them() -> None:
    masks = Masks(MIXED, Rules(), BLUEPRINTS)
    with pytest.raises(ValueError, match="read-only"):
        masks.slots(Op.GERMINATE)[0] = False
    assert masks.legal(Decision(op=Op.GERMINATE, slot="r0c0", blueprint="norm"))


@pytest.mark.parametrize(
    ("decision", "error", "words"),
    [
        (Decision(op=Op.GERMINATE, slot="r0c3", blueprint="norm"), UnknownNameError, "unknown slot 'r0c3'; did you mean"),
        (Decision(op=Op.GERMINATE, slot="r0c0", blueprint="conv_lite"), UnknownNameError, "did you mean 'conv_light'"),
        (Decision(op=Op.GERMINATE, slot="r0c0", blueprint="mlp"), BlueprintError, "does not fit slot 'r0c0'; map2d has: norm, conv_light"),
        (Decision(op=Op.GERMINATE, slot="r0c2", blueprint="norm"), TransitionError, "the slot is HOLDING; expected DORMANT"),
        (Decision(op=Op.GERMINATE, slot="r0c0", blueprint="norm", tempo=4), ConfigError, "tempo is 4; expected one of 3, 5, 7, 10"),
        (Decision(op=Op.FOSSILIZE, slot="r0c2"), GateError, "FOSSILIZE r0c2: G5 refused: not ready"),
        (Decision(op=Op.FOSSILIZE, slot="r0c0"), TransitionError, "the slot is DORMANT; expected HOLDING"),
        (Decision(op=Op.ADVANCE, slot="r0c2"), TransitionError, "expected GERMINATED, TRAINING or BLENDING"),
        (Decision(op=Op.PRUNE, slot="r0c2"), TransitionError, "its seed is 3 epochs old; at least 5 needed"),
        (Decision(op=Op.PRUNE, slot="r0c0"), TransitionError, "the slot is DORMANT"),
        (Decision(op=Op.SET_ALPHA_TARGET, slot="r0c2", alpha_target=0.3), ConfigError, "alpha_target is 0.3"),
        (Decision(op=Op.SET_ALPHA_TARGET, slot="r0c1"), TransitionError, "expected BLENDING or HOLDING"),
    ],
)
def test_a_refusal_says_what_is_wrong_and_what_was_expected(decision: Decision, error: type[Exception], words: str) -> None:
    moment = report(seed("r0c0"), seed("r0c1", topology=Topology.TOKENS), seed("r0c2", Stage.HOLDING, age=3), passed=False)
    masks = Masks(moment, Rules(), BLUEPRINTS)
    assert not masks.legal(decision)
    with pytest.raises(error, match=words):
        masks.check(decision)


def test_a_ramp_and_a_start_elsewhere_are_named_in_the_refusal() -> None:
    ramp = {"age": 9, "ramp_left": 2, "pruning": True, "alpha_target": 0.0}
    moment = report(seed("r0c0"), seed("r0c1", Stage.TRAINING), seed("r0c2", Stage.BLENDING, **ramp))
    masks = Masks(moment, Rules(enabled=("r0c0", "r0c2")), BLUEPRINTS)
    for decision, words in (
        (Decision(op=Op.GERMINATE, slot="r0c0", blueprint="norm"), "slot 'r0c1' is TRAINING; one start at a time"),
        (Decision(op=Op.GERMINATE, slot="r0c1", blueprint="norm"), "not enabled; enabled: r0c0, r0c2"),
        (Decision(op=Op.PRUNE, slot="r0c2"), "being ramped down to be pruned, 2 epochs left"),
        (Decision(op=Op.ADVANCE, slot="r0c2"), "being ramped down to be pruned, 2 epochs left"),
        (Decision(op=Op.SET_ALPHA_TARGET, slot="r0c2"), "on its way to 0, 2 epochs left"),
    ):
        with pytest.raises(TransitionError, match=words):
            masks.check(decision)
    with pytest.raises(TransitionError, match="2 seeds are in the network; at most 2 may be"):
        Masks(moment, Rules(max_seeds=2), BLUEPRINTS).check(Decision(op=Op.GERMINATE, slot="r0c0", blueprint="norm"))


def test_rules_are_read_like_any_config_and_refuse_unknown_slots() -> None:
    assert from_mapping(Rules, {"max_seeds": 2, "enabled": ["r0c0"]}) == Rules(max_seeds=2, enabled=("r0c0",))
    with pytest.raises(ConfigError, match="max_seeds"):
        Rules(max_seeds=0)
    with pytest.raises(UnknownNameError, match="unknown slot 'r0c9'"):
        Masks(MIXED, Rules(enabled=("r0c9",)), BLUEPRINTS)
