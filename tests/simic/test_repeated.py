"""Updates and decisions that are captured are those that are not; on the CPU by a stand-in for what a GPU captures."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from esper.leyline.errors import LearningError
from esper.leyline.stages import Stage
from esper.simic.learning import repeated
from esper.simic.learning.policy_decider import PolicyDecider
from esper.simic.learning.ppo import Learner
from esper.simic.learning.repeated import Repeated
from esper.simic.learning.rollout import RolloutBuffer
from esper.tamiyo import Observation
from esper.tamiyo.policy.heads import Exploration
from esper.tolaria.storage.checkpoint import CheckpointStore
from esper.tolaria.training.captured import Captured
from esper.tolaria.training.device import device_named
from tests.simic.problems import KnownReturn, Problem, Recall, Sentinel, new_policy, play, quick
from tests.simic.recorded import Recorded
from tests.simic.runs import opinionated
from tests.tamiyo.samples import report, seed, tracker

EXPLORE = Exploration.for_budget(20)
RATE = 2.0**-8
"""A learning rate that single precision holds as it is: where it is captured the optimiser reads it so."""
CHANGING = {"learning_rate": RATE, "decay": "linear", "decay_updates": 4, "final_rate": 0.0, "entropy_updates": 4}
"""Learning rate and entropy bonus are others in each of four updates."""


@contextmanager
def recording() -> Iterator[list[Recorded]]:
    """In here work is recorded on the CPU as it would be captured on a GPU; all that was."""
    made: list[Recorded] = []

    def captured(self: Captured, pool: object) -> Recorded:
        made.append(Recorded(self.work))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Captured, "_captured", captured)
        patch.setattr(repeated, "_graphs", lambda device: SimpleNamespace(latest=None))
        yield made


def learner(problem: Problem, seed: int = 0, device: str = "cpu", *, held: bool = False, **changes: Any) -> Learner:
    """held: near another policy, not near the prior."""
    policies = [new_policy(problem, seed=each).to(device_named(device)) for each in (seed, seed + 10)]
    return Learner(policies[0], quick(**(CHANGING | changes)), 3, reference=policies[1] if held else None)


def updates(made: Learner, problems: list[Problem]) -> list[dict[str, float]]:
    """One update on a round of each problem; their figures. Rounds are played on the CPU, whatever the learner's device is."""
    found = []
    for problem in problems:
        rollout = play(copy.deepcopy(made.policy).cpu(), problem, 1000 + made.updates, EXPLORE)
        found.append(made.update(rollout.to(made.policy.device)))
    return found


