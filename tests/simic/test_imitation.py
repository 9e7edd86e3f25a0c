"""Behaviour cloning: the formulas by hand, a controller that is imitated, and a study that goes on where it was stopped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.actions import WAIT, Op
from esper.leyline.errors import CheckpointError, ConfigError, LearningError
from esper.leyline.events import PolicyUpdated, RunStarted
from esper.leyline.observation import OBSERVATION, UNTOLD
from esper.nissa import Hub
from esper.simic.learning.dataset import EpisodeDataset, read_dataset
from esper.simic.learning.imitation import agreement, op_weights, weighted_negative_log_likelihood, without
from esper.simic.learning.offline_config import BCConfig, IQLConfig
from esper.simic.learning.ppo_metrics import mean_of
from esper.simic.runs.offline import OfflineRun
from esper.tamiyo.policy.batch import ObservationBatch
from esper.tamiyo.policy.heads import ILLEGAL
from esper.tamiyo.policy.policy_file import load_policy, read_policy_info
from tests.simic.recordings import SMALL, germinate, place, record, rewrite, waiting, write_run
from tests.simic.test_controller_run import Kept


def studied(study: OfflineRun) -> OfflineRun:
    study.begin()
    while not study.done:
        study.run_round()
    return study


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten tiny hosts that were grown by a fixed plan."""
    return record(tmp_path_factory.mktemp("recorded") / "fixed")


