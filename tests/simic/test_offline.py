"""Implicit Q-learning: the formulas by hand, and a problem whose best plan no episode and no majority shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from esper.leyline.actions import WAIT, Decision, Head, Op
from esper.nissa import Hub
from esper.simic.growth.recording import EpisodeRecorder, read_episodes
from esper.simic.learning.dataset import EpisodeDataset, read_dataset, split, stack
from esper.simic.learning.imitation import weighted_negative_log_likelihood
from esper.simic.learning.offline import (
    ImplicitQLearning,
    QNetwork,
    TwinQ,
    advantage_weights,
    expectile_loss,
    follow,
    held_out_preference,
)
from esper.simic.learning.offline_config import BCConfig, IQLConfig
from esper.simic.runs.offline import OfflineRun
from esper.tamiyo import Observation
from esper.tamiyo.policy.batch import HEADS, ObservationBatch
from esper.tamiyo.policy.network import PolicyConfig
from tests.simic.recordings import END, SMALL, first_observation, germinate, place, write_run

START, GOOD, PLAIN = 0, 1, 2
"""Places of the problem below."""

# The formulas


def test_the_expectile_loss_by_hand() -> None:
    difference = torch.tensor([2.0, -2.0, 0.0])
    assert expectile_loss(difference, 0.7).tolist() == pytest.approx([0.7 * 4.0, 0.3 * 4.0, 0.0])
    assert expectile_loss(difference, 0.5).tolist() == pytest.approx([2.0, 2.0, 0.0])


@given(st.lists(st.floats(-5.0, 5.0), min_size=2, max_size=12), st.floats(0.5, 0.99))
def test_the_value_with_the_least_expectile_loss_lies_between_mean_and_best(values: list[float], expectile: float) -> None:
    targets = torch.tensor(values, dtype=torch.float64)
    candidates = torch.linspace(-5.0, 5.0, 1001, dtype=torch.float64)
    losses = expectile_loss(targets[None] - candidates[:, None], expectile).sum(dim=1)
    found = float(candidates[losses.argmin()])
    assert float(targets.mean()) - 0.011 <= found <= float(targets.max()) + 0.011


def test_advantage_weights_by_hand() -> None:
    weights = advantage_weights(torch.tensor([0.0, 0.5, -0.5, 9.0]), beta=2.0, limit=100.0)
    assert weights.tolist() == pytest.approx([1.0, 2.718282, 0.367879, 100.0], rel=1e-5)


def test_the_slow_network_goes_a_share_of_the_way() -> None:
    slow, fast = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        slow.weight.fill_(1.0)
        fast.weight.fill_(3.0)
    follow(slow, fast, 0.25)
    assert slow.weight.item() == 1.5
    assert fast.weight.item() == 3.0


# The networks


def network_and_batch(tmp_path: Path, decisions: list[Decision]) -> tuple[QNetwork, ObservationBatch, Tensor]:
    """A Q network, and one observation with each of these decisions."""
    recorder = EpisodeRecorder()
    for decision in decisions:
        recorder.decided(place(0), decision)
        recorder.earned(0.0)
    recorder.save(tmp_path / "episodes" / "one.safetensors", task="digits", seed=0, controller="made up")
    (episode,), blueprints = read_episodes([tmp_path])
    rows = ObservationBatch(**{name: tensor.unsqueeze(1) for name, tensor in episode.batch.tensors().items()})
    network = QNetwork(PolicyConfig(blueprints=blueprints, hidden=16, slot_width=8), torch.Generator().manual_seed(0))
    return network, rows, episode.actions.unsqueeze(1)


def test_an_action_is_valued_by_the_heads_that_matter_and_the_slot_it_names(tmp_path: Path) -> None:
    slots = first_observation().masks.slot_names
    grown = germinate()
    different = [
        Decision(op=Op.GERMINATE, slot=slots[0], blueprint="norm", style=1),  # type: ignore[arg-type]
        Decision(op=Op.GERMINATE, slot=slots[1], blueprint="norm"),
        Decision(op=Op.GERMINATE, slot=slots[0], blueprint="norm", tempo=10),
        WAIT,
    ]
    network, batch, actions = network_and_batch(tmp_path, [grown, *different])
    with torch.no_grad():
        values = network(batch, actions).squeeze(1)
        idle = actions.clone()
        idle[0, 0, HEADS.index(Head.ALPHA_SPEED)] = 3
        idle[4, 0, HEADS.index(Head.SLOT)] = 1
        assert torch.equal(network(batch, idle).squeeze(1), values), "a head that does not matter must not matter"
    assert len({round(value, 6) for value in values.tolist()}) == 5


def test_the_twins_differ_and_share_nothing(tmp_path: Path) -> None:
    _, batch, actions = network_and_batch(tmp_path, [germinate(), WAIT])
    names = first_observation().masks.blueprint_names
    twins = TwinQ(PolicyConfig(blueprints=names, hidden=16, slot_width=8), torch.Generator().manual_seed(0))
    first, second = twins(batch, actions)
    assert not torch.allclose(first, second)
    first.sum().backward()
    assert all(parameter.grad is None for parameter in twins.second.parameters())


# Learning


def stitching(count: int = 60) -> list[list[tuple[Observation, Decision, float]]]:
    """Two decisions an episode. At the start GERMINATE leads to a good place and WAIT to a plain one, which pays 0.4 whatever is done.
    In the good place GERMINATE pays 1 and WAIT nothing.

    Whoever was recorded waited at the start in 7 of 10 episodes, and again in 7 of 10 in the good place. So waiting is what most did,
    and what on average paid best: the good place brought 0.3. The best plan, germinating twice, brings 1.
    """
    episodes = []
    for number in range(count):
        first, second = number % 10 < 3, (number // 10 + number) % 10 < 3
        if first:
            episodes.append([(place(START), germinate(), 0.0), (place(GOOD), germinate() if second else WAIT, float(second))])
        else:
            episodes.append([(place(START), WAIT, 0.0), (place(PLAIN), germinate() if second else WAIT, 0.4)])
    return episodes


def plan(study: OfflineRun, tmp_path: Path) -> tuple[int, int]:
    """What the policy would do at the start, and in the good place after it."""
    recorder = EpisodeRecorder()
    for number in (START, GOOD):
        recorder.decided(place(number), germinate())
        recorder.earned(0.0)
    recorder.save(tmp_path / "episodes" / "one.safetensors", task="digits", seed=0, controller="made up", final=END)
    episodes, blueprints = read_episodes([tmp_path])
    with torch.no_grad():
        ops = study.policy.replay(stack(episodes, len(blueprints)).observations).mode()[0, :, 0]
    return int(ops[0]), int(ops[1])


def studied(study: OfflineRun) -> OfflineRun:
    while not study.done:
        study.run_round()
    return study


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("recorded") / "run", stitching())


def iql(run: Path, **settings: Any) -> IQLConfig:
    usual = {"epochs": 50, "warmup": 0, "learning_rate": 0.01, "expectile": 0.9, "polyak": 0.1, "batch": 32, "held_out": 0.1}
    return IQLConfig(runs=(run,), **{**SMALL, **usual, **settings})


def test_the_recording_is_as_described() -> None:
    episodes = stitching()
    returns = {op: [sum(r for _, _, r in e) for e in episodes if e[0][1].op is op] for op in (Op.GERMINATE, Op.WAIT)}
    means = {op: sum(values) / len(values) for op, values in returns.items()}
    assert len(returns[Op.WAIT]) > 2 * len(returns[Op.GERMINATE])
    assert 0.2 < means[Op.GERMINATE] < means[Op.WAIT] == pytest.approx(0.4)
    assert max(returns[Op.GERMINATE]) == 1.0


def test_it_finds_the_best_plan_where_imitation_repeats_the_majority(problem: Path, tmp_path: Path) -> None:
    cloned = studied(OfflineRun(BCConfig(runs=(problem,), epochs=20, balance=0.0, held_out=0.1, batch=32, **SMALL), Hub()))
    assert plan(cloned, tmp_path / "bc") == (Op.WAIT, Op.WAIT)
    learned = studied(OfflineRun(iql(problem), Hub()))
    assert plan(learned, tmp_path / "iql") == (Op.GERMINATE, Op.GERMINATE)


def test_a_state_valued_by_the_mean_of_what_was_done_there_is_not_worth_going_to(problem: Path, tmp_path: Path) -> None:
    # In the good place the better act is found; but that others wasted it keeps the policy from going there.
    learned = studied(OfflineRun(iql(problem, expectile=0.5, epochs=40), Hub()))
    assert plan(learned, tmp_path) == (Op.WAIT, Op.GERMINATE)


def test_without_a_preference_it_repeats_the_majority_too(problem: Path, tmp_path: Path) -> None:
    learned = studied(OfflineRun(iql(problem, beta=0.0, epochs=20), Hub()))
    assert plan(learned, tmp_path) == (Op.WAIT, Op.WAIT)


def test_values_first_learn_the_recorded_returns(problem: Path) -> None:
    study = studied(OfflineRun(iql(problem, warmup=25, epochs=25), Hub()))
    student = study.student
    assert isinstance(student, ImplicitQLearning)
    for slow, fast in zip(student.slow_q.parameters(), student.q.parameters(), strict=True):
        assert torch.equal(slow, fast)  # from here on they look for better ones
    dataset = study.dataset
    with torch.no_grad():
        value = study.policy.value_head.denormalise(study.policy.normalised_values(dataset.observations))
    at_start = float(value[:, 0].mean())
    assert at_start == pytest.approx(float(dataset.returns(0.995)[:, 0].mean()), abs=0.08)


def test_what_turned_out_well_on_held_out_hosts_counts_for_more(problem: Path) -> None:
    config = iql(problem, held_out=0.5, beta=3.0)
    recorded, _ = read_dataset([problem])
    dataset, held_out = split(recorded, config.held_out, config.seed)
    found = held_out_preference(dataset, held_out, config)
    at_start, returns = found[:, 0], held_out.returns(config.gamma)[:, 0]
    best, wasted, plain = (at_start[(returns - value).abs() < 0.01] for value in (0.995, 0.0, 0.995 * 0.4))
    # What is expected at the start is some 0.37, with a std of some 0.35: the best plan lies 1.8 above, a wasted one 1.1 below.
    assert best.min() > 30.0
    assert wasted.max() < 0.1
    assert 0.5 < plain.min() <= plain.max() < 3.0
    assert torch.equal(held_out_preference(dataset, held_out, replace(config, beta=0.0)), held_out.choices())


def test_it_ends_when_held_out_hosts_gain_nothing_more_and_keeps_what_did_best(tmp_path: Path) -> None:
    # Decisions and rewards at random: all that more epochs bring is to learn the recorded ones by heart.
    draws = torch.rand(16, 4, 2, generator=torch.Generator().manual_seed(1)).tolist()
    episodes = [[(place(step), germinate() if act > 0.5 else WAIT, reward) for step, (act, reward) in enumerate(row)] for row in draws]
    run = write_run(tmp_path / "run", episodes)
    study = studied(OfflineRun(iql(run, epochs=400, patience=5, warmup=3, batch=8), Hub(), folder=tmp_path))
    assert study.round < 100
    best = {name: min(figures[f"held_out/{name}"] for figures in study.history) for name in ("awr_loss", "value_error")}
    assert best["awr_loss"] < study.history[-1]["held_out/awr_loss"]
    study.end()
    found = study.student.judge()
    assert {name: found[name] for name in best} == pytest.approx(best, rel=1e-5)


def test_it_does_not_end_while_values_warm_up(problem: Path) -> None:
    study = OfflineRun(iql(problem, epochs=12, warmup=10, patience=1, learning_rate=0.0), Hub())
    assert studied(study).round == 11


def test_what_is_kept_decides_better_than_a_clone_by_what_came_of_decisions_on_hosts_unseen(problem: Path, tmp_path: Path) -> None:
    learned = studied(OfflineRun(iql(problem, held_out=0.3), Hub()))
    cloned = studied(OfflineRun(BCConfig(runs=(problem,), epochs=30, balance=0.0, held_out=0.3, batch=32, **SMALL), Hub()))
    for study in (learned, cloned):
        study.student.conclude()
    student = learned.student
    assert isinstance(student, ImplicitQLearning)
    losses = {}
    for name, study in (("iql", learned), ("bc", cloned)):
        with torch.no_grad():
            log_prob = study.policy.replay(student.held_out.observations).score(student.held_out.actions).log_prob
        losses[name] = float(weighted_negative_log_likelihood(log_prob, student.preference))
    assert losses["iql"] < 0.7 * losses["bc"]
    assert plan(learned, tmp_path) == (Op.GERMINATE, Op.GERMINATE)


def test_only_recorded_actions_are_ever_valued(problem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = OfflineRun(iql(problem, epochs=2), Hub())
    recorded = {tuple(row) for part in (study.dataset, study.held_out) for row in _pairs(part)}
    valued: set[tuple[int, ...]] = set()
    forward = QNetwork.forward

    def watched(self: QNetwork, batch: ObservationBatch, actions: Tensor) -> Tensor:
        seen = batch.host.argmax(dim=-1)
        valued.update((int(where), *row) for where, row in zip(seen.flatten(), actions.flatten(0, 1).tolist(), strict=True))
        return forward(self, batch, actions)

    monkeypatch.setattr(QNetwork, "forward", watched)
    studied(study)
    assert valued
    assert valued <= recorded


def _pairs(dataset: EpisodeDataset) -> list[list[int]]:
    """Place and action of every step."""
    seen = dataset.observations.host.argmax(dim=-1).flatten().tolist()
    return [[where, *action] for where, action in zip(seen, dataset.actions.flatten(0, 1).tolist(), strict=True)]
