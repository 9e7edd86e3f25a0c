"""Learning from forks: its formulas by hand, and small problems with known answers."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from esper.leyline.actions import Head, Op
from esper.leyline.errors import LearningError
from esper.simic.learning.expert import ExpertLearner, preferences, search_loss, wanted
from esper.simic.learning.expert_config import ExpertConfig
from esper.simic.learning.forks import Search
from esper.simic.learning.rollout import Rollout
from esper.tamiyo.policy.batch import HEADS
from esper.tamiyo.policy.policy import Policy
from esper.tolaria.storage.checkpoint import CheckpointStore
from tests.simic.problems import COLUMN, WAITED, KnownReturn, Sentinel, germinated, new_policy, play

POINTS = 5.0
"""What the right decision of a moment is worth."""
SURE = 8.0
"""Nats by which a policy that is sure prefers one value."""


# Formulas


def test_a_candidate_is_wanted_as_it_was_and_e_times_as_much_for_each_temperature_that_it_is_ahead():
    scores = torch.tensor([[70.0, 72.0, 99.0], [70.0, 74.0, 70.0]], dtype=torch.float64)
    present = torch.tensor([[True, True, False], [True, True, True]])
    found = wanted(torch.zeros(2, 3), scores, present, temperature=2.0)
    assert found[0].tolist() == pytest.approx([1 / (1 + math.e), math.e / (1 + math.e), 0.0])
    assert found[1].tolist() == pytest.approx([each / (2 + math.e**2) for each in (1.0, math.e**2, 1.0)])
    before = torch.tensor([[0.0, -1.0, 0.0], [0.0, -2.0, -math.log(3.0)]], dtype=torch.float64)
    found = wanted(before, scores, present, temperature=2.0)
    assert found[0].tolist() == pytest.approx([0.5, 0.5, 0.0]), "two points are what one nat was"
    assert found[1].tolist() == pytest.approx([each / (2 + 1 / 3) for each in (1.0, 1.0, 1 / 3)])


def test_the_loss_is_a_divergence_over_the_candidates_that_there_are():
    present = torch.tensor([[True, True, False], [True, True, True]])
    target = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])
    given = torch.tensor([[0.0, -math.log(3.0), 7.0], [math.log(0.2), math.log(0.3), math.log(0.5)]], requires_grad=True)
    loss = search_loss(given, target, present)
    # softmax of 0 and -log 3 is 3/4 and 1/4: half of log(2/3) and half of log 2.
    assert loss.tolist() == pytest.approx([0.5 * math.log(2 / 3) + 0.5 * math.log(2.0), 0.0], abs=1e-6)
    loss.sum().backward()
    assert given.grad is not None
    assert given.grad[0].tolist() == pytest.approx([0.25, -0.25, 0.0]), "what the policy thinks minus what is wanted"


def test_preferences_of_candidates_are_those_that_the_policy_has_at_their_moments():
    problem = Sentinel(3)
    policy = new_policy(problem)
    search = searched(policy, problem, 0)
    with torch.no_grad():
        found = preferences(policy.logits(search.observations), search.observations, search.where, search.candidates)
        distribution = policy.replay(search.observations)
    assert found[:, 0].eq(0.0).all(), "what it does itself comes first"
    assert (found[:, 1:] <= 0.0).all()
    assert (found[:, 1:] < 0.0).any()
    for row, (host, step) in enumerate(search.where.tolist()):
        everywhere = search.candidates[row, 2].expand(*search.weight.shape, len(HEADS))
        assert found[row, 2] == pytest.approx(distribution.preference(everywhere)[host, step].item(), abs=1e-6)
    assert torch.equal(search.preferred, found)


# A problem


def bare(rollout: Rollout) -> Search:
    """Episodes in which nothing was tried."""
    return Search(
        observations=rollout.observations,
        reward=rollout.reward,
        weight=rollout.weight,
        where=torch.zeros(0, 2, dtype=torch.int64),
        candidates=torch.zeros(0, 1, len(HEADS), dtype=torch.int64),
        scores=torch.zeros(0, 1, dtype=torch.float64),
        present=torch.zeros(0, 1, dtype=torch.bool),
        preferred=torch.zeros(0, 1, dtype=torch.float64),
    )


def searched(policy: Policy, problem: Sentinel, seed: int, *, noise: float = 0.0) -> Search:
    """A search on the sentinel: in the rare moment and in another step, three other decisions were tried than what the policy does.

    A seed of the right blueprint in the moment is worth POINTS, any other seed costs half of that. Every score has a noise of that std.
    """
    rollout, random = play(policy, problem, seed, greedy=True), torch.Generator().manual_seed(seed)
    everything = [WAITED, *(germinated(slot, blueprint) for slot in range(problem.slots) for blueprint in range(len(problem.blueprints)))]
    where, candidates, scores = [], [], []
    for host, moment in enumerate(problem.moment.tolist()):
        for step in (moment, (moment + 1 + int(torch.randint(problem.steps - 1, (), generator=random))) % problem.steps):
            own = tuple(rollout.actions[host, step].tolist())
            others = [action for action in everything if action[:3] != own[:3]]
            tried = [own, *(others[place] for place in torch.randperm(len(others), generator=random)[:3].tolist())]
            where.append((host, step))
            candidates.append(tried)
            scores.append([worth(problem, host, action) if step == moment else cost(action) for action in tried])
    found, seen = torch.tensor(scores, dtype=torch.float64), rollout.observations
    with torch.no_grad():
        preferred = preferences(policy.logits(seen), seen, torch.tensor(where), torch.tensor(candidates))
    return replace(
        bare(rollout),
        where=torch.tensor(where),
        candidates=torch.tensor(candidates),
        scores=found + noise * torch.randn(found.shape, generator=random),
        present=torch.ones(found.shape, dtype=torch.bool),
        preferred=preferred,
    )


def cost(action: tuple[int, ...]) -> float:
    """What an action is worth where no seed is."""
    return -POINTS / 2 if action[0] == Op.GERMINATE else 0.0


def worth(problem: Sentinel, host: int, action: tuple[int, ...]) -> float:
    """What it is worth in the rare moment."""
    right = action[COLUMN[Head.BLUEPRINT]] == problem.mark[host, action[1]]
    return POINTS if action[0] == Op.GERMINATE and right else cost(action)


def judged(policy: Policy, hosts: int = 64) -> tuple[float, float]:
    """Share of the rare moments that the mode seizes with the right blueprint, and of the other steps that it waits out; unseen hosts."""
    problem = Sentinel(hosts)
    rollout = play(policy, problem, 7, greedy=True)
    rows = torch.arange(hosts)
    moments = rollout.actions[rows, problem.moment]
    seized = (moments[:, 0] == Op.GERMINATE) & problem.right(moments)
    waited = rollout.actions[..., 0] == Op.WAIT
    waited[rows, problem.moment] = False
    return seized.float().mean().item(), waited.sum().item() / (hosts * (problem.steps - 1))


def quick(**changes: object) -> ExpertConfig:
    """Defaults, but for steps that get there in seconds."""
    return ExpertConfig(**({"learning_rate": 1e-2, "batch": 32, "window": 4} | changes))  # type: ignore[arg-type]


def train(learner: ExpertLearner, problem: Sentinel, updates: int, *, noise: float = 0.0) -> list[dict[str, float]]:
    """So many searches and updates; what each reported."""
    return [learner.update(searched(learner.policy, problem, 1000 + learner.updates, noise=noise)) for _ in range(updates)]


# Learning


@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_the_mode_becomes_right_on_hosts_that_were_never_seen(noise):
    problem = Sentinel(32)
    learner = ExpertLearner(new_policy(problem), quick(), rounds=8)
    assert judged(learner.policy)[0] < 0.5
    train(learner, problem, 8, noise=noise)
    seized, waited = judged(learner.policy)
    assert seized > 0.9
    assert waited > 0.98


def test_a_policy_that_is_sure_of_the_wrong_decision_gets_out_of_it():
    problem = Sentinel(32)
    policy = new_policy(problem)
    with torch.no_grad():
        policy.heads.op.bias[Op.GERMINATE] = SURE
        policy.heads.choices["blueprint"].get_parameter("bias")[1] = SURE
    assert judged(policy)[1] == 0.0, "it germinates in every step"
    learner = ExpertLearner(policy, quick(), rounds=12)
    train(learner, problem, 12)
    seized, waited = judged(policy)
    assert seized > 0.9
    assert waited > 0.98


def test_where_nothing_is_better_than_anything_else_the_policy_stays_as_it_was():
    problem = Sentinel(16)
    policy = new_policy(problem)
    with torch.no_grad():
        policy.heads.op.bias[Op.WAIT] = 2.0
    learner, search = ExpertLearner(policy, quick(anchor=0.0), rounds=2), searched(policy, problem, 0)
    report = learner.update(replace(search, scores=torch.full_like(search.scores, 60.0)))
    assert report["train/kl"] < 0.01, "candidates of the same score do not become the same to it"


def test_where_nothing_was_tried_the_policy_stays_as_it_was():
    problem = Sentinel(16)
    policy = new_policy(problem)
    learner, before = ExpertLearner(policy, quick(), rounds=2), copy.deepcopy(policy)
    report = learner.update(bare(play(policy, problem, 0, greedy=True)))
    assert report["train/search_loss"] == 0.0
    assert report["train/kl"] < 0.01, "but for rounding, which Adam makes more of"
    assert not all(map(torch.equal, policy.critic.parameters(), before.critic.parameters())), "the critic learns all the same"


def test_the_anchor_holds_the_policy_near_what_it_did():
    problem = Sentinel(32)
    moved = {}
    for anchor in (0.0, 10.0):
        learner = ExpertLearner(new_policy(problem), quick(anchor=anchor), rounds=4)
        moved[anchor] = train(learner, problem, 1)[0]["train/kl"]
    assert 0.0 < moved[10.0] < 0.5 * moved[0.0]


def test_the_critic_learns_what_hosts_earn():
    problem = KnownReturn(16)
    learner = ExpertLearner(new_policy(problem), quick(learning_rate=2e-3, window=1, batch=4), rounds=24)
    reports = [learner.update(bare(play(learner.policy, problem, seed, greedy=True))) for seed in range(12)]
    assert reports[0]["train/explained_variance"] < 0.9
    assert reports[-1]["train/explained_variance"] > 0.9


def test_what_the_critic_foresaw_is_told_of_before_it_learns_from_the_round():
    problem, told = KnownReturn(16), []
    for rate in (0.0, 1e-2):
        learner = ExpertLearner(new_policy(problem), quick(learning_rate=rate, batch=4, epochs=16), rounds=2)
        told.append(learner.update(bare(play(learner.policy, problem, 0, greedy=True)))["train/explained_variance"])
    assert told[0] == pytest.approx(told[1])


def test_searches_of_hosts_with_other_slots_and_steps_are_learned_from_together():
    few, many = Sentinel(8), Sentinel(6)
    many.slots, many.steps = 3, 25  # type: ignore[misc]
    learner = ExpertLearner(new_policy(few), quick(batch=4), rounds=3)
    for problem in (few, many, few):
        report = learner.update(searched(learner.policy, problem, learner.updates))
    assert [each.observations.slot_count for each in learner.searches] == [2, 3, 2]
    assert report["train/search_loss"] > 0.0


def test_one_host_is_learned_from_and_none_is_held_out():
    problem = Sentinel(1)
    learner = ExpertLearner(new_policy(problem), quick(held_out=1.0), rounds=2)
    report = train(learner, problem, 1)[0]
    assert report["train/search_loss"] > 0.0
    assert "search/gain" not in report


def test_the_newest_rounds_are_kept():
    problem = Sentinel(2)
    learner = ExpertLearner(new_policy(problem), quick(window=2), rounds=3)
    train(learner, problem, 3)
    expected = [searched(new_policy(problem), problem, seed).observations.host for seed in (1001, 1002)]
    assert all(torch.equal(each.observations.host, host) for each, host in zip(learner.searches, expected, strict=True))


def test_the_learning_rate_falls_in_a_line_to_a_tenth():
    problem = Sentinel(2)
    learner = ExpertLearner(new_policy(problem), quick(learning_rate=1.0e-3), rounds=4)
    rates = [report["train/learning_rate"] for report in train(learner, problem, 5)]
    assert rates == pytest.approx([1e-3, 7e-4, 4e-4, 1e-4, 1e-4])


# Hosts that are held out


def test_what_is_gained_is_told_of_hosts_that_nothing_is_learned_from():
    problem, config = Sentinel(8), quick(held_out=0.25, batch=4)
    first, second = (searched(new_policy(problem), problem, seed) for seed in (0, 1))

    def after(search: Search) -> tuple[list[Tensor], dict[str, float]]:
        learner = ExpertLearner(new_policy(problem), config, rounds=8, seed=3)
        learner.update(search)
        return [each.detach().clone() for each in learner.policy.parameters()], learner.update(second)

    weights, report = after(first)
    held = []
    for host in range(8):
        others = replace(first, scores=first.scores + torch.linspace(-20, 20, 4) * (first.where[:, :1] == host))
        changed, told = after(others)
        if all(map(torch.equal, changed, weights)):
            held.append(host)
            assert told["search/best"] != report["search/best"]
            assert told["train/search_loss"] == report["train/search_loss"], "in later updates neither"
        else:
            assert told["search/best"] == report["search/best"]
    assert len(held) == 2, "a quarter of them"


def test_gain_and_best_are_points_ahead_of_what_the_policy_did():
    problem = Sentinel(6)
    policy = new_policy(problem)
    search = searched(policy, problem, 0)
    # Every moment alike: its second candidate is 3 points ahead, its third 1 behind, and the fourth, which is none, far ahead.
    scores = torch.tensor([70.0, 73.0, 69.0, 99.0], dtype=torch.float64).expand(len(search.where), 4)
    search = replace(search, scores=scores, present=torch.tensor([True, True, True, False]).expand(len(search.where), 4))
    report = ExpertLearner(policy, quick(held_out=0.5, learning_rate=0.0), rounds=2).update(search)
    assert (report["search/gain"], report["search/best"]) == (0.0, 3.0), "a policy that does not move gains nothing"
    report = ExpertLearner(policy, quick(held_out=0.5, learning_rate=0.0), rounds=2).update(
        replace(search, candidates=search.candidates[:, [1, 0, 2, 3]])
    )
    assert report["search/gain"] == 3.0, "its preference is what counts"


# Going on


def test_learning_goes_on_bit_by_bit_after_a_resume(tmp_path: Path):
    problem = Sentinel(6)
    straight = ExpertLearner(new_policy(problem), quick(window=3, held_out=0.2), rounds=6, seed=5)
    straight.update(bare(play(straight.policy, problem, 0, greedy=True)))
    train(straight, problem, 2)
    straight.reset_heads(["tempo"])
    CheckpointStore(tmp_path).save(3, {"learner": straight.state()})
    reports = train(straight, problem, 3)
    resumed = ExpertLearner(new_policy(problem, seed=99), quick(window=3, held_out=0.2), rounds=6, seed=5)
    resumed.load_state(CheckpointStore(tmp_path).load(3)["learner"])
    assert train(resumed, problem, 3) == reports
    assert all(map(torch.equal, resumed.policy.state_dict().values(), straight.policy.state_dict().values()))
    assert resumed.updates == straight.updates == 6


def test_settings_of_learning_may_be_others_when_it_goes_on():
    problem = Sentinel(6)
    learner = ExpertLearner(new_policy(problem), quick(window=1), rounds=3)
    train(learner, problem, 2)
    other = ExpertLearner(new_policy(problem), quick(window=3, learning_rate=1e-4, weight_decay=0.25), rounds=5)
    other.load_state(learner.state())
    report = train(other, problem, 1)[0]
    assert len(other.searches) == 2
    assert report["train/learning_rate"] == pytest.approx(1e-4 * (1 - 0.9 * 2 / 4))
    assert [group["weight_decay"] for group in other.optimizer.param_groups] == [0.0, 0.25]


def test_heads_are_made_new_and_the_optimiser_forgets_them():
    problem = Sentinel(4)
    learner = ExpertLearner(new_policy(problem), quick(), rounds=3)
    train(learner, problem, 1)
    before = {name: parameter.clone() for name, parameter in learner.policy.named_parameters()}
    learner.reset_heads(["blueprint"])
    changed = {name for name, parameter in learner.policy.named_parameters() if not torch.equal(parameter, before[name])}
    assert changed
    assert all("blueprint" in name for name in changed)
    forgotten = {name for name, parameter in learner.policy.named_parameters() if parameter not in learner.optimizer.state}
    assert changed <= forgotten
    assert all("blueprint" in name for name in forgotten)


def test_what_is_not_finite_is_a_sentence():
    problem = Sentinel(4)
    learner = ExpertLearner(new_policy(problem), quick(), rounds=3)
    search = searched(learner.policy, problem, 0)
    search.reward[1, 3] = math.inf
    with pytest.raises(LearningError, match=r"update 1 of the policy went wrong: .* not finite; .* lower expert\.learning_rate"):
        learner.update(search)
