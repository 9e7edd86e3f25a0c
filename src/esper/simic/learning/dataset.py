"""The dataset of imitation and offline learning: recorded episodes, checked, stacked into tensors, and some hosts held out.

One row is one episode from zero memory. Rows that end early are padded with steps that can only wait and have weight 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

from esper.leyline.actions import Head, Op, matters
from esper.leyline.errors import ConfigError, RunError
from esper.nissa.trackers.tracker import flattened
from esper.simic.adaptivity import Outcomes
from esper.simic.adaptivity import expected as expected_scores
from esper.simic.growth.recording import RecordedEpisode, read_episodes
from esper.simic.learning.rollout import discounted
from esper.simic.statistics import LEAST_HOSTS
from esper.tamiyo.observe.masks import HEAD_VALUES
from esper.tamiyo.policy.batch import HEADS, ObservationBatch
from esper.tolaria.data.streams import generator
from esper.tolaria.storage.runs import read_run

SOURCES = ("task", "seed", "controller", "rules", "final")
"""What has to be known of every episode."""
FINAL = ("accuracy", "size", "rent")
"""What has to be known of its end."""
LEAST_SHARE = 0.01
"""Of what a host counts, below which one of its episodes is left out."""
FLAT = 1e-6
"""A field of an observation that differs less than this between hosts (std) is the same for all, but for rounding."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpisodeDataset:
    """Whole recorded episodes, one a row; all tensors are [episodes, steps] in front."""

    observations: ObservationBatch
    actions: Tensor
    """int64 [episodes, steps, 8]."""
    reward: Tensor
    """What each step earned."""
    weight: Tensor
    """1 for a step that happened, 0 for padding."""
    sources: tuple[tuple[str, int, str], ...]
    """Task, host seed and controller of each episode."""
    accuracy: Tensor
    """float64 [episodes]: of the harvested network, in points."""
    size: Tensor
    """float64 [episodes]: what its growth costs at a rent of one point."""
    rent: Tensor
    """float64 [episodes]: of the host."""
    share: Tensor
    """[episodes]: how much each episode counts, 1 on average."""

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def score(self) -> Tensor:
        """float64 [episodes]: what the harvested network was worth, in points after rent."""
        return self.accuracy - self.rent * self.size

    def part(self, rows: Tensor) -> EpisodeDataset:
        """Some of the episodes, by their numbers int64 [episodes]: a batch, or one side of a split."""
        return EpisodeDataset(
            observations=self.observations[rows],
            actions=self.actions[rows],
            reward=self.reward[rows],
            weight=self.weight[rows],
            sources=tuple(self.sources[row] for row in rows.tolist()),
            **{name: getattr(self, name)[rows] for name in FINAL},
            share=self.share[rows],
        )

    def preferring(self, temperature: float, *, expected: bool = False, seed: int = 0) -> EpisodeDataset:
        """The same, with the episodes of each host weighed against each other: e times as much for each `temperature` points of score that
        one ended ahead of another. All hosts count the same, however many episodes they have.

        expected: by the score that a regression over all hosts of the task expects of each controller, by what is seen before the first
        decision and by the rent, instead of by what came out on the host itself, which is luck as well. A host that was recorded under one
        controller alone counts as it is.

        Raises ConfigError when no host was recorded twice: there is nothing to prefer then. And where something is to be expected of each
        controller on each host, when one was not recorded there.
        """
        if expected:
            rows, worth = self._expected(seed)
            return self.part(rows)._weighed(worth / temperature)
        return self._weighed(self.score / temperature)

    def _weighed(self, preference: Tensor) -> EpisodeDataset:
        """The same, with the softmax of a preference [episodes] over the episodes of each host; what counts next to nothing is left out."""
        episodes: dict[tuple[str, int], list[int]] = {}
        for row, (task, seed, _) in enumerate(self.sources):
            episodes.setdefault((task, seed), []).append(row)
        if len(episodes) == len(self):
            raise ConfigError("'temperature' weighs several episodes of one host against each other, and each was recorded once")
        share = torch.empty_like(preference)
        for rows in episodes.values():
            mine = preference[rows].softmax(dim=0)
            mine = torch.where(mine < LEAST_SHARE, 0.0, mine)
            share[rows] = mine / mine.sum()
        kept = share.nonzero().squeeze(1)
        return replace(self.part(kept), share=(share[kept] * len(kept) / len(episodes)).to(self.share))

    def _expected(self, seed: int) -> tuple[Tensor, Tensor]:
        """Episodes by their numbers, and what the controller of each is expected to score on its host, beside the others."""
        rows, worth = [], []
        for task in dict.fromkeys(task for task, _, _ in self.sources):
            alone, table = self._recorded(task)
            rows += [alone, table.flatten()]
            worth.append(torch.zeros(len(alone), dtype=torch.float64))
            if not len(table):
                continue
            first = table[:, 0]
            outcomes = Outcomes(accuracy=self.accuracy[table].numpy(), size=self.size[table].numpy(), rent=self.rent[first].numpy())
            seen = self.observations[first, 0]
            fields = torch.cat([seen.host, seen.slots.flatten(1), seen.costs.flatten(1)], dim=1).double()
            known = fields[:, fields.std(dim=0) > FLAT].numpy()
            worth.append(torch.from_numpy(expected_scores(outcomes, known, known, outcomes.rent, seed)).flatten())
        return torch.cat(rows), torch.cat(worth)

    def _recorded(self, task: str) -> tuple[Tensor, Tensor]:
        """The episodes of a task: int64 [hosts] of those that one controller alone recorded, and int64 [hosts, controllers] of the others.

        Raises ConfigError where one is missing, where there are two that differ, and where hosts are too few to expect anything of them.
        """
        hosts: dict[int, dict[str, int]] = {}
        for row, (found, host, controller) in enumerate(self.sources):
            if found == task:
                first = hosts.setdefault(host, {}).setdefault(controller, row)
                if self.score[first] != self.score[row]:
                    raise ConfigError(f"'expected' takes one episode of every controller on a host; {controller} has two on {task} {host}")
        several = {host: mine for host, mine in hosts.items() if len(mine) > 1}
        names = sorted({name for mine in several.values() for name in mine})
        for host, mine in several.items():
            for name in names:
                if name not in mine:
                    raise ConfigError(
                        f"'expected' takes one episode of every controller on a host, or one in all; {name} has none on {task} {host}"
                    )
        if 0 < len(several) < LEAST_HOSTS:
            raise ConfigError(f"'expected' takes {LEAST_HOSTS} hosts of a task under several controllers; {task} has {len(several)}")
        alone = [row for mine in hosts.values() if len(mine) == 1 for row in mine.values()]
        table = [[mine[name] for name in names] for mine in several.values()]
        return torch.tensor(alone, dtype=torch.int64), torch.tensor(table, dtype=torch.int64).view(-1, max(1, len(names)))

    def returns(self, gamma: float) -> Tensor:
        """[episodes, steps]: what was earned from each step to the end, discounted; 0 in padding."""
        return discounted(self.reward * self.weight, gamma)

    def choices(self) -> Tensor:
        """[episodes, steps], 1 or 0: whether there was something to decide, and what was decided was allowed.

        A controller may decide against the rules, and is refused; no policy can do the same, so that is nothing to learn.
        """
        free = self.observations.op_mask.sum(dim=-1) > 1
        return (free & allowed(self.observations, self.actions)).to(self.weight) * self.weight

    def ops(self) -> Counter[Op]:
        """How often each op was decided."""
        return Counter(Op(op) for op in self.actions[..., 0][self.weight > 0].tolist())

    def fingerprint(self) -> str:
        """sha256 over everything recorded, by which a resumed run knows its data again."""
        digest = sha256(repr(self.sources).encode())
        for tensor in (*self.observations.tensors().values(), self.actions, self.reward, self.weight, self.accuracy, self.size, self.rent):
            digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()


