"""Small problems with known answers, for the learning machinery.

They speak the language of real hosts: observations of the real size, eight heads, masks that depend on the op and the slot. What is
to be seen lies in a few of the fields; the rest is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from esper.leyline.actions import Head, Op, matters
from esper.leyline.observation import OBSERVATION
from esper.simic.learning.ppo import Learner, PPOConfig
from esper.simic.learning.rollout import Rollout, RolloutBuffer
from esper.tamiyo.observe.masks import Masks
from esper.tamiyo.policy.batch import HEADS, ObservationBatch
from esper.tamiyo.policy.heads import Exploration, uniforms
from esper.tamiyo.policy.policy import Policy, PolicyConfig

COLUMN = {head: HEADS.index(head) for head in HEADS}
CUES = [OBSERVATION.host_index(f"last_op_{op.name.lower()}") for op in Op]
"""Six fields of a host that a problem may show something in, one at a time."""
FLAG, SIGNAL = OBSERVATION.host_index("last_op_succeeded"), OBSERVATION.host_index("val_loss_trend")
MARKS = [OBSERVATION.slot_index(f"style_{name}") for name in ("linear_add", "sigmoid_add", "linear_multiply", "gated")]
"""Four fields of a slot, likewise."""
MERIT = OBSERVATION.slot_index("trial_contribution")
WAITED = tuple(Masks.idle(head) for head in HEADS)
"""An action that waits."""


def germinated(slot: int, blueprint: int) -> tuple[int, ...]:
    """An action that germinates a seed, all else as its values come first."""
    action = dict(zip(HEADS, WAITED, strict=True)) | {Head.OP: int(Op.GERMINATE), Head.SLOT: slot, Head.BLUEPRINT: blueprint}
    return tuple(action.values())


class Problem(Protocol):
    """Many hosts at once. What they meet depends on the generator alone, what they earn on their actions too."""

    hosts: int
    steps: int
    slots: int
    blueprints: tuple[str, ...]

    def begin(self, generator: torch.Generator) -> None:
        """A new episode for every host."""

    def observe(self, step: int) -> ObservationBatch:
        """[hosts]: what is seen at a step."""

    def reward(self, step: int, actions: Tensor) -> Tensor:
        """[hosts]: what actions [hosts, 8] earn at a step."""


class Bandit:
    """One step. The right op is shown, unless it is illegal; the right slot, and then the right values, depend on what came before.

    An action earns the share of its heads, beyond op, that are right, and nothing if the op is wrong; 1 is always possible.
    """

    steps, slots = 1, 3
    blueprints: tuple[str, ...] = ("a", "b", "c", "d")

    def __init__(self, hosts: int) -> None:
        self.hosts = hosts

    def begin(self, generator: torch.Generator) -> None:
        def draw(high: int, *shape: int) -> Tensor:
            return torch.randint(high, (self.hosts, *shape), generator=generator)

        batch = empty(self)
        self.shown, self.mark, self.merit = draw(len(Op)), draw(4, self.slots), torch.rand(self.hosts, self.slots, generator=generator)
        batch.host[torch.arange(self.hosts), torch.tensor(CUES)[self.shown]] = 1.0
        batch.slots.scatter_(-1, torch.tensor(MARKS)[self.mark].unsqueeze(-1), 1.0)
        batch.slots[..., MERIT] = self.merit
        batch.slot_mask[:, 1:] = draw(3, len(Op) - 1, self.slots) > 0
        batch.op_mask[:, 1:] = batch.slot_mask[:, 1:].any(dim=-1)
        batch.blueprint_mask.copy_((draw(2, self.slots, 4) > 0) | torch.nn.functional.one_hot(self.mark, 4).bool())
        self.batch = batch

    def observe(self, step: int) -> ObservationBatch:
        return self.batch

    def reward(self, step: int, actions: Tensor) -> Tensor:
        op, slot = actions[:, COLUMN[Head.OP]], actions[:, COLUMN[Head.SLOT]]
        legal = self.batch.op_mask.gather(-1, self.shown[:, None]).squeeze(-1)
        retarget = op == Op.SET_ALPHA_TARGET
        # PRUNE takes the least of the legal slots, all others the best.
        merit = torch.where((op == Op.PRUNE)[:, None], -self.merit, self.merit)
        merit = merit.masked_fill(~self.batch.slot_mask[torch.arange(self.hosts), op], -2.0)
        mark = self.mark.gather(-1, slot[:, None]).squeeze(-1)
        right = {
            Head.SLOT: slot == merit.argmax(dim=-1),
            Head.BLUEPRINT: actions[:, COLUMN[Head.BLUEPRINT]] == mark,
            Head.STYLE: actions[:, COLUMN[Head.STYLE]] == (mark + retarget) % 4,
            Head.TEMPO: actions[:, COLUMN[Head.TEMPO]] == 2,
            Head.ALPHA_TARGET: actions[:, COLUMN[Head.ALPHA_TARGET]] == torch.where(retarget, 1, 3),
            Head.ALPHA_SPEED: actions[:, COLUMN[Head.ALPHA_SPEED]] == torch.where(retarget, mark, 0),
            Head.ALPHA_CURVE: actions[:, COLUMN[Head.ALPHA_CURVE]] == 4,
        }
        counted = torch.tensor([[matters(head, each) for head in right] for each in Op])[op]
        share = (torch.stack(list(right.values()), dim=-1) & counted).sum(dim=-1) / counted.sum(dim=-1).clamp(min=1)
        share = torch.where(op == Op.WAIT, 1.0, share)
        return torch.where(op == torch.where(legal, self.shown, Op.WAIT), share, 0.0)


class Recall:
    """A sign is shown at the first step and asked for at the last: germinate the first blueprint for one sign, the second for the other."""

    slots = 1
    blueprints: tuple[str, ...] = ("a", "b")

    def __init__(self, hosts: int, steps: int = 5) -> None:
        self.hosts, self.steps = hosts, steps

    def begin(self, generator: torch.Generator) -> None:
        self.sign = torch.randint(2, (self.hosts,), generator=generator)

    def observe(self, step: int) -> ObservationBatch:
        batch = empty(self)
        if step == 0:
            batch.host[:, SIGNAL] = 2.0 * self.sign - 1.0
        if step == self.steps - 1:
            batch.host[:, FLAG] = 1.0
            allow(batch, Op.GERMINATE)
        return batch

    def reward(self, step: int, actions: Tensor) -> Tensor:
        germinated = actions[:, COLUMN[Head.OP]] == Op.GERMINATE
        return (germinated & (actions[:, COLUMN[Head.BLUEPRINT]] == self.sign)).float()


class Sentinel:
    """WAIT is right in 19 of 20 steps. In the other one, which is shown, GERMINATE is, and the right blueprint earns all there is.

    By default the slot's mark says which blueprint is right; with `answer` it is always that one.
    """

    slots, steps = 2, 20
    blueprints: tuple[str, ...] = ("a", "b", "c", "d")

    def __init__(self, hosts: int, answer: int | None = None) -> None:
        self.hosts, self.answer = hosts, answer

    def begin(self, generator: torch.Generator) -> None:
        self.moment = torch.randint(self.steps, (self.hosts,), generator=generator)
        self.mark = torch.randint(4, (self.hosts, self.slots), generator=generator)

    def observe(self, step: int) -> ObservationBatch:
        batch = empty(self)
        allow(batch, Op.GERMINATE)
        batch.host[:, FLAG] = (self.moment == step).float()
        batch.slots.scatter_(-1, torch.tensor(MARKS)[self.mark].unsqueeze(-1), 1.0)
        return batch

    def right(self, actions: Tensor) -> Tensor:
        """Whether the blueprint is right."""
        mark = self.mark.gather(-1, actions[:, COLUMN[Head.SLOT]][:, None]).squeeze(-1)
        return actions[:, COLUMN[Head.BLUEPRINT]] == (mark if self.answer is None else self.answer)

    def reward(self, step: int, actions: Tensor) -> Tensor:
        germinated = actions[:, COLUMN[Head.OP]] == Op.GERMINATE
        earned = torch.where(self.moment == step, self.right(actions).float(), -0.25)
        return torch.where(germinated, earned, 0.0)


class KnownReturn:
    """Whatever is done, each step earns a host's own rate, which is shown at the first step alone, less what it shows at every step."""

    slots, steps = 1, 12
    blueprints: tuple[str, ...] = ("a", "b")

    def __init__(self, hosts: int) -> None:
        self.hosts = hosts

    def begin(self, generator: torch.Generator) -> None:
        self.rate = torch.rand(self.hosts, generator=generator)
        self.signals = torch.rand(self.hosts, self.steps, generator=generator)

    def observe(self, step: int) -> ObservationBatch:
        batch = empty(self)
        allow(batch, Op.GERMINATE)
        batch.host[:, OBSERVATION.host_index("progress")] = step / self.steps
        batch.host[:, SIGNAL] = self.signals[:, step]
        if step == 0:
            batch.host[:, FLAG] = self.rate
        return batch

    def reward(self, step: int, actions: Tensor) -> Tensor:
        return 30.0 + 10.0 * self.rate - 2.0 * self.signals[:, step]


