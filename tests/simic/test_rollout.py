"""The buffer of a round, and advantages held against the sum that defines them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from esper.leyline.actions import Op
from esper.leyline.observation import OBSERVATION
from esper.simic.learning.rollout import RolloutBuffer, gae, td_targets
from esper.tamiyo.policy.batch import ObservationBatch
from esper.tamiyo.policy.heads import Exploration, uniforms
from esper.tamiyo.policy.policy import Acted, Policy, PolicyConfig

POLICY = Policy(PolicyConfig(blueprints=("a", "b"), hidden=8, slot_width=8))


def seen(hosts: int, slots: int = 2, value: float = 1.0) -> ObservationBatch:
    batch = ObservationBatch.padding((hosts,), slots, 2)
    for tensor in (batch.exists, batch.blueprint_mask):
        tensor.fill_(True)
    batch.host.fill_(value)
    batch.op_mask[:, Op.GERMINATE] = True
    batch.slot_mask[:, Op.GERMINATE] = True
    return batch


def acted(hosts: int, slots: int = 2, step: int = 0) -> Acted:
    return POLICY.act(seen(hosts, slots), POLICY.initial_state(hosts), uniforms(0, range(hosts), step))


def ends(*flags: bool) -> Tensor:
    return torch.tensor(flags)


def fill(buffer: RolloutBuffer, lengths: list[int], slots: int = 2) -> None:
    """Episodes of these lengths, host by host."""
    for host, length in enumerate(lengths):
        for step in range(length):
            buffer.decided([host], step, seen(1, slots, value=host + step / 10), acted(1, slots, step))
            buffer.outcome([host], step, torch.tensor([float(step)]), terminated=ends(step == length - 1))


# Advantages


def brute_force(reward: list[float], value: list[float], gamma: float, lam: float) -> list[float]:
    """The advantage of each step of one episode: a sum over everything that follows."""
    deltas = [r + gamma * after - before for r, after, before in zip(reward, [*value[1:], 0.0], value, strict=True)]
    return [sum((gamma * lam) ** (later - t) * deltas[later] for later in range(t, len(deltas))) for t in range(len(deltas))]


NUMBER = st.floats(-5, 5, width=32)
EPISODES = st.lists(st.lists(st.tuples(NUMBER, NUMBER), min_size=1, max_size=9), min_size=1, max_size=4)
"""For each host the reward and the value of every step of its episode."""


@given(EPISODES, NUMBER, st.floats(0, 1), st.floats(0, 1))
def test_advantages_are_the_discounted_sum_of_what_follows_in_the_episode(episodes, padding, gamma, lam):
    # Whatever stands in padding counts for nothing.
    reward, value = (torch.full((len(episodes), max(map(len, episodes))), padding) for _ in range(2))
    weight, expected = torch.zeros_like(reward), torch.zeros_like(reward)
    for host, episode in enumerate(episodes):
        length, figures = len(episode), torch.tensor(episode)
        reward[host, :length], value[host, :length], weight[host, :length] = figures[:, 0], figures[:, 1], 1.0
        expected[host, :length] = torch.tensor(brute_force(*map(list, zip(*episode, strict=True)), gamma, lam))
    assert torch.allclose(gae(reward, value, weight, gamma, lam), expected, atol=1e-3, rtol=1e-4)


def test_a_worked_case():
    # Two steps, gamma 0.5, lambda 0.5: deltas 1 + 0.5 * 4 - 2 = 1 and 3 - 4 = -1; advantages 1 - 0.25 = 0.75 and -1.
    assert gae(torch.tensor([[1.0, 3.0]]), torch.tensor([[2.0, 4.0]]), torch.ones(1, 2), 0.5, 0.5).tolist() == [[0.75, -1.0]]


def test_targets_by_hand():
    reward = torch.tensor([[1.0, 2.0, 3.0], [4.0, 9.0, 9.0]])
    value = torch.tensor([[10.0, 20.0, 30.0], [40.0, 50.0, 60.0]])
    weight = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    # The last step of an episode is its end: nothing follows, whatever the critic says of the padding.
    assert td_targets(reward, value, weight, 0.5).tolist() == [[1.0 + 10.0, 2.0 + 15.0, 3.0], [4.0, 0.0, 0.0]]


# The buffer


def test_everything_written_is_read_back_and_the_rest_is_legal_padding():
    buffer = RolloutBuffer(3, 5, 4, 2, exploration=Exploration(op=0.01))
    fill(buffer, [2, 4, 1])
    rollout = buffer.rollout()
    assert rollout.hosts == 3
    assert rollout.exploration == Exploration(op=0.01)
    assert rollout.lengths().tolist() == [2, 4, 1]
    assert rollout.weight.shape == (3, 4), "cut to the longest episode"
    assert rollout.reward.tolist() == [[0, 1, 0, 0], [0, 1, 2, 3], [0, 0, 0, 0]]
    assert rollout.observations.host[1, 2, 0].item() == pytest.approx(1.2)
    assert rollout.observations.exists[0, 0].tolist() == [True, True, False, False], "fewer slots than there is room for"
    padding = rollout.weight == 0
    assert rollout.observations.op_mask[padding].tolist() == [[True, *[False] * 5]] * int(padding.sum())
    assert (rollout.actions[padding][:, 0] == Op.WAIT).all()
    distribution = POLICY.replay(rollout.observations, rollout.exploration)
    assert distribution.score(rollout.actions).log_prob[padding].abs().max() < 1e-6
    assert rollout.advantages(0.99, 0.95)[padding].abs().max() == 0.0


def test_hosts_written_together_are_as_those_written_one_by_one():
    together, apart = RolloutBuffer(3, 1, 2, 2), RolloutBuffer(3, 1, 2, 2)
    batch, decisions = seen(3), acted(3)
    together.decided(range(3), 0, batch, decisions)
    together.outcome(range(3), 0, torch.arange(3.0), terminated=ends(True, True, True))
    for host in (2, 0, 1):
        one = Acted(
            actions=decisions.actions[host : host + 1],
            log_prob=decisions.log_prob[host : host + 1],
            value=decisions.value[host : host + 1],
            chances=decisions.chances[host : host + 1],
            state=decisions.state,
        )
        apart.decided([host], 0, batch[host : host + 1], one)
        apart.outcome([host], 0, torch.tensor([float(host)]), terminated=ends(True))
    for a, b in zip(together._tensors(), apart._tensors(), strict=True):
        assert torch.equal(a, b)


def test_a_cleared_buffer_is_as_a_new_one():
    buffer = RolloutBuffer(2, 3, 2, 2)
    fill(buffer, [3, 2])
    buffer.clear()
    for a, b in zip(buffer._tensors(), RolloutBuffer(2, 3, 2, 2)._tensors(), strict=True):
        assert torch.equal(a, b)


def test_its_size_is_told():
    small, large = RolloutBuffer(1, 10, 2, 2), RolloutBuffer(4, 10, 2, 2)
    assert large.nbytes == 4 * small.nbytes
    assert small.nbytes > 10 * 4 * (OBSERVATION.host_size + 2 * OBSERVATION.slot_size)


def test_filling_it_allocates_nothing_new():
    buffer = RolloutBuffer(2, 3, 2, 2)
    places = [tensor.data_ptr() for tensor in buffer._tensors()]
    fill(buffer, [3, 2])
    buffer.clear()
    fill(buffer, [1, 2])
    assert [tensor.data_ptr() for tensor in buffer._tensors()] == places
    assert buffer.rollout().observations.host.data_ptr() == buffer.observations.host.data_ptr()


@pytest.mark.parametrize(
    ("hosts", "step", "slots", "message"),
    [
        ([0], 3, 2, "step 3 of hosts .* does not fit: the buffer has 2 hosts and 3 steps"),
        ([2], 0, 2, "does not fit"),
        ([0], -1, 2, "does not fit"),
        ([0], 0, 5, "a host has 5 slots; the buffer was made for 2"),
        ([0], 1, 2, "the step before it has no outcome yet"),
    ],
)
def test_what_does_not_fit_is_refused(hosts, step, slots, message):
    buffer = RolloutBuffer(2, 3, 2, 2)
    with pytest.raises(ValueError, match=message):
        buffer.decided(hosts, step, seen(1, slots), acted(1, slots))
    assert buffer.weight.sum() == 0


def test_steps_are_decided_once_and_have_one_outcome():
    buffer = RolloutBuffer(1, 2, 2, 2)
    with pytest.raises(ValueError, match="was not decided yet"):
        buffer.outcome([0], 0, torch.zeros(1), terminated=ends(False))
    buffer.decided([0], 0, seen(1), acted(1))
    with pytest.raises(ValueError, match="was decided before"):
        buffer.decided([0], 0, seen(1), acted(1))
    buffer.outcome([0], 0, torch.zeros(1), terminated=ends(False))
    with pytest.raises(ValueError, match="has an outcome already"):
        buffer.outcome([0], 0, torch.zeros(1), terminated=ends(False))


def test_a_round_with_an_open_episode_is_refused():
    buffer = RolloutBuffer(2, 2, 2, 2)
    fill(buffer, [2])
    with pytest.raises(ValueError, match=r"those of hosts \[1\] have no end"):
        buffer.rollout()


def test_two_episodes_in_a_row_are_refused_because_memory_would_run_on():
    buffer = RolloutBuffer(1, 2, 2, 2)
    buffer.decided([0], 0, seen(1), acted(1))
    buffer.outcome([0], 0, torch.zeros(1), terminated=ends(True))
    with pytest.raises(ValueError, match="ended before step 1; the buffer holds one whole episode"):
        buffer.decided([0], 1, seen(1), acted(1))