def allowed(batch: ObservationBatch, actions: Tensor) -> Tensor:
    """bool [...]: whether the masks of a batch [...] allow actions [..., 8]."""
    op, slot, blueprint = actions[..., 0], actions[..., 1], actions[..., HEADS.index(Head.BLUEPRINT)]
    names_slot = op != Op.WAIT
    slot = torch.where(names_slot, slot, 0)
    slot_legal = batch.slot_mask.flatten(-2).gather(-1, (op * batch.slot_count + slot).unsqueeze(-1)).squeeze(-1)
    grows = torch.tensor([matters(Head.BLUEPRINT, each) for each in Op])[op]
    count = batch.blueprint_mask.shape[-1]
    place = slot * count + torch.where(grows, blueprint, 0)
    blueprint_legal = batch.blueprint_mask.flatten(-2).gather(-1, place.unsqueeze(-1)).squeeze(-1)
    op_legal = batch.op_mask.gather(-1, op.unsqueeze(-1)).squeeze(-1)
    return op_legal & (~names_slot | slot_legal) & (~grows | blueprint_legal)


# Reading


def read_dataset(runs: Sequence[Path]) -> tuple[EpisodeDataset, tuple[str, ...]]:
    """All episodes of these runs, and the blueprints that they know. Raises RunError or ConfigError for what cannot be learned from."""
    if not runs:
        raise ConfigError("there is nothing to learn from: name one or more run folders, such as esper train heuristic writes")
    episodes: list[RecordedEpisode] = []
    blueprints: tuple[str, ...] | None = None
    for place, run in enumerate(runs):
        if run in runs[:place]:
            raise ConfigError(f"{run} is named twice; each run counts once")
        read_run(run)
        found, blueprints = read_episodes([run], blueprints)
        for number, episode in enumerate(found):
            _check(episode, len(blueprints), f"{run}: recorded episode {number}")
            _check_rules((run, episode), (runs[0], (episodes or found)[0]))
        episodes += found
    assert blueprints is not None
    return stack(episodes, len(blueprints)), blueprints


