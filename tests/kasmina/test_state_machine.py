"""Random lives: three slots under random commands, most of them legal, and what must hold after every one of them."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any, get_args

import torch
from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from torch import Tensor, optim

from esper.kasmina import Growable
from esper.leyline.actions import Curve, Style
from esper.leyline.errors import EsperError, GateError
from esper.leyline.events import Event, GateChecked, StageChanged
from esper.leyline.reports import GateConfig, Isolation, LifecycleConfig
from esper.leyline.stages import BLENDED, LIVE, TRANSITIONS, Stage
from tests.kasmina.garden import IMAGES, SLOTS, STAGES, as_bytes, everything, grow, slot_of, step

EXAMPLES, STEPS = 10, 40
"""Of each form of isolation."""
BEGINNINGS = [Stage.DORMANT, Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED, Stage.RESETTING]

slots = st.sampled_from(SLOTS)
blueprints = st.sampled_from(["norm", "norm", "mlp_small", "lora8", "conv_small", "conv_light", "attention", "no_such"])
styles = st.sampled_from([*Style, *Style, "gated", "no_such"])
tempos = st.sampled_from([1, 1, 2, 3, 0])
alphas = st.sampled_from([1.0, 1.0, 1.0, 0.5, 0.25, 0.0, 1.5])
speeds = st.sampled_from([0, 0, 1, 2, 3, -1])
curves = st.sampled_from([*Curve, *Curve, "cosine", "no_such"])
points = st.sampled_from([None, 0.5, -2.0, float("nan")])

seen_stages: Counter[Stage] = Counter()
outcomes: Counter[str] = Counter()

VALID = {"style": [*Style, "gated"], "tempo": [1, 2, 3], "alpha": [0.25, 0.5, 1.0], "speed": [0, 1, 2, 3], "curve": [*Curve, "cosine"]}
FITS = {
    "stem.0": ("norm", "conv_small", "conv_light", "attention"),
    "mix": ("norm", "mlp_small", "lora8"),
    "late": ("norm", "mlp_small", "lora8"),
}


class Lives(RuleBasedStateMachine):
    """Holds a network and an optimiser that follows it; each rule is a command or an event of a training loop."""

    isolation: Isolation

    @initialize(
        kind=st.sampled_from(["sgd", "adam"]),
        auto_advance=st.booleans(),
        embargo=st.integers(1, 2),
        starts=st.lists(st.sampled_from(BEGINNINGS), min_size=3, max_size=3),
        style=st.sampled_from(Style),
    )
    def build(self, kind: str, auto_advance: bool, embargo: int, starts: list[Stage], style: Style) -> None:
        self.kind = kind
        self.settings: dict[str, Any] = {
            "isolation": self.isolation,
            "gates": GateConfig(strict=False, min_training_epochs=0, min_gradient_health=0.0),
            "lifecycle": LifecycleConfig(embargo_epochs=embargo, auto_advance=auto_advance),
        }
        self.net, self.optimizer = self.fresh()
        self.last = dict.fromkeys(SLOTS, Stage.DORMANT)
        self.read = 0
        for slot, stage in zip(SLOTS, starts, strict=True):
            self.bring(slot, stage, style)

    def bring(self, slot: str, stage: Stage, style: Style) -> None:
        """Start with a seed that is on its way already, or late stages would be rare."""
        if stage is not Stage.DORMANT:
            self.germinate(slot, "norm", style, 1, 0.5 if stage is Stage.BLENDING else 1.0)
        if stage is Stage.RESETTING:
            self.prune(slot, 0, Curve.LINEAR)
        while self.net.slots[slot].state.stage is not stage:
            self.nurture(slot)

    def fresh(self) -> tuple[Growable, optim.Optimizer]:
        """A network as it was before anything grew, with an optimiser that follows it."""
        net = grow(**self.settings)
        groups = net.parameter_groups()
        optimizer = optim.SGD(groups, lr=0.02, momentum=0.9) if self.kind == "sgd" else optim.Adam(groups, lr=0.002)
        net.follow(optimizer)
        return net, optimizer

    # Commands, right and wrong

    @rule(slot=slots, blueprint=blueprints, style=styles, tempo=tempos, alpha=alphas)
    def germinate(self, slot: str, blueprint: str, style: Any, tempo: int, alpha: float) -> None:
        valid = style in VALID["style"] and tempo in VALID["tempo"] and alpha in VALID["alpha"] and blueprint in FITS[slot]
        legal = self.net.slots[slot].state.stage is Stage.DORMANT and valid
        self.attempt(legal, lambda: self.net.germinate(slot, blueprint, style=style, tempo=tempo, alpha_target=alpha))

    @rule(slot=slots)
    def advance(self, slot: str) -> None:
        state = self.net.slots[slot].state
        legal = state.stage in (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING) and not state.pruning
        self.attempt(legal, lambda: self.net.advance(slot), gated=True)

    @rule(slot=slots, alpha=alphas, speed=speeds, curve=curves, style=st.none() | styles)
    def retarget(self, slot: str, alpha: float, speed: int, curve: Any, style: Any) -> None:
        state = self.net.slots[slot].state
        valid = alpha in VALID["alpha"] and speed in VALID["speed"] and curve in VALID["curve"]
        legal = valid and (style is None or style in VALID["style"])
        legal = legal and state.stage in (Stage.BLENDING, Stage.HOLDING) and state.ramp_left == 0
        self.attempt(legal, lambda: self.net.set_alpha_target(slot, alpha, speed=speed, curve=curve, style=style))

    @rule(slot=slots, speed=speeds, curve=curves)
    def prune(self, slot: str, speed: int, curve: Any) -> None:
        state = self.net.slots[slot].state
        legal = state.stage in LIVE and (speed == 0 or not state.pruning) and speed in VALID["speed"] and curve in VALID["curve"]
        self.attempt(legal, lambda: self.net.prune(slot, speed=speed, curve=curve))

    @rule(slot=slots)
    def fossilize(self, slot: str) -> None:
        self.attempt(self.net.slots[slot].state.stage is Stage.HOLDING, lambda: self.net.fossilize(slot), gated=True)

    @rule(slot=slots, contribution=points, trial=points)
    def record(self, slot: str, contribution: float | None, trial: float | None) -> None:
        stage = self.net.slots[slot].state.stage
        legal = (contribution is None or stage in BLENDED) and (trial is None or stage is Stage.TRAINING)
        self.attempt(legal, lambda: self.net.record(slot, contribution=contribution, trial_contribution=trial))

    # What a training loop does

    @rule()
    def tick(self) -> None:
        self.attempt(True, self.net.tick)

    @rule()
    def train(self) -> None:
        before = torch.get_rng_state()
        self.training_step(self.net, self.optimizer)
        assert torch.equal(torch.get_rng_state(), before)

    @rule(slot=slots)
    def nurture(self, slot: str) -> None:
        """The next thing that brings a seed on, so that random lives come to their end now and then."""
        stage = self.net.slots[slot].state.stage
        self.train()
        if stage is Stage.DORMANT:
            self.germinate(slot, "norm", Style.LINEAR_ADD, 1, 1.0)
        elif stage in (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING):
            self.advance(slot)
        elif stage is Stage.HOLDING:
            self.record(slot, 1.0, None)
            self.fossilize(slot)
        self.tick()

    @rule()
    @precondition(lambda self: any(stage is not Stage.DORMANT for stage in self.last.values()))
    def round_trip(self) -> None:
        """Saved and loaded into a new network, everything is the same and goes on the same. The new one takes over."""
        other, optimizer = self.fresh()
        other.load_state_dict(self.net.state_dict())
        optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        assert contents(other, optimizer) == contents(self.net, self.optimizer)
        assert other.reports() == self.net.reports() or "nan" in repr(self.net.reports())
        assert torch.equal(predictions(other), predictions(self.net))
        losses = [self.training_step(net, its) for net, its in ((self.net, self.optimizer), (other, optimizer))]
        assert torch.equal(*losses)
        assert contents(other, optimizer) == contents(self.net, self.optimizer)
        other.journal = self.net.journal
        self.net, self.optimizer = other, optimizer

    def training_step(self, net: Growable, optimizer: optim.Optimizer) -> Tensor:
        if self.settings["isolation"] != "shadow":
            return step(net, optimizer)
        net.zero_grad()
        net.shadow_backward(lambda: net(IMAGES).square().mean())
        loss = net(IMAGES).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    # What must hold

    def attempt(self, legal: bool, command: Callable[[], None], gated: bool = False) -> None:
        """Run a command. One that is not legal raises; one that raises has changed nothing, but for the record of a gate's refusal."""
        before, journal, remembered = everything(self.net, self.optimizer), list(self.net.journal), self.remembered()
        stream = torch.get_rng_state()
        refusal: EsperError | None = None
        try:
            command()
        except EsperError as error:
            refusal = error
        added = self.net.journal[len(journal) :]
        assert self.net.journal[: len(journal)] == journal
        assert torch.equal(torch.get_rng_state(), stream)
        if refusal is None:
            assert legal, "an illegal command was carried out"
            after = self.remembered()
            assert all(after[p] == remembered[p] for p in after if p in remembered), "the optimiser forgot something of what stayed"
        else:
            assert not legal or (gated and isinstance(refusal, GateError)), f"a legal command was refused: {refusal}"
            assert [isinstance(e, GateChecked) and not e.passed for e in added] == [True] * isinstance(refusal, GateError)
            assert everything(self.net, self.optimizer) == before
        outcomes["done" if refusal is None else "refused by a gate" if added else "refused"] += 1

    def remembered(self) -> dict[int, bytes]:
        """What the optimiser remembers of each parameter."""
        return {id(p): as_bytes(self.optimizer.state[p]) for p in self.net.parameters() if p in self.optimizer.state}

    @invariant()
    def only_table_transitions_happen_and_they_chain(self) -> None:
        news: list[Event] = self.net.journal[self.read :]
        self.read = len(self.net.journal)
        for change in news:
            if isinstance(change, StageChanged):
                assert change.after in TRANSITIONS[change.before]
                assert change.before is self.last[change.slot]
                self.last[change.slot] = change.after
                seen_stages[change.after] += 1
                event(f"reached {change.after.name}")
        stages = {id: slot.state.stage for id, slot in self.net.slots.items()}
        assert stages == self.last

    @invariant()
    def the_optimisers_groups_match_the_live_parameters(self) -> None:
        host, *groups = self.optimizer.param_groups
        assert [id(p) for p in host["params"]] == [id(p) for p in self.net.host.parameters()]
        for slot, group in zip(SLOTS, groups, strict=True):
            assert [id(p) for p in group["params"]] == [id(p) for p in slot_of(self.net, slot).seed_parameters()]
        alive = {id(p) for p in self.net.parameters()}
        assert {id(p) for p in self.optimizer.state} <= alive
        assert len(alive) == sum(len(group["params"]) for group in self.optimizer.param_groups)

    @invariant()
    def the_forward_pass_agrees_with_the_record(self) -> None:
        for slot, report in zip(self.net.slots.values(), self.net.reports(), strict=True):
            assert float(slot.alpha) == torch.tensor(report.alpha).item()
            assert (slot.seed is not None) == (report.stage in LIVE or report.stage is Stage.FOSSILIZED)
            assert (slot.gating is not None) == (slot.seed is not None and report.style is Style.GATED)
            assert report.stage is not Stage.FOSSILIZED or report.alpha == 1.0
            assert report.alpha == 0.0 or report.stage in BLENDED


def contents(net: Growable, optimizer: optim.Optimizer) -> list[bytes]:
    state = optimizer.state_dict()
    return [as_bytes(part) for part in (list(net.state_dict().items()), sorted(state["state"].items()), state["param_groups"])]


def predictions(net: Growable) -> Tensor:
    """In eval mode, which leaves no trace; the training step that follows compares the other mode."""
    modes = [(module, module.training) for module in net.modules()]
    found: Tensor = net.eval()(IMAGES).detach()
    for module, mode in modes:
        module.training = mode
    return found


def test_whatever_is_commanded_lives_stay_legal_and_refusals_change_nothing() -> None:
    for counter in (seen_stages, outcomes):
        counter.clear()
    for form in get_args(Isolation):
        run_state_machine_as_test(
            type("Lives", (Lives,), {"isolation": form}),
            settings=settings(max_examples=EXAMPLES, stateful_step_count=STEPS, suppress_health_check=[HealthCheck.too_slow]),
        )
    assert set(seen_stages) == set(STAGES), "every stage was reached"
    assert min(outcomes[kind] for kind in ("done", "refused", "refused by a gate")) > 0
