"""Recorded episodes: what comes back is what was seen, decided and earned, and what cannot be used is refused in a sentence."""

from __future__ import annotations

import re
import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from esper.leyline.actions import WAIT, Decision, Op
from esper.leyline.config import load
from esper.leyline.errors import ConfigError, RunError
from esper.leyline.reports import GateConfig
from esper.simic.growth.config import ControllerRunConfig, GrowthConfig
from esper.simic.growth.recording import FOLDER, EpisodeRecorder, read_episodes, rules_of
from esper.simic.learning.dataset import EpisodeDataset, allowed, read_dataset, split, stack
from esper.simic.rewards import RewardConfig
from esper.tamiyo import Observation
from esper.tamiyo.policy.batch import HEADS
from esper.tolaria.training.config import TrainingConfig
from tests.simic.recordings import first_observation, germinate, place, record, rewrite, summary_of, waiting, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("recorded") / "run", hosts=2, epochs=6)


def test_a_run_records_every_decision_of_every_host_and_all_that_it_earned(run: Path) -> None:
    episodes, _ = read_episodes([run])
    hosts = summary_of(run)["hosts"]
    assert len(episodes) == len(hosts) == 2
    for episode, host in zip(episodes, hosts, strict=True):
        assert episode.actions.shape == (6, len(HEADS))
        assert float(episode.rewards.sum()) == pytest.approx(host["reward"], abs=1e-5)
        assert int((episode.actions[:, 0] == Op.GERMINATE).sum()) == host["germinated"] > 0
        assert episode.about["seed"] == host["seed"]
        assert episode.about["controller"] == "fixed"
        assert allowed(episode.batch, episode.actions).all()


def test_what_was_recorded_comes_back_bit_for_bit(tmp_path: Path) -> None:
    steps = [(place(0), germinate(2), 0.25), (place(1), WAIT, -1.5)]
    episodes, blueprints = read_episodes([write_run(tmp_path / "run", [steps])])
    (episode,) = episodes
    assert blueprints == first_observation().masks.blueprint_names
    assert episode.rewards.tolist() == [0.25, -1.5]
    for row, (seen, decision, _) in enumerate(steps):
        assert np.array_equal(episode.batch.host[row].numpy(), seen.host)
        assert np.array_equal(episode.batch.slots[row].numpy(), seen.slots)
        assert np.array_equal(episode.batch.op_mask[row].numpy(), seen.masks.ops())
        assert np.array_equal(episode.batch.slot_mask[row].numpy(), seen.masks.slot_mask)
        assert np.array_equal(episode.batch.blueprint_mask[row].numpy(), seen.masks.blueprint_mask)
        fits = seen.masks.blueprint_mask
        assert (episode.batch.costs[row].numpy() > 0).tolist() == (fits & (seen.costs > 0)).tolist()
        assert tuple(episode.actions[row].tolist()) == seen.masks.indices(decision)


def test_a_full_disk_is_a_run_error_and_leaves_the_episode_before(tmp_path: Path) -> None:
    recorder = EpisodeRecorder()
    recorder.decided(place(0), germinate())
    recorder.earned(1.0)
    path = tmp_path / "run" / FOLDER / "0.safetensors"
    recorder.save(path)
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(RunError, match=r"0\.safetensors cannot be written: File too large; what the run wrote before is intact$"):
            recorder.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [entry.read_bytes() for entry in path.parent.iterdir()] == [before]


def test_a_recorder_that_was_saved_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    whole, first = EpisodeRecorder(), EpisodeRecorder()
    for recorder in (whole, first):
        recorder.decided(place(0), germinate())
        recorder.earned(1.0)
    second = EpisodeRecorder()
    second.load_state(first.state())
    for recorder in (whole, second):
        recorder.decided(place(1), WAIT)
        recorder.earned(2.0)
    found = []
    for name, recorder in (("whole", whole), ("second", second)):
        recorder.save(tmp_path / name / FOLDER / "host.safetensors", seed=1)
        found.append(read_episodes([tmp_path / name])[0][0])
    assert found[0].about == found[1].about == {"seed": 1}
    assert torch.equal(found[0].actions, found[1].actions)
    assert found[0].rewards.tolist() == found[1].rewards.tolist() == [1.0, 2.0]
    for name, tensor in found[0].batch.tensors().items():
        assert torch.equal(tensor, found[1].batch.tensors()[name]), name


# What cannot be used


def test_nothing_to_learn_from_is_said() -> None:
    with pytest.raises(ConfigError, match="nothing to learn from: name one or more run folders"):
        read_dataset([])


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"nowhere is not a run: there is no such folder"):
        read_dataset([tmp_path / "nowhere"])
    with pytest.raises(RunError, match=r"is not a run: it has no run\.json"):
        read_dataset([tmp_path])


def test_a_run_without_episodes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no recorded episodes"):
        read_dataset([write_run(tmp_path / "run", [])])


def test_a_run_named_twice_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", waiting())
    with pytest.raises(ConfigError, match="named twice"):
        read_dataset([run, run])


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_an_episode_cut_short_is_refused_by_name(tmp_path: Path, share: float) -> None:
    path = write_run(tmp_path / "run", waiting()) / FOLDER / "host-0001.safetensors"
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(RunError, match=r"host-0001\.safetensors is not a recorded episode, or is damaged"):
        read_dataset([tmp_path / "run"])


def test_an_episode_of_another_schema_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", waiting())
    rewrite(run / FOLDER / "host-0000.safetensors", lambda _, metadata: metadata.update(schema="another"))
    with pytest.raises(RunError, match="recorded under another observation schema"):
        read_dataset([run])


