"""The life of a seed is the documented table and nothing else."""

from __future__ import annotations

import json
from itertools import product

import pytest

from esper.leyline.errors import TransitionError
from esper.leyline.stages import BLENDED, CLEANUP, DEVELOPING, LIVE, OCCUPIED, TRANSITIONS, Stage, check_transition

# The table of the mechanics document, by hand: id, stage, where it may go.
TABLE = {
    (0, "UNKNOWN"): [],
    (1, "DORMANT"): ["GERMINATED"],
    (2, "GERMINATED"): ["TRAINING", "PRUNED"],
    (3, "TRAINING"): ["BLENDING", "PRUNED"],
    (4, "BLENDING"): ["HOLDING", "PRUNED"],
    (6, "HOLDING"): ["FOSSILIZED", "BLENDING", "PRUNED"],
    (7, "FOSSILIZED"): [],
    (8, "PRUNED"): ["EMBARGOED"],
    (9, "EMBARGOED"): ["RESETTING"],
    (10, "RESETTING"): ["DORMANT"],
}


def test_stages_have_the_documented_numbers_and_five_stays_retired() -> None:
    assert {(stage.value, stage.name) for stage in Stage} == set(TABLE)
    with pytest.raises(ValueError, match="5"):
        Stage(5)


def test_transitions_are_those_of_the_table() -> None:
    assert {(stage.value, stage.name): {after.name for after in TRANSITIONS[stage]} for stage in Stage} == {
        key: set(after) for key, after in TABLE.items()
    }


LEGAL = [(Stage(number), Stage[after]) for (number, _), allowed in TABLE.items() for after in allowed]


@pytest.mark.parametrize(("before", "after"), LEGAL)
def test_a_transition_in_the_table_is_allowed(before: Stage, after: Stage) -> None:
    check_transition("r0c1", before, after)
    assert after in TRANSITIONS[before]


@pytest.mark.parametrize(("before", "after"), [pair for pair in product(Stage, Stage) if pair not in LEGAL])
def test_a_transition_that_is_not_in_the_table_raises_and_says_what_is(before: Stage, after: Stage) -> None:
    with pytest.raises(TransitionError) as caught:
        check_transition("r0c1", before, after)
    assert all(word in str(caught.value) for word in ("'r0c1'", before.name, after.name, *TABLE[before.value, before.name]))


def test_refusal_from_a_final_stage_says_that_it_is_final() -> None:
    with pytest.raises(TransitionError, match="it is final"):
        check_transition("r0c1", Stage.FOSSILIZED, Stage.PRUNED)


def test_every_live_stage_can_be_pruned_and_no_other() -> None:
    assert {stage for stage in Stage if Stage.PRUNED in TRANSITIONS[stage]} == LIVE


def test_a_pruned_slot_finds_its_way_back_to_dormant() -> None:
    way = [Stage.PRUNED]
    while way[-1] is not Stage.DORMANT:
        (following,) = TRANSITIONS[way[-1]]
        way.append(following)
    assert set(way[:-1]) == CLEANUP


def test_groups_of_stages_split_all_real_stages_without_overlap() -> None:
    groups = [frozenset({Stage.UNKNOWN}), frozenset({Stage.DORMANT}), DEVELOPING, BLENDED, CLEANUP]
    assert sum(map(len, groups)) == len(Stage)
    assert frozenset().union(*groups) == frozenset(Stage)
    assert OCCUPIED == DEVELOPING | BLENDED
    assert {*LIVE, Stage.FOSSILIZED} == OCCUPIED


def test_a_stage_is_shown_by_its_name_and_counts_as_its_number() -> None:
    assert (str(Stage.BLENDING), f"{Stage.BLENDING}", f"{Stage.BLENDING:>9}|") == ("BLENDING", "BLENDING", " BLENDING|")
    assert (repr(Stage.BLENDING), Stage.BLENDING + 1, json.dumps([Stage.BLENDING])) == ("<Stage.BLENDING: 4>", 5, "[4]")
