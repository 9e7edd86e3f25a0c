"""The second rung of the evidence: the learning machinery, on small problems with known answers, by the code that trains on real hosts."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from esper.leyline.actions import Head, Op
from esper.simic.learning.ppo import Learner, PriorStrength
from esper.simic.learning.rollout import RolloutBuffer
from esper.tamiyo.controllers.prior import Prior
from esper.tamiyo.policy.batch import HEADS, ObservationBatch
from esper.tamiyo.policy.heads import ILLEGAL, OPS_OF, VALUE_HEADS, ActionDistribution, Exploration
from esper.tamiyo.policy.policy import Policy
from esper.tamiyo.policy.prior_tables import prior_tables
from esper.tolaria.storage.checkpoint import CheckpointStore
from tests.simic.problems import COLUMN, Bandit, KnownReturn, Recall, Sentinel, new_policy, play, quick, train
from tests.simic.test_rollout import brute_force
from tests.tamiyo.enumeration import by_hand, every_action, packed, unpacked

COLLAPSED = 15.0
"""Nats by which a collapsed head prefers one value."""


def earned(learner: Learner, problem, rounds: int = 1) -> float:
    """Mean reward of an episode when the likeliest values are taken, on rounds that were not trained on."""
    return sum(play(learner.policy, problem, seed, greedy=True).reward.sum(dim=1).mean().item() for seed in range(rounds)) / rounds


# 1


def test_a_bandit_with_dependent_masked_heads_is_solved_to_95_percent():
    problem = Bandit(256)
    # WAIT is right in a third of the states here, not in nearly all: the op is held to the sentinel's prior no more than other heads.
    config = quick(entropy_start=0.01, prior_strength=PriorStrength(op=0.02), target_kl=0.1, epochs=10)
    learner = Learner(new_policy(problem), config)
    assert earned(learner, problem, rounds=2) < 0.5
    while earned(learner, problem, rounds=2) <= 0.95:
        assert learner.updates < 40, "it is not learned"
        train(learner, problem, 4, Exploration(choices=0.01))


# 2


class Forgetful(Policy):
    """Sees every step as if it were the first."""

    def act(self, batch, state, uniforms, explore=None):
        return super().act(batch, self.initial_state(len(batch.host)), uniforms, explore)


def test_recalling_what_was_shown_needs_the_memory_and_is_learned_with_it():
    problem = Recall(64)
    learner = Learner(new_policy(problem), quick())
    while earned(learner, problem, rounds=4) <= 0.95:
        assert learner.updates < 96, "it is not learned"
        train(learner, problem, 12, Exploration.for_budget(problem.steps))
    forgetful = Forgetful(learner.policy.config)
    forgetful.load_state_dict(learner.policy.state_dict())
    assert earned(Learner(forgetful, quick()), problem, rounds=4) < 0.65, "one of two signs can only be guessed"


# 3


def judged(learner: Learner, hosts: int = 64) -> tuple[float, float]:
    """Share of the rare moments that were seized with the right blueprint, and of the ordinary steps that were waited out."""
    problem = Sentinel(hosts)
    rollout = play(learner.policy, problem, 7, greedy=True)
    rows = torch.arange(hosts)
    moments = rollout.actions[rows, problem.moment]
    seized = (moments[:, COLUMN[Head.OP]] == Op.GERMINATE) & problem.right(moments)
    waited = rollout.actions[..., COLUMN[Head.OP]] == Op.WAIT
    waited[rows, problem.moment] = False
    return seized.float().mean().item(), waited.sum().item() / (hosts * (problem.steps - 1))


def test_a_head_that_matters_in_one_step_of_twenty_is_learned_and_stays_alive_on_the_way():
    problem = Sentinel(32)
    learner = Learner(new_policy(problem), quick())
    history = train(learner, problem, 20, Exploration.for_budget(problem.steps))
    seized, waited = judged(learner)
    assert seized > 0.9
    assert waited > 0.98
    half_way = [report["train/entropy/blueprint"] for report in history[8:12] if "train/entropy/blueprint" in report]
    assert sum(half_way) / len(half_way) > 0.3
    assert 0.01 < history[10]["train/op_probability/germinate"] < 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class ClampFloor(Exploration):
    """What the penalty replaces: chances below a floor are raised to it, and all are scaled to sum to 1 again."""

    floor: float = 0.05

    def mix(self, head: Head, log_p: Tensor, mask: Tensor) -> Tensor:
        """The choices' chances with a floor; op and slot as always."""
        if head in (Head.OP, Head.SLOT):
            return Exploration.mix(self, head, log_p, mask)
        raised = log_p.exp().clamp(min=self.floor) * mask
        return (raised / raised.sum(dim=-1, keepdim=True)).clamp(min=1e-30).log().masked_fill(~mask, ILLEGAL)


