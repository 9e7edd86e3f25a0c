"""One host from its first epoch to the end of its budget: what is seen of it, what is decided, what that earns and how it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from esper.leyline.actions import Decision, Planted
from esper.leyline.codec import from_plain, to_plain
from esper.leyline.errors import CheckpointError
from esper.leyline.events import Event, HostFinished, HostStarted
from esper.leyline.reports import EpochReport
from esper.leyline.travel import travels
from esper.simic.growth.episode import Episode, Step
from esper.simic.growth.lives import Lives, happened, measured
from esper.simic.rewards import FinalScore, RewardConfig, RewardInput, RewardStep, RewardTracker, Twin
from esper.tamiyo import Observation, Rules
from esper.tolaria.data import FinalEvaluation
from esper.tolaria.training.host import Host
from esper.tolaria.training.validation import Score


@dataclass(frozen=True, slots=True)
class Start:
    """Which host to begin: a task and a host seed."""

    task: str
    seed: int
    twin_of: int | None = None
    """The place of the host that this one is the control of, for one that trains beside it."""
    member_of: int | None = None
    """The seed that draws its member, if that is another: the same kind of host, born and trained otherwise."""
    planted: tuple[Planted, ...] = ()
    """Seeds that are part of the network from the first step on."""
    size: float = 0.0
    """How large a network without growth is from the first step on: 0 is the bare host, 1 the largest blueprint in every slot, and in
    between, by rank, the others."""
    epochs: int | None = None
    """Its budget, in place of the member's."""
    control: bool = True
    """Whether it is measured against its course without growth, in a run with controls."""


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What an epoch of a host brought."""

    observation: Observation
    reward: RewardStep | None
    """Of the decision before the epoch; None after the first."""
    events: tuple[Event, ...]
    """What happened to the seeds while it was trained and measured: a rollback, a seed that broke. And remarks on how it was trained."""


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class Acted:
    """What a decision did."""

    refused: str
    """Why it was not carried out; empty when it was."""
    events: tuple[Event, ...]
    reward: RewardStep | None
    """Of this decision, if it was the host's last; that of any other is known after the next epoch."""
    result: HostFinished | None
    """How the host ended; None while its budget lasts."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A decision whose reward is not known yet."""

    before: EpochReport
    """What it was made on."""
    step: Step


@dataclass(slots=True)
class Course:
    """One host so far, but for its network: all that is saved of it as plain values."""

    accuracies: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    """On val, after each epoch."""
    final: FinalScore | None = None
    """Once the budget is spent: what is harvested."""
    result: HostFinished | None = None
    pending: Pending | None = None
    reward: float = 0.0
    components: dict[str, float] = field(default_factory=dict)
    decisions: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    seeds: Lives = ()


