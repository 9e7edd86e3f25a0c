"""The eight heads have the documented values, and one table says which matters when."""

from __future__ import annotations

import dataclasses

import pytest

from esper.leyline.actions import ALPHA_SPEEDS, ALPHA_TARGETS, HEADS_FOR_OP, TEMPOS, WAIT, Curve, Decision, Head, Op, Style, matters

ALL = {"WAIT", "GERMINATE", "ADVANCE", "FOSSILIZE", "PRUNE", "SET_ALPHA_TARGET"}
# The table of the control document, by hand: head, the ops for which it matters.
TABLE = {
    "op": ALL,
    "slot": ALL - {"WAIT"},
    "blueprint": {"GERMINATE"},
    "style": {"GERMINATE", "SET_ALPHA_TARGET"},
    "tempo": {"GERMINATE"},
    "alpha_target": {"GERMINATE", "SET_ALPHA_TARGET"},
    "alpha_speed": {"SET_ALPHA_TARGET", "PRUNE"},
    "alpha_curve": {"SET_ALPHA_TARGET", "PRUNE"},
}


def test_heads_come_in_the_documented_order() -> None:
    assert [head.value for head in Head] == list(TABLE)


@pytest.mark.parametrize("head", Head)
@pytest.mark.parametrize("op", Op, ids=lambda op: op.name)
def test_a_head_matters_exactly_where_the_table_says(head: Head, op: Op) -> None:
    assert matters(head, op) == (op.name in TABLE[head.value])


def test_heads_of_an_op_are_listed_once_each_in_the_order_of_choice() -> None:
    for heads in HEADS_FOR_OP.values():
        assert list(heads) == [head for head in Head if head in heads]


def test_head_values_are_the_documented_ones() -> None:
    assert [op.name for op in Op] == ["WAIT", "GERMINATE", "ADVANCE", "FOSSILIZE", "PRUNE", "SET_ALPHA_TARGET"]
    assert [style.name for style in Style] == ["LINEAR_ADD", "SIGMOID_ADD", "LINEAR_MULTIPLY", "GATED"]
    assert [curve.name for curve in Curve] == ["LINEAR", "COSINE", "SIGMOID_GENTLE", "SIGMOID", "SIGMOID_SHARP"]
    assert TEMPOS == (3, 5, 7, 10)
    assert ALPHA_TARGETS == (0.25, 0.5, 0.75, 1.0)
    assert ALPHA_SPEEDS == (0, 3, 5, 8)


@pytest.mark.parametrize("kind", [Op, Style, Curve])
def test_enum_numbers_are_indices_of_a_head(kind: type[Op] | type[Style] | type[Curve]) -> None:
    assert [member.value for member in kind] == list(range(len(kind)))


def test_a_decision_has_one_field_for_each_head_with_a_default_among_its_values() -> None:
    names = {field.name for field in dataclasses.fields(Decision)}
    assert names == {head.value for head in Head} | {"reason"}
    assert WAIT.tempo in TEMPOS
    assert WAIT.alpha_target in ALPHA_TARGETS
    assert WAIT.alpha_speed in ALPHA_SPEEDS


def test_a_decision_shows_the_heads_that_matter_and_no_others() -> None:
    prune = Decision(op=Op.PRUNE, slot="r0c1", blueprint="norm", alpha_speed=3, alpha_curve=Curve.COSINE)
    assert str(prune) == "PRUNE r0c1 3 COSINE"
    assert str(WAIT) == "WAIT"