@pytest.mark.parametrize("kind", ["ours", "clamp floor"])
def test_a_collapsed_head_is_freed_by_the_penalty_and_never_by_a_clamp_floor(kind):
    problem = Sentinel(16, answer=0)
    policy = new_policy(problem)
    with torch.no_grad():
        policy.heads.choices["blueprint"].get_parameter("bias")[1] = COLLAPSED
    explore = Exploration.for_budget(problem.steps)
    if kind == "ours":
        learner = Learner(policy, quick())
    else:
        learner = Learner(policy, quick(prior_strength=PriorStrength(**dict.fromkeys(VALUE_HEADS, 0.0))))
        explore = ClampFloor(op=explore.op, choices=explore.choices)
    history = train(learner, problem, 24 if kind == "ours" else 15, explore)
    gap, score = history[-1]["train/logit_gap/blueprint"], earned(learner, problem, rounds=2)
    if kind == "ours":
        assert gap < 3.0
        assert score > 0.9
    else:
        assert gap > COLLAPSED - 1.0
        assert score < 0.1


# 4


def test_the_critic_explains_a_known_return():
    problem = KnownReturn(16)
    learner = Learner(new_policy(problem), quick(learning_rate=1e-3))
    history = train(learner, problem, 20)
    assert history[0]["train/explained_variance"] < 0.5
    assert all(report["train/explained_variance"] > 0.9 for report in history[-5:]), "on rounds that it had not seen"
    assert history[-1]["train/explained_variance_ceiling"] > 0.9


# 5


@pytest.mark.parametrize("updates", [0, 3])
def test_replayed_log_probs_are_the_recorded_ones_and_the_first_ratio_is_one(updates):
    problem = Sentinel(8)
    explore = Exploration.for_budget(problem.steps)
    learner = Learner(new_policy(problem, hidden=64), quick())
    train(learner, problem, updates, explore)
    rollout = play(learner.policy, problem, 5, explore)
    with torch.no_grad():
        log_prob = learner.policy.replay(rollout.observations, explore).score(rollout.actions).log_prob
        value = learner.policy.value_head.denormalise(learner.policy.normalised_values(rollout.observations))
    assert (log_prob - rollout.log_prob).abs().max() < 1e-6
    assert (value - rollout.value).abs().max() < 1e-5
    assert learner.update(rollout)["train/ratio_error"] < 1e-6


# 6


@pytest.mark.parametrize("gap", [5.0, 10.0, 20.0])
@pytest.mark.parametrize("head", HEADS)
def test_the_penalty_keeps_its_gradient_however_far_a_head_has_collapsed(head, gap):
    # One host on which the head matters in one context: op, slot and values are legal as far as that needs.
    batch = ObservationBatch.padding((1,), 3, 4)
    batch.blueprint_mask.fill_(True)
    for op in Op if head is Head.OP else OPS_OF[head][-1:]:
        batch.op_mask[:, op] = True
        batch.slot_mask[:, op, : 3 if head is Head.SLOT else 1] = True
    policy = new_policy(Bandit(1))
    features, slots, _ = policy.actor.step(batch, policy.initial_state(1).actor)
    logits = {each: torch.zeros_like(tensor) for each, tensor in unpacked(policy.heads(features, slots), 4).items()}
    logits[head][..., 1] = gap
    logits[head].requires_grad_()
    distribution = ActionDistribution(packed(logits), batch)
    distance = distribution.distance_from(prior_tables(Prior(), batch))[0, HEADS.index(head)]
    (gradient,) = torch.autograd.grad(distance, logits[head], retain_graph=True)
    assert gradient.abs().max() > 0.1
    block = {Head.OP: distribution.op, Head.SLOT: distribution.slot}.get(head, distribution.choices)
    entropy = -(block.log_p.exp() * block.log_p).sum(dim=-1)[block.reachable].sum()
    (vanishing,) = torch.autograd.grad(entropy, logits[head])
    assert vanishing.abs().max() < gap * torch.tensor(-gap).exp() * 10, "what an entropy bonus has left to pull with"


# 7