class HostRun:
    """A host in the environment, its episode, its rewards and its course so far.

    twin: the course of the same host without growth, to measure it against: another HostRun that trains beside it, itself if it is
    such a twin, one that was trained before, or None.
    """

    def __init__(self, start: Start, host: Host, rules: Rules, rewards: RewardConfig) -> None:
        self.start, self.host = start, host
        self.episode = Episode(host, rules)
        self.rewards = RewardTracker(rewards, host.model.slot_ids)
        self.twin: HostRun | Twin | None = None
        self.course = Course()
        self.observation: Observation | None = None
        """What was seen last, until something is decided on it."""

    @property
    def result(self) -> HostFinished | None:
        """How it ended; None while its budget lasts."""
        return self.course.result

    def started(self) -> HostStarted:
        """The host, before anything is known about who decides."""
        host, member = self.host, self.host.member.plain()
        return HostStarted(
            task=host.task.name,
            seed=host.seed,
            member=member,
            epochs=host.member.epochs,
            parameters=host.start_parameters,
            slots=host.model.slot_ids,
        )

    def as_twin(self) -> Twin:
        """This host's course so far, for the one that it is the twin of."""
        return Twin(accuracy=self.course.accuracies, loss=self.course.losses, final=self.course.final)

    def _control(self) -> Twin | None:
        return self.twin.as_twin() if isinstance(self.twin, HostRun) else self.twin

    # An epoch, in the order of these calls

    def trained(self, report: EpochReport) -> None:
        """An epoch was trained. Every host's is noted before the first is paid: a host is measured against its twin at the same epoch."""
        self.course.accuracies += (report.val_accuracy,)
        self.course.losses += (report.val_loss,)

    def look(self, report: EpochReport) -> Trained:
        """What can be seen of the epoch, and what the decision before it earned."""
        reward = None if self.course.pending is None else self._settle(report, None)
        self.observation = self.episode.look(report)
        events = tuple(self.host.drain())
        self.course.seeds = happened(measured(self.course.seeds, report.epoch, report.seeds), report.epoch, events)
        return Trained(observation=self.observation, reward=reward, events=events)

    def act(self, decision: Decision) -> Step:
        """Carry out a decision on what was seen."""
        assert self.observation is not None, "a decision needs an epoch to look at"
        step = self.episode.carry_out(self.observation, decision)
        course, op = self.course, decision.op.name
        course.pending = Pending(self.observation.report, step)
        course.decisions[op] = course.decisions.get(op, 0) + 1
        course.refused += bool(step.refused)
        course.seeds = happened(course.seeds, self.observation.report.epoch, step.events, decision)
        self.observation = None
        return step

    def harvest(self, score: Score) -> None:
        """The budget is spent, and this is what the network scores on val. Every host is scored before the first is paid, as its twin's
        score is needed for that."""
        self.course.final = FinalScore(accuracy=score.accuracy, loss=score.loss, parameters=self.host.harvest_parameters())

    def end(self, test: bool) -> tuple[RewardStep, HostFinished]:
        """What the last decision earned, and the result. test: whether to score the network on the untouched split too."""
        host, course, control = self.host, self.course, self._control()
        final, pending = course.final, course.pending
        assert final is not None, "the network is harvested first"
        assert pending is not None, "a host ends with a decision"
        reward = self._settle(pending.before, final)
        score = host.score(host.data.test(FinalEvaluation(asked_by="end of a run"))) if test else None
        course.result = HostFinished(
            val_accuracy=final.accuracy,
            val_loss=final.loss,
            test_accuracy=None if score is None else score.accuracy,
            test_loss=None if score is None else score.loss,
            host_parameters=host.start_parameters,
            parameters=final.parameters,
            rent=host.member.rent,
            control_accuracy=None if control is None or control.final is None else control.final.accuracy,
            control_loss=None if control is None or control.final is None else control.final.loss,
            flops=dict(host.flops),
            germinated=host.germinated,
            fossilized=host.fossilized,
            pruned=host.pruned,
            rollbacks=host.rollbacks,
            reward=course.reward,
            components=course.components,
            decisions=course.decisions,
            refused=course.refused,
            slots={
                id: {"stage": slot.state.stage.name, "blueprint": slot.state.blueprint, "style": slot.state.style.name}
                for id, slot in host.model.slots.items()
            },
            seeds=course.seeds,
        )
        return reward, course.result

    def _settle(self, report: EpochReport, final: FinalScore | None) -> RewardStep:
        course, pending = self.course, self.course.pending
        assert pending is not None
        before, step = pending.before, pending.step
        reward = self.rewards.step(
            RewardInput(
                before=before,
                decision=step.decision,
                refused=bool(step.refused),
                events=step.events,
                report=report,
                control=self._control(),
                final=final,
            )
        )
        course.reward += reward.total
        course.components = {name: course.components.get(name, 0.0) + value for name, value in reward.components.items()}
        course.pending = None
        return reward

    # Saving

    def state(self) -> dict[str, Any]:
        """Everything to go on from after a decision, in plain containers and tensors."""
        return {
            "seed": self.host.seed,
            "member": to_plain(self.host.member),
            "host": self.host.state(),
            "signals": self.episode.tracker.state(),
            "rewards": self.rewards.state(),
            "course": to_plain(self.course),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, bit for bit. Raises CheckpointError for the state of another host."""
        if state["seed"] != self.host.seed or state["member"] != to_plain(self.host.member):
            raise CheckpointError(f"host {self.host.seed} of task {self.host.task.name!r} is built otherwise than in the checkpoint")
        self.host.load_state(state["host"])
        self.episode.tracker.load_state(state["signals"])
        self.rewards.load_state(state["rewards"])
        self.course = from_plain(Course, state["course"])