def empty(problem: Problem) -> ObservationBatch:
    """[hosts] that see nothing and may only wait; every slot exists, and every blueprint fits."""
    batch = ObservationBatch.padding((problem.hosts,), problem.slots, len(problem.blueprints))
    batch.exists.fill_(True)
    batch.blueprint_mask.fill_(True)
    return batch


def allow(batch: ObservationBatch, op: Op) -> None:
    """Make an op legal for every slot."""
    batch.op_mask[:, op] = True
    batch.slot_mask[:, op] = True


def play(
    policy: Policy,
    problem: Problem,
    seed: int,
    explore: Exploration | None = None,
    *,
    greedy: bool = False,
    hosts: Sequence[int] | None = None,
    buffer: RolloutBuffer | None = None,
) -> Rollout:
    """One round of all hosts, or of the one alone that is named, by the same seed."""
    rows = list(range(problem.hosts)) if hosts is None else list(hosts)
    buffer = buffer or RolloutBuffer(problem.hosts, problem.steps, problem.slots, len(problem.blueprints), exploration=explore)
    problem.begin(torch.Generator().manual_seed(seed))
    state = policy.initial_state(len(rows))
    for step in range(problem.steps):
        batch = problem.observe(step)[torch.tensor(rows)]
        acted = policy.act(batch, state, None if greedy else uniforms(seed, rows, step), explore)
        state = acted.state
        buffer.decided(rows, step, batch, acted)
        everyone = torch.zeros(problem.hosts, len(HEADS), dtype=torch.int64)
        everyone[rows] = acted.actions
        last = torch.full((len(rows),), step == problem.steps - 1)
        buffer.outcome(rows, step, problem.reward(step, everyone)[rows], terminated=last)
    return buffer.rollout() if hosts is None else None  # type: ignore[return-value]


def new_policy(problem: Problem, *, hidden: int = 32, seed: int = 0) -> Policy:
    """A small policy for a problem."""
    config = PolicyConfig(blueprints=problem.blueprints, hidden=hidden, slot_width=32)
    return Policy(config, torch.Generator().manual_seed(seed))


def quick(**changes: object) -> PPOConfig:
    """Settings for small problems: defaults, but for steps that get there in seconds."""
    plain: dict[str, object] = {"learning_rate": 5e-3, "target_kl": 0.05, "warmup_updates": 0, "decay": "none", "minibatches": 2}
    return PPOConfig(**(plain | changes))  # type: ignore[arg-type]


def train(learner: Learner, problem: Problem, updates: int, explore: Exploration | None = None) -> list[dict[str, float]]:
    """So many rounds and updates; what each reported."""
    history = []
    for _ in range(updates):
        history.append(learner.update(play(learner.policy, problem, 1000 + learner.updates, explore)))
    return history