def test_episodes_with_different_blueprints_are_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", waiting())
    rewrite(run / FOLDER / "host-0001.safetensors", lambda _, metadata: metadata.update(blueprints='["other"]'))
    with pytest.raises(RunError, match="other blueprints"):
        read_dataset([run])


def test_runs_of_other_rules_are_not_mixed(tmp_path: Path) -> None:
    usual = write_run(tmp_path / "usual", waiting())
    settings = {"control": False, "reward": RewardConfig(scale=20.0), "training": TrainingConfig(gates=GateConfig.permissive())}
    other = write_run(tmp_path / "other", waiting(), rules=rules_of(GrowthConfig(**settings)))
    told = (
        f"{other} was recorded under other rules than {usual}: control False instead of True, gates.strict False instead of True, "
        "reward.scale 20.0 instead of 40.0; learn from one of them, or record it again"
    )
    with pytest.raises(RunError, match=re.escape(told)):
        read_dataset([usual, other])
    same = write_run(tmp_path / "same", waiting(), rules=rules_of(GrowthConfig(epochs=3, member="family")))
    assert len(read_dataset([usual, same])[0]) == 4, "hosts may differ"


def test_real_runs_say_their_rules(run: Path) -> None:
    (episode, *_), _ = read_episodes([run])
    config = load(ControllerRunConfig, run / "config.toml")
    assert episode.about["rules"] == rules_of(config)
    assert episode.about["rules"]["control"] is False


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("rewards", torch.zeros(5), "its host has the shape"),
        ("slots", torch.zeros(2, 7, 3), "its slots has the shape"),
        ("actions", torch.full((2, 8), 99), "its actions are not decisions"),
        ("rewards", torch.tensor([0.0, torch.nan]), "it holds values that no observation or reward has"),
    ],
)
def test_an_episode_whose_parts_do_not_go_together_is_refused(tmp_path: Path, name: str, value: torch.Tensor, complaint: str) -> None:
    run = write_run(tmp_path / "run", waiting())
    rewrite(run / FOLDER / "host-0001.safetensors", lambda tensors, _: tensors.update({name: value}))
    with pytest.raises(RunError, match=f"recorded episode 1 is damaged: {complaint}"):
        read_dataset([run])


def test_an_episode_that_does_not_say_where_it_is_from_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", waiting())
    rewrite(run / FOLDER / "host-0000.safetensors", lambda _, metadata: metadata.update(about="{}"))
    with pytest.raises(RunError, match="does not say its task; expected task, seed, controller"):
        read_dataset([run])


# EpisodeDataset


def dataset_of(path: Path, episodes: list[list[tuple[Observation, Decision, float]]]) -> EpisodeDataset:
    return read_dataset([write_run(path, episodes)])[0]


def test_shorter_episodes_are_padded_and_padding_is_nothing(tmp_path: Path) -> None:
    long, short = [(place(0), germinate(), 1.0)] * 3, [(place(0), WAIT, 2.0)]
    dataset = dataset_of(tmp_path / "run", [long, short])
    assert dataset.weight.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert dataset.choices().tolist() == [[1, 1, 1], [1, 0, 0]]
    assert dataset.ops() == {Op.GERMINATE: 3, Op.WAIT: 1}
    assert dataset.observations.op_mask[1, 1:].sum() == 2  # only WAIT


def test_episodes_with_fewer_slots_are_stacked_with_those_that_have_more(run: Path, tmp_path: Path) -> None:
    other = record(tmp_path / "other", hosts=1, epochs=4, fix={"widths": "[2,2]", "train_size": "100", "batch": "50"})
    wide, names = read_episodes([run])
    narrow, _ = read_episodes([other], names)
    dataset = stack([*wide, *narrow], len(names))
    few, many = narrow[0].batch.slot_count, wide[0].batch.slot_count
    assert few < many
    assert not dataset.observations.exists[2, :, few:].any()
    assert dataset.observations.exists[2, :4, :few].all()
    assert torch.equal(dataset.observations.slots[2, :4, :few], narrow[0].batch.slots)
    assert allowed(dataset.observations, dataset.actions).all()


def test_returns_are_what_follows_discounted(tmp_path: Path) -> None:
    episodes = [[(place(0), WAIT, reward) for reward in rewards] for rewards in ((1.0, 2.0, 4.0), (3.0,))]
    dataset = dataset_of(tmp_path / "run", episodes)
    assert dataset.returns(0.5).tolist() == [[3.0, 4.0, 4.0], [3.0, 0.0, 0.0]]


def test_a_decision_against_the_rules_is_nothing_to_learn(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path / "run", [[(place(0), germinate(), 0.0)] * 2] * 2)
    batch = dataset.observations
    assert allowed(batch, dataset.actions).all()
    batch.slot_mask[0, 0, Op.GERMINATE, 0] = False
    batch.blueprint_mask[1, 1] = False
    assert allowed(batch, dataset.actions).tolist() == [[False, True], [True, False]]
    assert dataset.choices().tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_a_host_is_held_out_with_all_its_episodes(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, waiting(10), controller=name) for name in ("one", "other")]
    dataset, _ = read_dataset(runs)
    learned, held_out = split(dataset, 0.2, seed=3)
    assert (len(learned), len(held_out)) == (16, 4)
    hosts = [{seed for _, seed, _ in part.sources} for part in (learned, held_out)]
    assert not hosts[0] & hosts[1]
    again = split(dataset, 0.2, seed=3)[1]
    assert again.sources == held_out.sources
    assert {split(dataset, 0.2, seed=seed)[1].sources for seed in range(6)} != {held_out.sources}


def test_one_host_is_too_few(tmp_path: Path) -> None:
    dataset, _ = read_dataset([write_run(tmp_path / "run", waiting(1))])
    with pytest.raises(RunError, match="recorded 1 host; at least 2 are needed"):
        split(dataset, 0.2, seed=0)