@pytest.fixture(scope="module")
def clone(fixed: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[OfflineRun, dict[str, Any], Path]:
    """A study of them that came to its end, its summary and its folder."""
    folder = tmp_path_factory.mktemp("studied")
    study = studied(OfflineRun(BCConfig(runs=(fixed,), epochs=50, held_out=0.3, batch=4, **SMALL), Hub(), "esper train bc", folder))
    return study, study.end(), folder


# The formulas


def test_rare_ops_count_more_by_the_power_of_their_share() -> None:
    ops = torch.tensor([Op.WAIT] * 8 + [Op.GERMINATE] * 2 + [Op.PRUNE] * 5)
    counted = torch.tensor([1.0] * 10 + [0.0] * 5)
    weights = op_weights(ops, counted, 0.5)
    assert weights[Op.GERMINATE] / weights[Op.WAIT] == pytest.approx((0.8 / 0.2) ** 0.5)
    assert weights[Op.PRUNE] == weights[Op.GERMINATE]  # never counted: as the rarest
    assert op_weights(ops, counted, 0.0).tolist() == pytest.approx([1.0] * len(Op))


@given(st.lists(st.sampled_from(list(Op)), min_size=1, max_size=40), st.floats(0.0, 1.0))
def test_balance_changes_the_shares_of_ops_and_not_the_weight_of_all(ops: list[Op], balance: float) -> None:
    decided = torch.tensor(ops)
    weights = op_weights(decided, torch.ones(len(ops)), balance)
    assert float(weights[decided].mean()) == pytest.approx(1.0, rel=1e-4)
    if balance == 1.0:
        totals = [float(weights[op]) * ops.count(op) for op in set(ops)]
        assert totals == pytest.approx([totals[0]] * len(totals), rel=1e-4)


def test_a_decision_that_does_not_count_cannot_spoil_the_likelihood() -> None:
    log_prob, weight = torch.tensor([-1.0, -3.0, ILLEGAL, -torch.inf]), torch.tensor([1.0, 3.0, 0.0, 0.0])
    assert float(weighted_negative_log_likelihood(log_prob, weight)) == pytest.approx((1.0 + 9.0) / 4.0)
    assert float(weighted_negative_log_likelihood(log_prob, torch.zeros(4))) == 0.0


def test_the_likeliest_values_are_those_that_no_other_beats(clone: tuple[OfflineRun, dict[str, Any], Path]) -> None:
    study, _, _ = clone
    dataset = study.held_out
    with torch.no_grad():
        distribution = study.policy.replay(dataset.observations)
    chosen = distribution.mode()
    scores = distribution.score(chosen)
    # Given its own op and slot, a distribution's mode is the likeliest value of every head.
    assert ((distribution.likeliest(chosen) == chosen) | ~scores.matters).all()
    best = distribution.score(torch.where(scores.matters, distribution.likeliest(chosen), chosen)).log_prob
    drawn = distribution.sample(torch.rand(*chosen.shape, generator=torch.Generator().manual_seed(0)))
    same = (drawn[..., :2] == chosen[..., :2]).all(dim=-1)
    assert (best >= distribution.score(drawn).log_prob)[same].all()


# What ended better


def tried(tmp_path: Path, scores: Sequence[float]) -> Path:
    """Hosts of two kinds that can be told apart, each recorded twice: once it waited, and once a seed was germinated."""
    episodes = [[(place(n // 2 % 2), germinate() if n % 2 else WAIT, 0.0)] * 2 for n in range(len(scores))]
    return write_run(tmp_path / "tried", episodes, scores, seeds=[n // 2 for n in range(len(scores))])


def test_an_episode_counts_e_times_as_much_for_each_temperature_that_it_ended_ahead(tmp_path: Path) -> None:
    dataset, _ = read_dataset([tried(tmp_path, [60.0, 64.0, 30.0, 30.0])])
    share = dataset.preferring(4.0).share
    assert share.tolist() == pytest.approx([2 / (1 + math.e), 2 * math.e / (1 + math.e), 1.0, 1.0]), "1 on average, and so each host"
    assert dataset.share.tolist() == [1.0] * 4
    assert dataset.preferring(4.0).part(torch.tensor([1])).share.tolist() == pytest.approx([2 * math.e / (1 + math.e)])


def test_episodes_that_count_little_count_little_in_a_batch_of_their_own() -> None:
    log_prob, weight = torch.tensor([[-1.0, -3.0], [-2.0, -2.0]]), torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    whole = float(weighted_negative_log_likelihood(log_prob, weight, torch.tensor([0.5, 1.5])))
    assert whole == pytest.approx((0.5 * 4.0 + 1.5 * 2.0) / 3.0)
    alone = float(weighted_negative_log_likelihood(log_prob[:1], weight[:1], torch.tensor([0.5])))
    assert alone == pytest.approx(0.5 * 2.0)


def test_what_ended_better_on_each_kind_of_host_is_what_is_learned(tmp_path: Path) -> None:
    # On hosts of the first kind a seed brings 20 points, on those of the second it costs as many.
    scores = [50.0 if n % 2 == 0 else 70.0 if n // 2 % 2 == 0 else 30.0 for n in range(48)]
    run = tried(tmp_path, scores)
    decided, played, kept = {}, {}, {}
    for temperature in (4.0, None):
        config = BCConfig(runs=(run,), epochs=60, patience=60, temperature=temperature, **SMALL)
        study = studied(OfflineRun(config, Hub()))
        played[temperature] = study.trained(study.end()["study"])["host_epochs"]
        kept[temperature] = int(study.dataset.weight.sum() + study.held_out.weight.sum())
        with torch.no_grad():
            probability = study.policy.replay(study.held_out.observations).op_probabilities()[:, 0, Op.GERMINATE]
        first = torch.tensor([seed % 2 == 0 for _, seed, _ in study.held_out.sources])
        decided[temperature] = float(probability[first].mean()), float(probability[~first].mean())
    assert decided[4.0][0] > 0.9
    assert decided[4.0][1] < 0.1
    assert decided[None] == pytest.approx((0.5, 0.5), abs=0.2), "without a preference both as often as they were recorded"
    assert kept[4.0] < kept[None] == played[None] == played[4.0], "what is left out had to be played as well"


def test_hosts_that_were_recorded_once_leave_nothing_to_prefer(tmp_path: Path) -> None:
    run = write_run(tmp_path / "once", waiting(4))
    with pytest.raises(ConfigError, match=r"'temperature' weighs several episodes of one host .* each was recorded once"):
        OfflineRun(BCConfig(runs=(run,), temperature=4.0, **SMALL), Hub())


# What loops may not tell


def test_fields_that_are_not_told_are_hidden_by_the_group_and_by_the_episode() -> None:
    seen = ObservationBatch.padding((3, 4), 2, 5)
    seen = replace(seen, host=torch.ones_like(seen.host), slots=torch.ones_like(seen.slots))
    hidden = without(seen, torch.tensor([[True, False, False], [False, True, True], [False, False, False]]))
    train, losses, errors = UNTOLD
    for episode, names in enumerate((train, (*losses, *errors), ())):
        for values, fields in ((hidden.host[episode], OBSERVATION.host_fields), (hidden.slots[episode], OBSERVATION.slot_fields)):
            expected = [0.0 if field.name in names else 1.0 for field in fields]
            assert all(row.tolist() == expected for row in values.reshape(-1, len(fields)))
    known = {field.name for field in (*OBSERVATION.host_fields, *OBSERVATION.slot_fields)}
    assert {name for names in UNTOLD for name in names} <= known


def test_a_policy_that_learned_without_losses_decides_by_what_is_left(tmp_path: Path) -> None:
    def doubt(untold: float) -> float:
        """How much the policy doubts what was recorded, where it is told no losses."""
        episodes = [[(place(n % 2), germinate() if n % 2 else WAIT, 0.0)] * 2 for n in range(24)]
        run = write_run(tmp_path / str(untold), episodes)
        for path in (run / "episodes").iterdir():
            rewrite(path, lambda tensors, _: tell(tensors))
        study = studied(OfflineRun(BCConfig(runs=(run,), epochs=40, untold=untold, **SMALL), Hub()))
        data = study.held_out
        blind = without(data.observations, torch.tensor([[False, True, False]]).expand(len(data), 3))
        with torch.no_grad():
            return 1.0 - float(study.policy.replay(blind).score(data.actions).log_prob.exp().mean())

    def tell(tensors: dict[str, torch.Tensor]) -> None:
        """The kind of the host shows in the loss, clearly, and faintly in the rent."""
        kind = (tensors["actions"][:, 0] == Op.GERMINATE).float()
        tensors["host"].zero_()
        tensors["host"][:, OBSERVATION.host_index("val_loss")] = 4.0 * kind
        tensors["host"][:, OBSERVATION.host_index("rent")] = 0.2 * kind

    assert doubt(0.5) < 0.5 * doubt(0.0)


# What is best for hosts like this


def kinds(tmp_path: Path, hosts: int = 40, noise: float = 8.0) -> Path:
    """Hosts of two kinds that can be told apart, recorded as they waited and with a seed. It brings 6 points on the first kind and costs as
    many on the second, but for luck, which is larger than that."""
    luck = np.random.default_rng(0).normal(0.0, noise, (hosts, 2))
    episodes, accuracies, seeds, abouts = [], [], [], []
    for host in range(hosts):
        for seed in (False, True):
            episodes.append([(place(host % 2), germinate() if seed else WAIT, 0.0)] * 2)
            accuracies.append(50.0 + (6.0 if host % 2 == 0 else -6.0) * seed + luck[host, int(seed)])
            seeds.append(host)
            abouts.append({"controller": "seed" if seed else "wait"})
    return write_run(tmp_path / "kinds", episodes, accuracies, seeds, abouts)


def most(dataset: EpisodeDataset) -> dict[int, str]:
    """Of each host the controller whose episode counts most."""
    best: dict[int, tuple[float, str]] = {}
    for (_, host, controller), share in zip(dataset.sources, dataset.share.tolist(), strict=True):
        best[host] = max(best.get(host, (0.0, "")), (share, controller))
    return {host: controller for host, (_, controller) in best.items()}


def test_what_is_expected_is_what_was_best_on_hosts_of_the_kind_and_not_on_each(tmp_path: Path) -> None:
    dataset, _ = read_dataset([kinds(tmp_path)])
    assert most(dataset.preferring(1.0, expected=True)) == {host: "wait" if host % 2 else "seed" for host in range(40)}
    lucky = most(dataset.preferring(1.0))
    assert sum(lucky[host] != ("wait" if host % 2 else "seed") for host in range(40)) > 4, "by its own end many a host misleads"


def test_expectations_are_weighed_by_the_temperature_and_all_hosts_count_the_same(tmp_path: Path) -> None:
    dataset, _ = read_dataset([kinds(tmp_path)])
    warm, cold = (dataset.preferring(temperature, expected=True) for temperature in (1000.0, 0.01))
    assert warm.share.tolist() == pytest.approx([1.0] * 80, abs=0.05)
    assert (len(cold), cold.share.tolist()) == (40, [1.0] * 40), "what counts next to nothing is left out"
    some = dataset.preferring(4.0, expected=True)
    totals = dict.fromkeys(range(40), 0.0)
    for (_, host, _), share in zip(some.sources, some.share.tolist(), strict=True):
        totals[host] += share
    assert list(totals.values()) == pytest.approx([len(some) / 40] * 40)


def test_what_size_costs_decides_where_nothing_else_does(tmp_path: Path) -> None:
    episodes = [[(place(0), germinate() if n % 2 else WAIT, 0.0)] * 2 for n in range(24)]
    ends = [{"accuracy": 58.0 if n % 2 else 50.0, "size": 1.0 if n % 2 else 0.0, "rent": 20.0 if n // 2 % 2 else 0.0} for n in range(24)]
    abouts = [{"controller": "seed" if n % 2 else "wait", "final": end} for n, end in enumerate(ends)]
    dataset, _ = read_dataset([write_run(tmp_path / "run", episodes, seeds=[n // 2 for n in range(24)], abouts=abouts)])
    assert most(dataset.preferring(1.0, expected=True)) == {host: "wait" if host % 2 else "seed" for host in range(12)}


def test_a_policy_learns_what_is_expected_to_be_best(tmp_path: Path) -> None:
    config = BCConfig(runs=(kinds(tmp_path),), epochs=60, temperature=0.5, expected=True, **SMALL)
    study = studied(OfflineRun(config, Hub()))
    with torch.no_grad():
        probability = study.policy.replay(study.held_out.observations).op_probabilities()[:, 0, Op.GERMINATE]
    first = torch.tensor([seed % 2 == 0 for _, seed, _ in study.held_out.sources])
    assert float(probability[first].mean()) > 0.9
    assert float(probability[~first].mean()) < 0.1


@pytest.mark.parametrize(
    ("controllers", "said"),
    [
        (["wait", "seed", "wait", "rule"], r"rule has none on digits 0"),
        (["wait", "wait"], r"wait has two on digits 0"),
        (["wait", "seed"], r"takes 6 hosts of a task under several controllers; digits has 1"),
        (["wait"], r"each was recorded once"),
    ],
)
def test_an_expectation_takes_every_controller_once_on_each_host(tmp_path: Path, controllers: list[str], said: str) -> None:
    abouts = [{"controller": name} for name in controllers]
    count = len(controllers)
    run = write_run(tmp_path / "run", waiting(count), [50.0 + n for n in range(count)], [n // 2 for n in range(count)], abouts)
    with pytest.raises(ConfigError, match=said):
        OfflineRun(BCConfig(runs=(run,), temperature=0.5, expected=True, **SMALL), Hub())


def test_what_several_runs_recorded_alike_counts_once(tmp_path: Path) -> None:
    runs = [kinds(tmp_path / name) for name in ("one", "two")]
    once, twice = (read_dataset(each)[0].preferring(1.0, expected=True) for each in (runs[:1], runs))
    assert (once.sources, once.share.tolist()) == (twice.sources, twice.share.tolist())


@pytest.mark.parametrize(("task", "first"), [("text", 0), ("digits", 100)])
def test_a_host_that_one_controller_recorded_counts_as_it_is_beside_others(tmp_path: Path, task: str, first: int) -> None:
    abouts = [{"task": task, "controller": "wait"}] * 4
    other = write_run(tmp_path / "other", waiting(4), seeds=range(first, first + 4), abouts=abouts)
    dataset = read_dataset([kinds(tmp_path), other])[0].preferring(0.01, expected=True)
    assert len(dataset) == 40 + 4
    assert dataset.share.tolist() == [1.0] * 44


def test_an_expectation_needs_a_temperature() -> None:
    with pytest.raises(ConfigError, match=r"'expected' says by what the episodes of a host are weighed, and 'temperature' how much"):
        BCConfig(expected=True)


# Imitation


def test_a_fixed_plan_is_imitated_on_hosts_that_were_held_out(clone: tuple[OfflineRun, dict[str, Any], Path]) -> None:
    _, summary, _ = clone
    found = summary["study"]["agreement"]
    assert summary["study"]["held_out"] == 3
    assert found["accuracy/op"] > 0.95
    assert found["accuracy/decision"] > 0.95
    assert found["accuracy/acts"] > 0.95
    assert found["waiting"] < 0.9, "the recording should hold acts to imitate"
    assert all(value > 0.95 for name, value in found.items() if name.startswith("head/"))


def test_the_critic_predicts_what_was_earned_on_its_own_scale(tmp_path: Path) -> None:
    # Two kinds of host that can be told apart by what is seen, and earn 100 and 300 at the end.
    episodes = [[(place(n % 2), WAIT, 0.0), (place(n % 2), WAIT, 100.0 + 200.0 * (n % 2))] for n in range(12)]
    config = BCConfig(runs=(write_run(tmp_path / "run", episodes),), epochs=60, patience=60, gamma=1.0, **SMALL)
    study = studied(OfflineRun(config, Hub()))
    summary = study.end()
    head, returns, weight = study.policy.value_head, study.dataset.returns(1.0), study.dataset.weight
    assert float(head.mean) == pytest.approx(float(mean_of(returns, weight)), rel=1e-5)
    assert float(head.std) == pytest.approx(float(mean_of((returns - returns.mean()).square(), weight).sqrt()), rel=1e-3)
    assert int(head.updates) == 1
    assert summary["study"]["agreement"]["explained_variance"] > 0.9
    with torch.no_grad():
        values = study.policy.value_head.denormalise(study.policy.normalised_values(study.held_out.observations))
    assert torch.allclose(values, study.held_out.returns(1.0), atol=40.0)


def test_with_balance_a_rare_act_is_the_likeliest_where_it_was_done_half_of_the_time(tmp_path: Path) -> None:
    # The same is seen in every step, and one decision in five is an act: no policy can know when.
    episodes = [[(place(0), germinate() if n % 5 == 0 else WAIT, 0.0)] for n in range(20)]
    run = write_run(tmp_path / "run", episodes)
    chances = {}
    for balance in (0.0, 1.0):
        study = studied(OfflineRun(BCConfig(runs=(run,), epochs=40, patience=40, batch=16, balance=balance, **SMALL), Hub()))
        with torch.no_grad():
            op = study.policy.replay(study.dataset.observations).op_probabilities()[..., Op.GERMINATE].mean()
        recorded = float(study.dataset.actions[..., 0].eq(Op.GERMINATE).float().mean())
        chances[balance] = float(op)
        assert chances[balance] == pytest.approx(recorded if balance == 0.0 else 0.5, abs=0.08)
    assert chances[1.0] > 2 * chances[0.0]


def test_it_ends_when_held_out_hosts_gain_nothing_more_and_keeps_what_did_best(tmp_path: Path) -> None:
    # Decisions at random: all that more epochs bring is to learn the recorded ones by heart.
    generator = torch.Generator().manual_seed(1)
    draws = torch.rand(16, 4, generator=generator)
    episodes = [[(place(step), germinate() if draw > 0.5 else WAIT, 0.0) for step, draw in enumerate(row)] for row in draws.tolist()]
    config = BCConfig(runs=(write_run(tmp_path / "run", episodes),), epochs=400, patience=5, **SMALL)
    study = studied(OfflineRun(config, Hub(), folder=tmp_path))
    assert study.round < 100
    losses = [figures["held_out/imitation_loss"] for figures in study.history]
    assert min(losses) < losses[-1]
    study.end()
    assert study.student.judge()["imitation_loss"] == pytest.approx(min(losses))


def test_a_recording_without_a_choice_is_no_reason_to_fail(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", waiting(4))
    for path in (run / "episodes").iterdir():
        rewrite(path, lambda tensors, _: tensors["op_mask"][:, 1:].fill_(False))
    study = studied(OfflineRun(BCConfig(runs=(run,), epochs=2, **SMALL), Hub()))
    found = study.end()["study"]
    assert found["choices"] == 0
    assert "accuracy/op" not in found["agreement"]


# What is left behind


def test_the_policy_file_says_what_it_learned_from(clone: tuple[OfflineRun, dict[str, Any], Path], fixed: Path) -> None:
    study, summary, folder = clone
    told = read_policy_info(folder / "policy.safetensors").trained
    assert told["method"] == "bc"
    assert (told["task"], told["runs"]) == (["digits"], [fixed.name])
    assert (told["episodes"], told["held_out"]) == (7, 3)
    assert told["controllers"] == {"fixed": 10}
    assert told["agreement"] == summary["study"]["agreement"]
    again = agreement(load_policy(folder / "policy.safetensors"), study.held_out, study.config.gamma)
    assert again == told["agreement"]


def test_the_record_has_a_line_for_each_epoch(tmp_path: Path) -> None:
    kept = Kept()
    run = write_run(tmp_path / "run", waiting(4))
    study = studied(OfflineRun(BCConfig(runs=(run,), epochs=3, **SMALL), Hub(None, [kept]), "esper train bc"))
    study.end()
    events = [envelope.event for envelope in kept.envelopes]
    assert isinstance(events[0], RunStarted)
    assert events[0].about["held_out"] == len(study.held_out)
    assert [event.update for event in events if isinstance(event, PolicyUpdated)] == [1, 2, 3]


@pytest.mark.parametrize("kind", [BCConfig, IQLConfig])
def test_a_study_that_was_stopped_goes_on_bit_for_bit(tmp_path: Path, kind: type[BCConfig] | type[IQLConfig]) -> None:
    episodes = [[(place(n % 3), germinate(n % 2), float(n % 2)), (place(3), WAIT, 0.5)] for n in range(10)]
    config = kind(runs=(write_run(tmp_path / "run", episodes),), epochs=6, batch=4, **SMALL)
    if isinstance(config, IQLConfig):
        config = IQLConfig(runs=config.runs, epochs=6, batch=4, warmup=2, **SMALL)
    whole, first = OfflineRun(config, Hub()), OfflineRun(config, Hub())
    studied(whole)
    for _ in range(3):
        first.run_round()
    second = OfflineRun(config, Hub())
    second.load_state(first.state())
    studied(second)
    assert second.history == whole.history
    assert same(second.state(), whole.state())
    whole.end()
    second.end()
    assert same(second.policy.state_dict(), whole.policy.state_dict())


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal, tensors bit by bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("rate", [1e5, 1e10, 1e30])
@pytest.mark.parametrize("batch", [2, 8])
@pytest.mark.parametrize("kind", [BCConfig, IQLConfig])
def test_learning_that_diverges_is_told_in_a_sentence(
    tmp_path: Path, kind: type[BCConfig] | type[IQLConfig], batch: int, rate: float
) -> None:
    episodes = [[(place(n % 3), germinate(n % 2), float(n % 2)), (place(3), WAIT, 0.5)] for n in range(6)]
    config = kind(runs=(write_run(tmp_path / "run", episodes),), batch=batch, **{**SMALL, "learning_rate": rate})
    with pytest.raises(LearningError, match=r"epoch \d+ of learning went wrong: .* (is not finite|is nan|is inf); .* lower learning_rate"):
        studied(OfflineRun(config, Hub()))


def test_a_study_does_not_go_on_with_other_recordings(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", waiting(3))
    config = BCConfig(runs=(run,), epochs=4, **SMALL)
    study = OfflineRun(config, Hub())
    study.run_round()
    rewrite(run / "episodes" / "host-0000.safetensors", lambda tensors, _: tensors["rewards"].add_(1.0))
    with pytest.raises(CheckpointError, match="recorded episodes are not those that the study began with"):
        OfflineRun(config, Hub()).load_state(study.state())
    assert read_dataset([run])[0].fingerprint() != study.data