def _check(episode: RecordedEpisode, blueprints: int, where: str) -> None:
    """Raise RunError for an episode whose parts do not go together."""
    steps, slots = len(episode.rewards), episode.batch.slot_count
    expected = ObservationBatch.padding((steps,), slots, blueprints).tensors() if steps and slots else {}
    for name, tensor in episode.batch.tensors().items():
        if name not in expected or tensor.shape != expected[name].shape or tensor.dtype != expected[name].dtype:
            raise RunError(f"{where} is damaged: its {name} has the shape {tuple(tensor.shape)}, which does not go with the rest")
    sizes = {Head.SLOT: slots, Head.BLUEPRINT: blueprints, **{head: len(values) for head, values in HEAD_VALUES.items()}}
    limits = torch.tensor([sizes[head] for head in HEADS])
    if episode.actions.shape != (steps, len(HEADS)) or ((episode.actions < 0) | (episode.actions >= limits)).any():
        raise RunError(f"{where} is damaged: its actions are not decisions on {slots} slots with {blueprints} blueprints")
    batch = episode.batch
    seen, grown = (batch.host, batch.slots, batch.costs, episode.rewards), batch.blueprints
    if not all(torch.isfinite(tensor).all() for tensor in seen) or not ((grown >= 0) & (grown <= blueprints)).all():
        raise RunError(f"{where} is damaged: it holds values that no observation or reward has")
    for name in SOURCES:
        if name not in episode.about:
            raise RunError(f"{where} does not say its {name}; expected {', '.join(SOURCES)}")
    final = episode.about["final"]
    for name in FINAL:
        if not isinstance(final, dict) or not isinstance(final.get(name), int | float) or not math.isfinite(final[name]):
            raise RunError(f"{where} does not say the {name} that it ended with; record it again")


def _check_rules(one: tuple[Path, RecordedEpisode], first: tuple[Path, RecordedEpisode]) -> None:
    """Raise RunError for episodes that were rewarded, or allowed to act, in different ways: their returns mean different things."""
    (run, rules), (usual_run, usual) = ((path, episode.about["rules"]) for path, episode in (one, first))
    if rules["hash"] != usual["hash"]:
        found, expected = dict(flattened(rules)), dict(flattened(usual))
        names = [name for name in sorted(found.keys() | expected.keys()) if name != "hash" and found.get(name) != expected.get(name)]
        told = ", ".join(f"{name} {found.get(name)} instead of {expected.get(name)}" for name in names)
        raise RunError(f"{run} was recorded under other rules than {usual_run}: {told}; learn from one of them, or record it again")


def stack(episodes: Sequence[RecordedEpisode], blueprints: int) -> EpisodeDataset:
    """Episodes of any length and number of slots as rows."""
    steps = max(len(episode.rewards) for episode in episodes)
    slots = max(episode.batch.slot_count for episode in episodes)
    batch = ObservationBatch.padding((len(episodes), steps), slots, blueprints)
    actions = torch.zeros(len(episodes), steps, len(HEADS), dtype=torch.int64)
    reward, weight = torch.zeros(len(episodes), steps), torch.zeros(len(episodes), steps)
    for row, episode in enumerate(episodes):
        for name, tensor in episode.batch.tensors().items():
            # Steps and slots beyond those of the episode stay padding.
            batch.tensors()[name][row][tuple(map(slice, tensor.shape))] = tensor
        length = len(episode.rewards)
        actions[row, :length], reward[row, :length], weight[row, :length] = episode.actions, episode.rewards, 1.0
    sources = tuple((str(e.about["task"]), int(e.about["seed"]), str(e.about["controller"])) for e in episodes)
    return EpisodeDataset(
        observations=batch,
        actions=actions,
        reward=reward,
        weight=weight,
        sources=sources,
        **{name: torch.tensor([float(e.about["final"][name]) for e in episodes], dtype=torch.float64) for name in FINAL},
        share=torch.ones(len(episodes)),
    )


def split(dataset: EpisodeDataset, share: float, seed: int) -> tuple[EpisodeDataset, EpisodeDataset]:
    """What to learn from, and what to hold out. A host goes to one side with all its episodes, whoever decided in them."""
    hosts = sorted({(task, number) for task, number, _ in dataset.sources})
    if len(hosts) < 2:
        raise RunError(f"these runs recorded {len(hosts)} host; at least 2 are needed, one to learn from and one to hold out")
    order = torch.randperm(len(hosts), generator=generator("held out", seed)).tolist()
    count = min(len(hosts) - 1, max(1, round(share * len(hosts))))
    out = {hosts[place] for place in order[:count]}
    held = torch.tensor([(task, number) in out for task, number, _ in dataset.sources])
    return dataset.part((~held).nonzero().squeeze(1)), dataset.part(held.nonzero().squeeze(1))