def test_masks_advantages_entropies_and_kl_agree_with_sums_over_everything():
    problem = Bandit(12)
    explore = Exploration(op=0.02, choices=0.03)
    learner = Learner(new_policy(problem), quick(target_kl=0.0))
    rollout = play(learner.policy, problem, 0, explore)
    before = copy.deepcopy(learner.policy)
    with torch.no_grad():
        logits = unpacked(before.heads(*before.actor.replay(rollout.observations, checkpoint_lstm=False, autocast=False)), 4)
    metrics = learner.update(rollout)
    joint, entropies, counts = 0.0, torch.zeros(len(HEADS)), torch.zeros(len(HEADS))
    for host in range(problem.hosts):
        here, taken = rollout.observations[host, 0], tuple(rollout.actions[host, 0].tolist())
        actions = every_action(here)
        assert taken in actions
        old, new = (_log_probs(policy, here, actions, explore) for policy in (before, learner.policy))
        assert old.exp().sum().item() == pytest.approx(1.0, abs=1e-5)
        joint += (old.exp() * (old - new)).sum().item() / problem.hosts
        for head, chances in by_hand({each: table[host, 0] for each, table in logits.items()}, here, taken).items():
            if len(chances) > 1:
                entropies[HEADS.index(head)] -= sum(p * math.log(p) for p in chances.values()) / math.log(len(chances))
                counts[HEADS.index(head)] += 1
    assert metrics["train/kl"] == pytest.approx(joint, rel=1e-4)
    for head, entropy, count in zip(HEADS, entropies.tolist(), counts.tolist(), strict=True):
        assert count == 0 or metrics[f"train/entropy/{head}"] == pytest.approx(entropy / count, rel=1e-4)
    # Episodes of one step: the advantage is what was earned beyond what was expected.
    assert torch.allclose(rollout.advantages(0.9, 0.8), rollout.reward - rollout.value)
    longer = play(new_policy(Sentinel(3)), Sentinel(3), 1, explore)
    for host in range(3):
        expected = brute_force(longer.reward[host].tolist(), longer.value[host].tolist(), 0.9, 0.8)
        assert longer.advantages(0.9, 0.8)[host].tolist() == pytest.approx(expected, abs=1e-5)


@torch.no_grad()
def _log_probs(policy: Policy, here: ObservationBatch, actions: list[tuple[int, ...]], explore: Exploration) -> Tensor:
    """Log-probabilities of many actions of one host, at the first step of its episode."""
    many = here.map(lambda tensor: tensor.expand(len(actions), 1, *tensor.shape))
    return policy.replay(many, explore).score(torch.tensor(actions).unsqueeze(1)).log_prob.squeeze(1)


# 8


def test_hosts_played_at_once_are_as_hosts_played_one_after_another():
    problem = Sentinel(6)
    policy = new_policy(problem, hidden=64)
    explore = Exploration(op=0.02)
    together = RolloutBuffer(6, problem.steps, problem.slots, 4, exploration=explore)
    apart = RolloutBuffer(6, problem.steps, problem.slots, 4, exploration=explore)
    play(policy, problem, 3, explore, buffer=together)
    for host in range(6):
        play(policy, problem, 3, explore, buffer=apart, hosts=[host])
    a, b = together.rollout(), apart.rollout()
    assert torch.equal(a.actions, b.actions)
    assert torch.equal(a.reward, b.reward)
    assert torch.allclose(a.log_prob, b.log_prob, atol=1e-6)
    assert torch.allclose(a.value, b.value, atol=1e-6)
    for name, tensor in a.observations.tensors().items():
        assert torch.equal(tensor, b.observations.tensors()[name]), name


# 9


def test_learning_goes_on_bit_by_bit_after_a_resume(tmp_path):
    problem = Sentinel(4)
    explore = Exploration.for_budget(problem.steps)
    straight = Learner(new_policy(problem), quick(decay="linear", warmup_updates=2), seed=5)
    train(straight, problem, 3, explore)
    straight.reset_heads(["tempo"])
    CheckpointStore(tmp_path).save(3, {"learner": straight.state()})
    reports = train(straight, problem, 3, explore)

    resumed = Learner(new_policy(problem, seed=99), quick(decay="linear", warmup_updates=2), seed=5)
    resumed.load_state(CheckpointStore(tmp_path).load(3)["learner"])
    assert train(resumed, problem, 3, explore) == reports
    assert resumed.updates == straight.updates == 6
    for part in ("policy", "optimizer"):
        _assert_equal(straight.state()[part], resumed.state()[part])
    assert straight.policy.value_head.updates == 6


def _assert_equal(a: object, b: object) -> None:
    """The same all the way down."""
    if isinstance(a, Tensor):
        assert isinstance(b, Tensor)
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert isinstance(b, dict)
        assert a.keys() == b.keys()
        for key in a:
            _assert_equal(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert isinstance(b, list | tuple)
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            _assert_equal(x, y)
    else:
        assert a == b
