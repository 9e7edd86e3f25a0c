"""The distribution over actions, held against sums over every legal action."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from esper.leyline.actions import Head, Op, matters
from esper.tamiyo.controllers.prior import Prior
from esper.tamiyo.observe.masks import Masks
from esper.tamiyo.policy.batch import HEADS, ObservationBatch
from esper.tamiyo.policy.heads import (
    HEAD_OP_PAIRS,
    OPS_OF,
    VALUE_HEADS,
    ActionDistribution,
    Exploration,
    masked_log_softmax,
    uniforms,
)
from esper.tamiyo.policy.prior_tables import prior_logits, prior_tables
from tests.tamiyo.enumeration import by_hand, every_action, packed, sizes

SLOTS, BLUEPRINTS = 2, 2
SIZES = sizes(BLUEPRINTS)


def some_masks(generator: torch.Generator, *shape: int) -> ObservationBatch:
    """Hosts with any masks that could come; every slot has a blueprint that fits."""
    batch = ObservationBatch.padding(shape, SLOTS, BLUEPRINTS)
    batch.slot_mask[..., 1:, :] = torch.rand(*shape, len(Op) - 1, SLOTS, generator=generator) < 0.6
    batch.op_mask[..., 1:] = batch.slot_mask[..., 1:, :].any(dim=-1)
    first = torch.rand(*shape, SLOTS, generator=generator) < 0.5
    batch.blueprint_mask.copy_(torch.stack([first, ~first | (torch.rand(*shape, SLOTS, generator=generator) < 0.5)], dim=-1))
    return batch


def some_logits(generator: torch.Generator, *shape: int, scale: float = 2.0) -> dict[Head, Tensor]:
    shapes = {Head.OP: (len(Op),), Head.SLOT: (len(Op), SLOTS)} | {head: (len(OPS_OF[head]), SLOTS, SIZES[head]) for head in VALUE_HEADS}
    return {head: scale * torch.randn(*shape, *size, generator=generator) for head, size in shapes.items()}


def expanded(batch: ObservationBatch, logits: dict[Head, Tensor], actions: list[tuple[int, ...]], explore: Exploration | None = None):
    """The distribution of one host, repeated for each action, and the actions as a tensor."""
    many = batch.map(lambda tensor: tensor.expand(len(actions), *tensor.shape))
    repeated = {head: tensor.expand(len(actions), *tensor.shape) for head, tensor in logits.items()}
    return ActionDistribution(packed(repeated), many, explore), torch.tensor(actions)


seeds = st.integers(0, 10**6).map(lambda seed: torch.Generator().manual_seed(seed))
explorations = st.sampled_from([None, Exploration(op=0.01, choices=0.02), Exploration(op=0.5, choices=0.5)])


@given(seeds, explorations)
def test_the_probabilities_of_all_legal_actions_sum_to_one(generator, explore):
    batch, logits = some_masks(generator), some_logits(generator)
    distribution, actions = expanded(batch, logits, every_action(batch), explore)
    assert distribution.score(actions).log_prob.double().exp().sum().item() == pytest.approx(1.0, abs=1e-5)


@given(seeds)
def test_scores_are_those_of_a_plain_softmax_over_the_heads_that_matter(generator):
    batch, logits = some_masks(generator), some_logits(generator)
    all_actions = every_action(batch)
    distribution, actions = expanded(batch, logits, all_actions)
    scores, best = distribution.score(actions), distribution.likeliest(actions)
    for row in range(0, len(all_actions), max(1, len(all_actions) // 10)):
        probabilities = by_hand(logits, batch, all_actions[row])
        for column, head in enumerate(HEADS):
            assert scores.matters[row, column] == (head in probabilities)
            if head in probabilities:
                own = probabilities[head]
                entropy = -sum(p * math.log(p) for p in own.values() if p > 0.0)
                assert scores.log_probs[row, column].item() == pytest.approx(math.log(own[all_actions[row][column]]), abs=1e-5)
                assert scores.entropies[row, column].item() == pytest.approx(entropy, abs=1e-5)
                assert scores.legal[row, column] == len(own)
                assert own[int(best[row, column])] == max(own.values())
            else:
                assert scores.log_probs[row, column] == scores.entropies[row, column] == scores.legal[row, column] == 0
    assert torch.equal(scores.log_prob, scores.log_probs.sum(dim=-1))


@given(seeds, explorations, st.integers(0, 100))
def test_every_action_drawn_is_legal_and_idle_where_a_head_does_not_matter(generator, explore, seed):
    batch, logits = some_masks(generator, 6), some_logits(generator, 6, scale=6.0)
    distribution = ActionDistribution(packed(logits), batch, explore)
    for actions in (distribution.sample(uniforms(seed, range(6), step=3)), distribution.mode()):
        for host in range(6):
            assert tuple(actions[host].tolist()) in every_action(batch[host])


@given(seeds)
def test_numbers_spread_evenly_draw_each_value_as_often_as_it_is_likely(generator):
    batch, logits = some_masks(generator), some_logits(generator)
    grid = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    distribution, _ = expanded(batch, logits, [(0,) * 8] * 2000)
    actions = distribution.sample(grid.unsqueeze(-1).expand(-1, len(HEADS)))
    shares = torch.bincount(actions[:, 0], minlength=len(Op)) / 2000
    assert torch.allclose(shares.double(), distribution.op_probabilities()[0], atol=1 / 2000 + 1e-6)


@pytest.mark.parametrize("number", [0.0, 1.0 - 2.0**-53])
def test_the_ends_of_the_range_draw_a_legal_value(number):
    batch = ObservationBatch.padding((1,), SLOTS, BLUEPRINTS)
    batch.op_mask[:, Op.ADVANCE] = True
    batch.slot_mask[:, Op.ADVANCE, 1] = True
    logits = some_logits(torch.Generator().manual_seed(0), 1)
    logits[Head.OP][:] = torch.tensor([-3.0, 90.0, -3.0, 90.0, 90.0, 90.0])
    actions = ActionDistribution(packed(logits), batch).sample(torch.full((1, 8), number, dtype=torch.float64))
    assert actions[0, 0] in (Op.WAIT, Op.ADVANCE)
    assert actions[0, 1] == (1 if actions[0, 0] == Op.ADVANCE else 0)


def test_what_a_host_draws_depends_on_seed_host_and_step_alone():
    together = uniforms(5, [0, 1, 2], step=4)
    assert torch.equal(together[2:], uniforms(5, [2], step=4))
    assert together.min() >= 0.0
    assert together.max() < 1.0
    for other in (uniforms(6, [2], 4), uniforms(5, [3], 4), uniforms(5, [2], 5)):
        assert not torch.equal(together[2:], other)


# Exploration


def test_exploration_mixes_in_the_same_probability_for_every_legal_value():
    log_p = torch.tensor([0.7, 0.2, 0.1]).log()
    mixed = Exploration(choices=0.05).mix(Head.STYLE, log_p, torch.tensor([True, True, True])).exp()
    assert mixed.tolist() == pytest.approx([0.85 * 0.7 + 0.05, 0.85 * 0.2 + 0.05, 0.85 * 0.1 + 0.05])


def test_exploration_leaves_illegal_values_and_single_choices_alone():
    mask = torch.tensor([[True, False, True], [False, True, False]])
    mixed = Exploration(choices=0.1).mix(Head.STYLE, masked_log_softmax(torch.zeros(2, 3), mask), mask).exp()
    assert mixed[0].tolist() == pytest.approx([0.5, 0.0, 0.5])
    assert mixed[1].tolist() == pytest.approx([0.0, 1.0, 0.0])


def test_exploration_never_takes_more_than_half_however_many_values_there_are():
    values = 200
    log_p = masked_log_softmax(torch.cat([torch.tensor([60.0]), torch.zeros(values - 1)]), torch.ones(values, dtype=torch.bool))
    mixed = Exploration(choices=0.01).mix(Head.BLUEPRINT, log_p, torch.ones(values, dtype=torch.bool)).exp()
    assert mixed[0].item() == pytest.approx(0.5 + 0.5 / values, rel=1e-4)
    assert mixed.sum().item() == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("steps", [1, 25, 150])
def test_fewer_than_one_forced_act_is_expected_in_an_episode(steps):
    never = masked_log_softmax(torch.tensor([[60.0, 0.0, 0.0, 0.0, 0.0, 0.0]]), torch.ones(1, 6, dtype=torch.bool))
    explore = Exploration.for_budget(steps)
    forced = 1.0 - explore.mix(Head.OP, never, torch.ones(1, 6, dtype=torch.bool))[0, Op.WAIT].exp().item()
    assert 0.0 < forced * steps < 1.0


# Comparing distributions


@given(seeds, explorations)
def test_divergence_is_the_sum_over_all_actions(generator, explore):
    batch, before, after = some_masks(generator), some_logits(generator), some_logits(generator)
    old, actions = expanded(batch, before, every_action(batch), explore)
    new, _ = expanded(batch, after, every_action(batch), explore)
    old_log, new_log = old.score(actions).log_prob.double(), new.score(actions).log_prob.double()
    brute_force = (old_log.exp() * (old_log - new_log)).sum().item()
    by_head = new.divergence(old)[0]
    assert by_head.sum().item() == pytest.approx(brute_force, rel=1e-4, abs=1e-5)
    assert (by_head >= -1e-6).all()
    assert old.divergence(old).abs().max().item() < 1e-6


@given(seeds)
def test_distance_from_the_prior_is_the_mean_over_the_contexts_in_which_a_head_could_matter(generator):
    batch, logits = some_masks(generator), some_logits(generator)
    found = ActionDistribution(packed(logits), batch).distance_from(prior_tables(Prior(), batch))
    for column, head in enumerate(HEADS):
        # One action for each context of the head that a legal choice can lead to.
        known = 0 if head is Head.OP else 1 if head is Head.SLOT else 2
        contexts = {action[:known]: action for action in every_action(batch) if matters(head, Op(action[0]))}
        distances = []
        for action in contexts.values():
            probabilities = by_hand(logits, batch, action)[head]
            mask = torch.zeros(1, len(Op) if head is Head.OP else SLOTS if head is Head.SLOT else SIZES[head], dtype=torch.bool)
            mask[0, list(probabilities)] = True
            prior = Prior().probabilities(head, mask.numpy())[0]
            distances.append(sum(prior[i] * math.log(prior[i] / p) for i, p in probabilities.items() if prior[i] > 0.0))
        expected = sum(distances) / len(distances) if distances else 0.0
        assert found[column].item() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_the_prior_waits_takes_what_is_ready_and_blends_fully():
    batch = ObservationBatch.padding((2,), SLOTS, BLUEPRINTS)
    for host, ops in enumerate([(Op.GERMINATE, Op.PRUNE), (Op.ADVANCE, Op.PRUNE)]):
        batch.op_mask[host, list(ops)] = True
    op, _, choices = prior_tables(Prior(wait=0.8, wait_when_ready=0.4, prune=0.1, full_influence=0.4, usual=0.91), batch)
    assert op[0, 0].tolist() == pytest.approx([0.8, 0.18, 0.0, 0.0, 0.02, 0.0])
    assert op[1, 0].tolist() == pytest.approx([0.4, 0.0, 0.54, 0.0, 0.06, 0.0])
    target = choices[0, HEAD_OP_PAIRS.index((Head.ALPHA_TARGET, Op.GERMINATE))].tolist()
    assert target[:4] == pytest.approx([0.2, 0.2, 0.2, 0.4])
    assert target[4:] == [0.0] * (len(target) - 4), "padding"
    tempo = choices[0, HEAD_OP_PAIRS.index((Head.TEMPO, Op.GERMINATE))].tolist()
    assert tempo[:4] == pytest.approx([0.91, 0.03, 0.03, 0.03])


@given(seeds)
def test_logits_of_zero_on_top_of_a_prior_are_the_prior(generator):
    batch, prior = some_masks(generator, 3), Prior(retarget=0.02, full_influence=0.98, usual=0.98)
    op, choices = prior_logits(prior, batch)
    plain = packed({head: torch.zeros_like(logits) for head, logits in some_logits(generator, 3).items()})
    distribution = ActionDistribution(replace(plain, op=plain.op + op, choices=0.0 * plain.choices + choices), batch)
    assert distribution.distance_from(prior_tables(prior, batch)).abs().max() < 1e-5


def test_logits_of_the_prior_are_its_logarithms_for_every_set_of_legal_ops():
    prior, sets = Prior(wait=0.8), list(product((False, True), repeat=len(Op)))
    batch = ObservationBatch.padding((len(sets),), SLOTS, BLUEPRINTS)
    batch.op_mask.copy_(torch.tensor(sets))
    op, _ = prior_logits(prior, batch)
    expected = np.log(np.maximum(prior.probabilities(Head.OP, np.array(sets)), 1e-9))
    assert torch.equal(op, torch.from_numpy(expected).float())


@given(seeds)
def test_gaps_are_between_the_first_and_the_second_legal_value(generator):
    batch, logits = some_masks(generator), some_logits(generator)
    gaps, could = ActionDistribution(packed(logits), batch).gaps()
    for column, head in enumerate(HEADS):
        contexts = {a[:2]: a for a in every_action(batch) if matters(head, Op(a[0]))}
        rows = {str(probabilities): probabilities for a in contexts.values() if len(probabilities := by_hand(logits, batch, a)[head]) > 1}
        found = [math.log(top) - math.log(second) for top, second, *_ in (sorted(row.values(), reverse=True) for row in rows.values())]
        assert could[column] == bool(found)
        assert gaps[column].item() == pytest.approx(sum(found) / len(found) if found else 0.0, rel=1e-4, abs=1e-4)


# Preferences


@given(seeds)
def test_nothing_is_preferred_to_the_mode(generator):
    batch, logits = some_masks(generator), some_logits(generator)
    distribution, actions = expanded(batch, logits, every_action(batch))
    preference, mode = distribution.preference(actions), distribution.mode()
    searched = [HEADS.index(head) for head in (Head.OP, Head.SLOT, Head.BLUEPRINT)]
    same = (actions[:, searched] == mode[:, searched]).all(dim=-1)
    assert preference[same].eq(0.0).all(), "the other heads count for nothing"
    assert (preference[~same] < 0.0).all()


@given(seeds)
def test_a_preference_is_the_sum_of_what_each_head_lies_behind_its_likeliest_value(generator):
    batch, logits = some_masks(generator), some_logits(generator)
    all_actions = every_action(batch)
    distribution, actions = expanded(batch, logits, all_actions)
    found = distribution.preference(actions)
    for row in range(0, len(all_actions), max(1, len(all_actions) // 10)):
        probabilities, gaps = by_hand(logits, batch, all_actions[row]), 0.0
        for head in (Head.OP, Head.SLOT, Head.BLUEPRINT):
            if head in probabilities:
                own = probabilities[head]
                gaps += math.log(own[all_actions[row][HEADS.index(head)]]) - math.log(max(own.values()))
        assert found[row].item() == pytest.approx(gaps, abs=1e-5)


def test_a_preference_orders_as_the_mode_does_and_not_by_joint_probability():
    # Germination is likelier than waiting, and has many slots and blueprints to share its probability among.
    batch = ObservationBatch.padding((1,), SLOTS, BLUEPRINTS)
    batch.op_mask[:, Op.GERMINATE] = True
    batch.slot_mask[:, Op.GERMINATE] = True
    batch.blueprint_mask.fill_(True)
    logits = {head: torch.zeros_like(each) for head, each in some_logits(torch.Generator(), 1).items()}
    logits[Head.OP][0, Op.GERMINATE] = 0.5
    logits[Head.SLOT][..., 0], logits[Head.BLUEPRINT][..., 0] = 0.1, 0.1
    distribution = ActionDistribution(packed(logits), batch)
    wait = torch.tensor([[Masks.idle(head) for head in HEADS]])
    assert distribution.mode()[0, 0] == Op.GERMINATE
    assert distribution.preference(distribution.mode()) > distribution.preference(wait)
    assert distribution.score(distribution.mode()).log_prob < distribution.score(wait).log_prob


@given(seeds)
def test_part_of_the_logits_is_the_distribution_of_that_part(generator):
    batch, logits = some_masks(generator, 3, 4), packed(some_logits(generator, 3, 4))
    host, step = torch.tensor([2, 0, 2]), torch.tensor([3, 1, 3])
    part = ActionDistribution(logits[host, step], batch[host, step])
    assert torch.equal(part.mode(), ActionDistribution(logits, batch).mode()[host, step])


# Gradients and padding


def test_illegal_values_get_no_gradient_and_no_gradient_is_nan():
    generator = torch.Generator().manual_seed(1)
    batch = some_masks(generator, 40)
    logits = {head: tensor.requires_grad_() for head, tensor in some_logits(generator, 40).items()}
    distribution = ActionDistribution(packed(logits), batch, Exploration(op=0.01))
    scores = distribution.score(distribution.sample(uniforms(0, range(40), 0)))
    distance = distribution.distance_from(prior_tables(Prior(), batch))
    (scores.log_probs + scores.entropies + distance).sum().backward()
    for head, mask in ((Head.OP, batch.op_mask), (Head.SLOT, batch.slot_mask), (Head.BLUEPRINT, batch.blueprint_mask.unsqueeze(-3))):
        gradient = logits[head].grad
        assert gradient is not None
        assert gradient.abs().max() > 0.0
        assert gradient[~mask].abs().max() == 0.0
    assert all(tensor.grad is not None and tensor.grad.isfinite().all() for tensor in logits.values())


def test_padding_can_only_wait_and_counts_for_nothing():
    batch = ObservationBatch.padding((3,), SLOTS, BLUEPRINTS)
    logits = {head: tensor.requires_grad_() for head, tensor in some_logits(torch.Generator().manual_seed(2), 3).items()}
    distribution = ActionDistribution(packed(logits), batch, Exploration(op=0.01))
    actions = distribution.sample(uniforms(0, range(3), 0))
    scores, distance = distribution.score(actions), distribution.distance_from(prior_tables(Prior(), batch))
    assert actions.tolist() == [[Masks.idle(head) for head in HEADS]] * 3
    for figures in (scores.log_probs, scores.entropies, distance):
        assert figures.abs().max() < 1e-6
    (scores.log_prob + distance.sum(dim=-1)).sum().backward()
    assert all(tensor.grad is None or tensor.grad.abs().max() < 1e-6 for tensor in logits.values())


def test_which_head_matters_is_what_the_table_says():
    batch = ObservationBatch.padding((len(Op),), SLOTS, BLUEPRINTS)
    actions = torch.zeros(len(Op), len(HEADS), dtype=torch.int64)
    actions[:, 0] = torch.arange(len(Op))
    scores = ActionDistribution(packed(some_logits(torch.Generator().manual_seed(3), len(Op))), batch).score(actions)
    assert scores.matters.tolist() == [[matters(head, op) for head in HEADS] for op in Op]
