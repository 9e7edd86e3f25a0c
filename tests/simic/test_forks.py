"""Forks: hosts that are as another up to one moment and decide otherwise there, and what becomes of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor

from esper.leyline.actions import Head, Op
from esper.leyline.events import HostFinished
from esper.simic.growth.environment import Growth, Start
from esper.simic.growth.play import Play
from esper.simic.growth.recording import EpisodeRecorder
from esper.simic.learning.forks import ANY_STEP, PATIENCE, SEARCHED_HEADS, Chances, Fork, ForkDecider, Search, planned
from esper.simic.learning.rollout import Rollout, RolloutBuffer
from esper.simic.runs.expert_config import ExpertRunConfig
from esper.tamiyo.policy.batch import HEADS
from esper.tamiyo.policy.heads import ActionDistribution
from esper.tamiyo.policy.policy import Policy
from esper.tolaria.training.config import TrainingConfig
from tests.simic.problems import WAITED, Sentinel, germinated, new_policy, play
from tests.simic.runs import HASTY, MEMBER, opinionated
from tests.tamiyo.enumeration import every_action, packed
from tests.tamiyo.test_heads import seeds, some_logits, some_masks

SEEDS = (1_000_000, 1_000_001)
EPOCHS = 7
FORKS = [Fork(host=host, step=step, latest=step, rank=rank) for host in range(2) for step in (0, 3) for rank in range(2)]
SEARCHED_COLUMNS = [HEADS.index(head) for head in SEARCHED_HEADS]


@dataclass
class Played:
    """Hosts and forks that have ended, each with all that it saw, did and earned."""

    decider: ForkDecider
    rollout: Rollout
    results: list[HostFinished]
    rows: list[dict[str, Tensor]]
    """By place: the fields of what was seen, and actions [steps, 8]."""
    rewards: list[list[float]]


def grow(forks: Sequence[Fork], seed: int = 0, training: TrainingConfig = HASTY, policy: Policy | None = None) -> Played:
    config = ExpertRunConfig(control=False, member="standard", fix=MEMBER, epochs=EPOCHS, training=training)
    policy = policy or opinionated()
    buffer = RolloutBuffer(len(SEEDS), EPOCHS, 3, len(policy.config.blueprints))
    decider = ForkDecider(policy, seed, forks, buffer)
    hosts = [Start("digits", seed) for seed in SEEDS]
    starts = [*hosts, *(hosts[fork.host] for fork in forks)]
    recorders = {place: EpisodeRecorder() for place in range(len(starts))}
    results = Play(Growth(config), decider, starts, recorders=recorders).through()
    states = [recorder.state() for recorder in recorders.values()]
    rows = [{name: torch.stack(row) for name, row in state["rows"].items()} for state in states]
    for row, state in zip(rows, states, strict=True):  # which blueprint was meant, as the policy counts them
        own = torch.tensor([policy.config.blueprints.index(name) for name in state["blueprints"]])
        column, names = HEADS.index(Head.BLUEPRINT), row["actions"][:, 0] == Op.GERMINATE
        row["actions"][names, column] = own[row["actions"][names, column]]
    return Played(decider, buffer.rollout(), results, rows, [state["rewards"] for state in states])


@pytest.fixture(scope="module")
def played() -> Played:
    """Two hosts, each with two forks from the first step and two from the fourth."""
    return grow(FORKS)


# Playing


def test_a_fork_is_its_host_up_to_its_moment_and_decides_otherwise_there(played: Played) -> None:
    assert len(played.decider.taken) == len(FORKS)
    for number, fork in enumerate(FORKS):
        host, own = played.rows[fork.host], played.rows[len(SEEDS) + number]
        step, action = played.decider.taken[number]
        assert step >= fork.step
        for name in host.keys() - {"actions"}:
            assert torch.equal(host[name][: step + 1], own[name][: step + 1]), f"{name} of {fork}"
        assert torch.equal(host["actions"][:step], own["actions"][:step])
        earned = max(0, step - 1)
        assert played.rewards[fork.host][:earned] == played.rewards[len(SEEDS) + number][:earned]
        assert own["actions"][step].tolist() == list(action)
        assert action != tuple(host["actions"][step].tolist())
        assert any(not torch.equal(host[name][step + 1], own[name][step + 1]) for name in host), "what is seen next shows it"


def test_the_hosts_alone_are_what_is_learned_from(played: Played) -> None:
    alone = grow([])
    assert played.results[: len(SEEDS)] == alone.results, "forks beside a host change nothing for it"
    for host in range(len(SEEDS)):
        assert torch.equal(played.rollout.actions[host], played.rows[host]["actions"])
        assert played.rollout.reward[host].tolist() == pytest.approx(played.rewards[host])
    assert torch.equal(played.rollout.actions, alone.rollout.actions)


def test_what_a_fork_tries_depends_on_seed_and_host_alone(played: Played) -> None:
    assert grow(FORKS).decider.taken == played.decider.taken
    assert grow(FORKS, seed=1).decider.taken != played.decider.taken
    last = grow(FORKS[4:]).decider.taken  # the forks of the second host by themselves
    assert last == {number - 4: taken for number, taken in played.decider.taken.items() if number >= 4}


def test_no_two_forks_of_a_host_try_the_same_even_if_their_moments_become_one() -> None:
    # Where the host can only wait, or do one other thing, forks of several moments go on to the same step.
    forks = [Fork(host=0, step=step, latest=step, rank=rank) for step in range(4) for rank in range(2)]
    taken = grow(forks, training=TrainingConfig()).decider.taken
    steps = {forks[number].step: step for number, (step, _) in taken.items()}
    assert len(set(steps.values())) < len(steps), "some have become one"
    assert len(set(taken.values())) == len(taken)


def test_a_fork_waits_until_there_is_something_to_try() -> None:
    # A host that germinates in its first step has a while in which it can only wait.
    late = grow([Fork(host=0, step=1, latest=1, rank=0)], training=TrainingConfig())
    ((step, _),) = late.decider.taken.values()
    free = late.rollout.observations.op_mask[0].sum(dim=-1) > 1
    assert not free[1:step].any(), "and no longer"
    assert step > 1


def test_a_fork_departs_where_the_policy_acts_and_in_the_end_anywhere() -> None:
    waits = opinionated()
    with torch.no_grad():
        waits.heads.op.bias[Op.WAIT] = 1e4
    forks = [Fork(host=0, step=1, latest=latest, rank=0) for latest in (1, 3, EPOCHS)]
    assert [taken[0] for taken in grow(forks, policy=waits).decider.taken.values()] == [1, 3], "the third would have to wait for an act"
    acts = grow(forks[2:])
    ((step, _),) = acts.decider.taken.values()
    assert step < EPOCHS
    assert acts.rollout.actions[0, step, 0] != Op.WAIT


# What is tried


@given(seeds)
def test_alternatives_are_legal_different_and_not_what_the_policy_does(generator):
    batch, logits = some_masks(generator, 1), packed(some_logits(generator, 1))
    distribution = ActionDistribution(logits, batch)
    own = tuple(distribution.mode()[0].tolist())
    (chances,) = Chances.of(distribution, batch)
    found = chances.alternatives(own, 4, np.random.default_rng(0))
    assert set(found) <= set(every_action(batch[0]))
    searched = [tuple(action[column] for column in SEARCHED_COLUMNS) for action in (own, *found)]
    assert len(set(searched)) == len(searched) <= 5
    assert all(action[0] != Op.SET_ALPHA_TARGET for action in found)
    for action in found:  # in the heads that are not searched, what the policy would do
        likeliest = distribution.likeliest(torch.tensor([action]))[0].tolist()
        matters = distribution.score(torch.tensor([action])).matters[0].tolist()
        free = [column for column in range(len(HEADS)) if column not in SEARCHED_COLUMNS and matters[column]]
        assert [action[column] for column in free] == [likeliest[column] for column in free]


@given(seeds)
def test_asking_for_more_alternatives_changes_none_of_the_first(generator):
    batch = some_masks(generator, 1)
    distribution = ActionDistribution(packed(some_logits(generator, 1)), batch)
    own = tuple(distribution.mode()[0].tolist())
    (chances,) = Chances.of(distribution, batch)
    few, many = (chances.alternatives(own, wanted, np.random.default_rng(3)) for wanted in (2, 5))
    assert many[: len(few)] == few


def test_every_alternative_is_found_where_there_are_few():
    problem = Sentinel(1)
    problem.begin(torch.Generator())
    batch = problem.observe(0)
    distribution = new_policy(problem).choose(batch, new_policy(problem).initial_state(1).actor, None)[1]
    (chances,) = Chances.of(distribution, batch)
    found = chances.alternatives(WAITED, 100, np.random.default_rng(0))
    places = {(action[1], action[HEADS.index(Head.BLUEPRINT)]) for action in found}
    assert len(found) == len(places) == problem.slots * len(problem.blueprints)
    batch.op_mask[:, Op.GERMINATE] = False
    (chances,) = Chances.of(distribution, batch)
    assert chances.alternatives(WAITED, 4, np.random.default_rng(0)) == [], "there is nothing but to wait"


# Plans


def test_a_plan_has_as_many_moments_of_each_host_and_as_many_alternatives_at_each():
    forks = planned([20, 5, 1], 3, 2, np.random.default_rng(0))
    for host, (length, moments) in enumerate([(20, 3), (5, 3), (1, 1)]):
        steps = [fork.step for fork in forks if fork.host == host]
        assert len(set(steps)) == moments, "a host with fewer steps has fewer moments"
        assert max(steps) < length
        assert [(fork.step, fork.rank) for fork in forks if fork.host == host] == [(s, r) for s in sorted(set(steps)) for r in range(2)]


def test_a_quarter_of_the_moments_may_be_steps_in_which_the_policy_waits():
    forks = planned([20] * 2000, 1, 1, np.random.default_rng(0))
    patience = Counter(fork.latest - fork.step for fork in forks if fork.step < 20 - PATIENCE - 1)
    assert patience.keys() == {0, PATIENCE}
    assert patience[0] / patience.total() == pytest.approx(ANY_STEP, abs=0.03)
    assert {fork.latest for fork in forks if fork.step >= 20 - PATIENCE - 1} <= set(range(20 - PATIENCE - 1, 20))
    assert all(fork.latest < 19 or fork.latest == fork.step for fork in forks), "nothing trains after the last step"
    alike = planned([20] * 50, 2, 3, np.random.default_rng(0))
    assert all(len({fork.latest for fork in alike if (fork.host, fork.step) == (one.host, one.step)}) == 1 for one in alike)


def test_plans_come_from_their_generator_and_favour_early_steps():
    forks = planned([20] * 2000, 1, 1, np.random.default_rng(4))
    assert planned([20] * 2000, 1, 1, np.random.default_rng(4)) == forks
    assert planned([20] * 2000, 1, 1, np.random.default_rng(5)) != forks
    counts = Counter(fork.step for fork in forks)
    odds = [1.0 / (step + 2) for step in range(20)]
    for step in range(20):
        assert counts[step] / 2000 == pytest.approx(odds[step] / sum(odds), abs=0.03)


# What came out


def searched(
    taken: dict[int, tuple[int, tuple[int, ...]]], forks: Sequence[Fork], scores: Sequence[float]
) -> tuple[Search, Rollout, ForkDecider]:
    """What is found from three hosts that wait, where seeds may be germinated anywhere, after forks took these actions."""
    problem, policy = Sentinel(3), new_policy(Sentinel(3))
    with torch.no_grad():
        policy.heads.op.bias[Op.WAIT] = 9.0
    buffer = RolloutBuffer(3, problem.steps, problem.slots, len(problem.blueprints))
    rollout = play(policy, problem, 0, greedy=True, buffer=buffer)
    decider = ForkDecider(policy, 0, forks, buffer)
    decider.taken = taken
    return decider.search(rollout, scores), rollout, decider


def moments_of(hosts: Sequence[int]) -> list[Fork]:
    return [Fork(host=host, step=0, latest=0, rank=rank) for rank, host in enumerate(hosts)]


@pytest.fixture
def found() -> Search:
    """A moment with three candidates of host 2, and one with two of host 0."""
    taken = {0: (4, germinated(0, 1)), 1: (4, germinated(1, 3)), 2: (7, germinated(1, 0))}
    return searched(taken, moments_of([2, 2, 0]), [10.0, 20.0, 30.0, 31.0, 32.0, 5.0])[0]


def test_a_moment_has_what_the_policy_did_first_and_then_what_its_forks_did(found: Search) -> None:
    assert found.where.tolist() == [[0, 7], [2, 4]]
    assert found.candidates[1].tolist() == [list(WAITED), list(germinated(0, 1)), list(germinated(1, 3))]
    assert found.scores[1].tolist() == [30.0, 31.0, 32.0]
    assert found.candidates[0].tolist() == [list(WAITED), list(germinated(1, 0)), list(WAITED)], "padded with what the policy did"
    assert found.scores[0].tolist() == [10.0, 5.0, 10.0]
    assert found.present.tolist() == [[True, True, False], [True, True, True]]


def test_what_the_host_could_not_do_or_did_itself_is_no_candidate() -> None:
    prune = (int(Op.PRUNE), *WAITED[1:])
    taken = {0: (4, prune), 1: (4, WAITED), 2: (4, germinated(0, 1)), 3: (4, germinated(0, 1)), 4: (9, prune), 5: (9, WAITED)}
    search, _, _ = searched(taken, moments_of([1] * 6), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])
    assert search.where.tolist() == [[1, 4]], "and a moment without any is none"
    assert search.candidates[0].tolist() == [list(WAITED), list(germinated(0, 1))]
    assert search.scores[0].tolist() == [2.0, 6.0], "the first of two forks that did the same"


def test_a_search_without_any_moment_is_still_a_search() -> None:
    search, _, _ = searched({}, moments_of([0]), [1.0, 2.0, 3.0, 4.0])
    assert len(search) == 3
    assert search.where.shape == (0, 2)
    assert search.candidates.shape == (0, 1, len(HEADS))
    assert len(search.part(torch.tensor([2])).where) == 0


def test_a_search_outlives_the_buffer_that_it_was_made_from() -> None:
    search, rollout, _ = searched({}, [], [1.0, 2.0, 3.0])
    before = {name: tensor.clone() for name, tensor in search.tensors().items()}
    for tensor in (*rollout.observations.tensors().values(), rollout.reward, rollout.weight):
        tensor.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in search.tensors().items())


def test_part_of_a_search_has_the_moments_of_its_hosts_by_their_new_numbers(found: Search) -> None:
    part = found.part(torch.tensor([2, 1]))
    assert part.where.tolist() == [[0, 4]]
    assert torch.equal(part.candidates[0], found.candidates[1])
    assert torch.equal(part.scores[0], found.scores[1])
    assert torch.equal(part.reward, found.reward[[2, 1]])
    assert torch.equal(part.observations.host, found.observations.host[[2, 1]])
    turned = found.part(torch.tensor([2, 0]))
    assert turned.where.tolist() == [[1, 7], [0, 4]]
    assert found.where.tolist() == [[0, 7], [2, 4]], "the whole stays as it is"


def test_a_search_is_the_same_from_its_tensors(found: Search) -> None:
    again = Search.from_tensors(found.tensors()).tensors()
    assert again.keys() == found.tensors().keys()
    assert all(torch.equal(tensor, again[name]) for name, tensor in found.tensors().items())
