"""Families: members by seed, the same everywhere, within their ranges, and learning rates that only fall."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.config import from_mapping
from esper.leyline.errors import ConfigError
from esper.tolaria.tasks import Family, Member, get

BUILT_IN = ("digits", "stdlib", "cifar10", "cifar10-impaired", "cifar10-deep", "fashion", "tinystories")


def test_members_are_the_same_in_every_process_and_release() -> None:
    # Golden values: a change here changes what every recorded run was trained on.
    drawn = [get("digits").family.draw(seed) for seed in range(3)]
    assert [(m.widths, m.kernels, m.train_size, m.label_noise, m.epochs, m.schedule, m.decay, m.rent) for m in drawn] == [
        ((8, 8, 8), (3, 1, 1), 0, 0.5, 25, "cosine", 1.0, 0.0),
        ((4, 4, 8), (1, 1, 1), 0, 0.0, 40, "step", 0.2, 0.0),
        ((8, 16, 32), (1, 1, 1), 0, 0.0, 25, "cosine", 0.2, 60.0),
    ]
    assert drawn[0].batch == 64


@pytest.mark.parametrize("name", BUILT_IN)
def test_members_lie_within_the_ranges_and_take_every_value(name: str) -> None:
    family = get(name).family
    drawn = [family.draw(seed) for seed in range(300)]
    assert drawn == [family.draw(seed) for seed in range(300)]
    for field, values in family.ranges.items():
        assert {getattr(member, field) for member in drawn} == set(values)
    fixed = set(asdict(family.standard)) - set(family.ranges)
    assert all(getattr(member, field) == getattr(family.standard, field) for member in drawn for field in fixed)


def test_a_field_of_a_member_does_not_depend_on_what_else_varies() -> None:
    family = get("digits").family
    fewer = family.with_fixed(epochs=25)
    for seed in range(20):
        assert fewer.draw(seed) == replace(family.draw(seed), epochs=25)


def test_the_digits_family_has_hosts_with_nothing_and_with_much_to_gain() -> None:
    members = [get("digits").family.draw(seed) for seed in range(200)]
    assert any(m.kernels == (3, 3, 3) and m.widths == (8, 16, 32) and not m.label_noise and not m.train_size for m in members)
    assert any(m.label_noise == 0.5 and m.train_size == 150 for m in members)
    assert any(m.rent == 60 and not m.label_noise for m in members)
    assert any(m.kernels == (1, 1, 1) and not m.label_noise and not m.train_size and not m.rent for m in members)


def test_one_kernel_for_all_blocks_takes_the_place_of_those_that_a_family_draws() -> None:
    family = get("digits").family
    assert {family.with_fixed(kernel=5).draw(seed).kernels for seed in range(30)} == {()}
    assert {family.with_fixed(kernel=5, kernels=(1, 3, 3)).draw(seed).kernels for seed in range(30)} == {(1, 3, 3)}
    assert {family.with_fixed(widths=(4, 4)).draw(seed).kernels for seed in range(30)} == {()}
    assert len({family.with_fixed(widths=(4, 4, 4)).draw(seed).kernels for seed in range(30)}) == 4
    with pytest.raises(ConfigError, match="'kernels' has 2 sizes; expected one for each of the 3 widths"):
        family.with_fixed(kernels=(1, 3))


def test_hosts_of_another_number_of_layers_have_whole_blocks() -> None:
    family = get("stdlib").family
    assert len({family.draw(seed).parts for seed in range(30)}) == 4
    assert {family.with_fixed(layers=3).draw(seed).parts for seed in range(30)} == {()}
    with pytest.raises(ConfigError, match="'parts' has 2 entries; expected one for each of the 3 layers"):
        family.with_fixed(layers=3, parts=("mlp", "both"))
    with pytest.raises(ConfigError, match="attention"):
        from_mapping(Member, {**asdict(family.standard), "parts": ["atention", "both"]})


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_member_survives_json(name: str) -> None:
    member = get(name).family.draw(1)
    assert from_mapping(Member, json.loads(json.dumps(asdict(member)))) == member


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epoch": 3}, "Member: unknown key 'epoch'; did you mean 'epochs'"),
        ({"epochs": 0}, "'epochs' must be an integer, from 1 to 1000000; found 0"),
        ({"label_noise": 1.5}, "'label_noise' must be a number, from 0 to 1"),
        ({"kernel": 2}, "'kernel' is 2; expected an odd size"),
        ({"widths": (8, 0)}, r"'widths\[1\]' must be an integer, from 1 to 65536; found 0"),
        ({"width": 10}, "'width' is 10; expected a multiple of 'heads', which is 4"),
        ({"schedule": "cosin"}, "'schedule' must be one of"),
        ({"slots": "behind"}, "'slots' must be one of"),
        ({"augment": 1}, "'augment' must be true or false"),
    ],
)
def test_a_value_that_no_member_can_have_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get("digits").family.with_fixed(**values)
    (name, value), standard = next(iter(values.items())), get("digits").family.standard
    with pytest.raises(ConfigError, match=message):
        Family(standard=standard, ranges={name: (value,)})


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(ConfigError, match="the range of 'epochs' is empty"):
        Family(standard=get("digits").family.standard, ranges={"epochs": ()})


@given(st.sampled_from(["constant", "linear", "cosine", "step"]), st.integers(1, 60), st.floats(0, 1))
def test_the_learning_rate_is_constant_then_falls_and_never_rises(schedule: str, epochs: int, decay: float) -> None:
    member = get("digits").family.with_fixed(schedule=schedule, epochs=epochs, decay=decay).standard
    rates = [member.rate_at(epoch) for epoch in range(epochs)]
    assert all(later <= earlier for earlier, later in pairwise(rates))
    assert all(0 < rate <= member.learning_rate for rate in rates)
    assert all(rate == member.learning_rate for epoch, rate in enumerate(rates) if epoch < epochs * (1 - decay))


@pytest.mark.parametrize(("schedule", "expected"), [("constant", 1.0), ("linear", 0.5), ("cosine", 0.5), ("step", 0.1)])
def test_half_of_the_decay_is_half_of_the_way(schedule: str, expected: float) -> None:
    member = get("digits").family.with_fixed(schedule=schedule, epochs=20, decay=0.5, learning_rate=1.0).standard
    assert member.rate_at(9.99) == 1.0
    assert member.rate_at(15) == pytest.approx(expected)