def same(one: Any, other: Any) -> bool:
    """Whether two states, of tensors and numbers in dicts and lists, are equal to the last bit."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


# The stand-in


def test_the_stand_in_does_again_what_it_recorded_and_nothing_else() -> None:
    x, out, factor = torch.ones(3), torch.zeros(3), [2.0]

    def work() -> None:
        out.copy_((x * factor[0]).reshape(3, 1)[:, 0] + 1.0)

    graph = Recorded(work)
    graph.replay()
    factor[0] = 100.0  # a number of Python's, which nobody reads again
    x.copy_(torch.tensor([1.0, 2.0, 3.0]))
    graph.replay()
    assert out.tolist() == [3.0, 5.0, 7.0]


@pytest.mark.parametrize(
    "work",
    [
        lambda: torch.ones(2).sum().item(),
        lambda: torch.ones(2)[torch.ones(2) > 0],
        lambda: torch.ones(2)[[0, 1]],
        lambda: torch.tensor(1.0),
    ],
)
def test_the_stand_in_refuses_what_a_gpu_cannot_capture(work: Callable[[], None]) -> None:
    with pytest.raises(AssertionError):
        Recorded(work)


def test_without_a_gpu_nothing_is_copied_or_captured() -> None:
    plain, value = Repeated(torch.device("cpu")), torch.ones(2)
    assert not plain.captures
    assert plain.put("value", value) is value
    assert plain("work", lambda: value) is value


# Updates


@pytest.mark.parametrize(
    ("problem", "changes"),
    [
        (Sentinel(4), {}),
        (Sentinel(7), {"minibatches": 3}),  # minibatches of two sizes
        (Sentinel(4), {"target_kl": 1e-9}),  # the critic goes on alone
        (KnownReturn(5), {"value_clip": 0.2, "checkpoint_lstm": True}),
        (Recall(4), {"autocast": True}),
        (Sentinel(1), {"max_gradient_norm": 1e-3}),
        (Sentinel(4), {"held": True}),
    ],
    ids=["plain", "two sizes", "stopped", "clipped", "autocast", "one host", "held"],
)
def test_captured_updates_are_the_same_to_the_last_bit(problem: Problem, changes: dict[str, Any]) -> None:
    plain = learner(problem, **changes)
    expected = updates(plain, [problem] * 4)
    with recording() as made:
        captured = learner(problem, **changes)
        found, counts = [], []
        for _ in range(4):
            found += updates(captured, [problem])
            counts.append(len(made))
    assert found == expected
    assert same(captured.state(), plain.state())
    assert counts[1] == counts[3], "the third and fourth update need nothing new"
    assert counts[3] >= 5


def test_another_shape_or_another_setting_is_captured_anew() -> None:
    problems: list[Problem] = [Sentinel(4), Sentinel(4), Sentinel(6), Sentinel(6), Sentinel(4)]
    states = []
    for context in (None, recording()):
        made = context.__enter__() if context else []
        each = learner(problems[0])
        figures = updates(each, problems)
        works = len(each.repeated._works)
        each.config = replace(each.config, clip_range=0.05, weight_decay=0.5, minibatches=1)
        figures += updates(each, problems[-1:] * 3)
        states.append((figures, each.state()))
        if context:
            assert len(each.repeated._works) <= works, "what was captured before is dropped"
            assert len(made) > works
            context.__exit__(None, None, None)
    assert same(*states)


def test_what_is_saved_is_the_same_captured_or_not_and_either_goes_on_from_it(tmp_path: Path) -> None:
    problem = Sentinel(4)
    whole = learner(problem)
    updates(whole, [problem] * 4)
    for number, (first, second) in enumerate(((True, False), (False, True), (True, True))):
        store = CheckpointStore(tmp_path / str(number))
        with recording() if first else _nothing():
            begun = learner(problem)
            updates(begun, [problem] * 2)
            store.save(2, begun.state())
        with recording() if second else _nothing():
            resumed = learner(problem, seed=5)
            updates(resumed, [problem])  # something captured that must not be used any more
            resumed.load_state(store.load(2))
            updates(resumed, [problem] * 2)
        assert same(resumed.state(), whole.state())
        assert {type(group["lr"]) for group in resumed.state()["optimizer"]["param_groups"]} == {float}


def test_heads_that_are_reset_are_learned_anew() -> None:
    problem, states = Sentinel(4), []
    for captures in (False, True):
        with recording() if captures else _nothing():
            each = learner(problem)
            updates(each, [problem] * 2)
            each.reset_heads(["blueprint", "op"])
            updates(each, [problem] * 2)
            states.append(each.state())
    assert same(*states)


@pytest.mark.parametrize(("changes", "words"), [({"weight_decay": 1e30}, "critic"), ({"entropy_start": 1e38}, "actor")])
def test_a_captured_step_that_is_not_finite_is_not_taken_and_is_told_by_its_network(changes: dict[str, object], words: str) -> None:
    with recording():
        made = learner(Sentinel(4), **changes)
        with pytest.raises(LearningError, match=f"update 1 of the policy went wrong: the gradient of the {words} is not finite"):
            updates(made, [Sentinel(4)])
    assert all(torch.isfinite(each).all() for each in made.policy.parameters())


@contextmanager
def _nothing() -> Iterator[None]:
    yield


# Acting


def observed(slots: int, accuracy: float, stage: Stage = Stage.DORMANT) -> Observation:
    names = ("r0c0", "r0c1", "r0c2")[:slots]
    return tracker(names).observe(report(*(seed(name, stage) for name in names), val_accuracy=accuracy))


SEEN: list[dict[int, Observation]] = [
    {0: observed(1, 20.0), 1: observed(3, 30.0), 2: observed(2, 40.0)},
    {0: observed(1, 25.0), 1: observed(3, 35.0), 2: observed(2, 45.0)},
    {0: observed(1, 50.0), 2: observed(2, 55.0)},  # one has ended
    {0: observed(1, 60.0), 2: observed(2, 65.0)},
    {2: observed(2, 75.0)},
]


def played(device: str = "cpu", plays: int = 2, *, deterministic: bool = False) -> tuple[list[Any], list[Tensor]]:
    """What a policy decides in several plays, and what it remembers and records."""
    policy, kept = opinionated().to(device_named(device)), Repeated(device_named(device))
    decisions, tensors = [], []
    started = {place: SimpleNamespace(slots=each.masks.slot_names) for place, each in SEEN[0].items()}
    for number in range(plays):
        buffer = RolloutBuffer(3, len(SEEN), 3, len(policy.config.blueprints), exploration=EXPLORE)
        decider = PolicyDecider(policy, number, explore=EXPLORE, deterministic=deterministic, buffer=buffer, repeated=kept)
        decider.begin(started)  # type: ignore[arg-type]
        for step, seen in enumerate(SEEN):
            decisions.append(decider.decide(seen))
            rewards = torch.zeros(len(seen))
            buffer.outcome(
                list(seen), step, rewards, terminated=torch.tensor([step + 1 == len(SEEN) or place not in SEEN[step + 1] for place in seen])
            )
        state = decider.state
        tensors += [each.cpu() for each in (*state.actor, *state.critic, buffer.log_prob, buffer.value, buffer.actions)]
    return decisions, tensors


@pytest.mark.parametrize("deterministic", [False, True])
def test_captured_decisions_are_those_that_are_not(deterministic: bool) -> None:
    expected = played(deterministic=deterministic)
    with recording() as made:
        found = played(deterministic=deterministic)
    assert len(made) == 1, "one size serves all steps of both plays"
    assert found[0] == expected[0]
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(found[1], expected[1], strict=True))


# On a GPU

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@pytest.fixture
def precise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of a policy in the precision of a CPU."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.gpu
@cuda
@pytest.mark.parametrize(
    "changes", [{}, {"minibatches": 3}, {"target_kl": 1e-9}, {"checkpoint_lstm": True}, {"autocast": True}, {"held": True}]
)
def test_updates_on_a_gpu_are_captured_and_right(changes: dict[str, Any]) -> None:
    problem = Sentinel(7)
    runs = [learner(problem, device="cuda", **changes) for _ in range(2)]
    figures = [updates(each, [problem] * 4) for each in runs]
    assert figures[0] == figures[1]
    assert same(runs[0].state(), runs[1].state()), "the same twice"
    works = runs[0].repeated._works
    steps = [name for name in works if isinstance(name, tuple)]
    assert all(works[name].captured.graph is not None for name in ("before", "values", "moved", "figures", steps[0]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeated, "_graphs", lambda device: None)
        plain = learner(problem, device="cuda", **changes)
        expected = updates(plain, [problem] * 4)
    tolerance = 1e-2 if "autocast" in changes else 1e-4
    assert figures[0][0] == pytest.approx(expected[0], rel=tolerance, abs=tolerance)
    for name, tensor in plain.policy.state_dict().items():
        assert torch.allclose(tensor, runs[0].policy.state_dict()[name], rtol=tolerance, atol=tolerance), name


@pytest.mark.gpu
@cuda
@pytest.mark.usefixtures("precise")
@pytest.mark.parametrize(("first", "second"), [("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda")])
def test_what_is_saved_on_one_device_goes_on_on_the_other(first: str, second: str, tmp_path: Path) -> None:
    problem, store = Sentinel(4), CheckpointStore(tmp_path)
    begun, resumed = learner(problem, device=first), learner(problem, seed=5, device=second)
    updates(begun, [problem] * 2)
    store.save(2, begun.state())
    updates(resumed, [problem] * 2)
    resumed.load_state(store.load(2))
    assert resumed.updates == 2
    figures = [updates(each, [problem] * 2) for each in (begun, resumed)]
    if first == second:
        assert figures[0] == figures[1]
    assert figures[0][0] == pytest.approx(figures[1][0], rel=1e-2, abs=1e-2)
    for name, tensor in begun.policy.state_dict().items():
        assert torch.allclose(tensor.cpu(), resumed.policy.state_dict()[name].cpu(), rtol=1e-2, atol=1e-2), name


@pytest.mark.gpu
@cuda
@pytest.mark.usefixtures("precise")
@pytest.mark.parametrize("deterministic", [False, True])
def test_decisions_on_a_gpu_are_those_on_a_cpu(deterministic: bool) -> None:
    (decided, tensors), (expected, others) = played("cuda", deterministic=deterministic), played(deterministic=deterministic)
    assert decided == expected
    # The policy's op head is 300 times as steep as a new one's, and so is what rounding does to it.
    assert all(torch.allclose(one, other, atol=1e-2) for one, other in zip(tensors, others, strict=True))
    again = played("cuda", deterministic=deterministic)
    assert all(map(torch.equal, tensors, again[1]))
