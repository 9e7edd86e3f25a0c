"""The commands that move a seed through its life, for one slot at a time.

Each command checks everything first and then replaces the slot's record and modules in one go, so that it happens whole or
raises and leaves all as it was. Each returns the events that tell what happened.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from enum import IntEnum
from types import NoneType
from typing import Any, TypeVar

import torch
from torch import nn

from esper.kasmina.alpha import Ramp
from esper.kasmina.attach.running import evaluating, untouched
from esper.kasmina.blending import Gating
from esper.kasmina.blueprints.registry import get
from esper.kasmina.gates import NEXT_GATE, figures, judge
from esper.kasmina.seed_state import SeedState
from esper.kasmina.slot import Slot, random_stream
from esper.leyline.actions import Curve, Style
from esper.leyline.errors import BlueprintError, ConfigError, GateError, TransitionError, in_a_line, unknown
from esper.leyline.events import AlphaRetargeted, Event, GateChecked, StageChanged
from esper.leyline.reports import GATE_BEFORE, Gate, GateConfig, GateVerdict, LifecycleConfig, SeedReport
from esper.leyline.stages import BLENDED, Stage, check_transition

Report = Callable[[str], SeedReport]
E = TypeVar("E", bound=IntEnum)


def in_words(command: Callable[..., Any], slot: str, args: tuple[Any, ...], settings: Mapping[str, Any]) -> str:
    """A command as it was given, with those of its settings that are plain values: germinate('1', 'conv_small', tempo=5)."""
    told = {name: value for name, value in settings.items() if isinstance(value, (int, float, str, NoneType))}
    plain = [f"{name}={getattr(value, 'name', value)}" for name, value in told.items()]
    return f"{command.__name__}({', '.join([repr(slot), *map(repr, args), *plain])})"


def germinate(slot: Slot, blueprint: str, *, style: Style, tempo: int, alpha_target: float, stream: int) -> list[Event]:
    """DORMANT to GERMINATED, which is gate G0: build the seed from `blueprint` and try it. `stream` seeds its initial values."""
    check_transition(slot.id, slot.state.stage, Stage.GERMINATED)
    style = _member(Style, style)
    _check_epochs("tempo", tempo, 1)
    alpha_target = _alpha(alpha_target)
    count = slot.state.germinations
    modules = slot.build(blueprint, style, _stream(stream, slot.id, count))
    _check_shape(slot, modules[0], blueprint)
    choices = {"blueprint": blueprint, "style": style, "tempo": tempo, "alpha_target": alpha_target}
    state = slot.state.enter(slot.id, Stage.GERMINATED, age=0, germinations=count + 1, **choices)
    size = sum(p.numel() for p in modules[0].parameters())
    event = replace(_stage_event(slot, state.stage, "germinate"), blueprint=blueprint, parameters=size)
    slot.become(state, modules)
    return [GateChecked(gate=Gate.G0, slot=slot.id, passed=True, reasons=(), figures={}), event]


def plant(slot: Slot, blueprint: str, *, style: Style, stream: int) -> list[Event]:
    """DORMANT to FOSSILIZED at once: a seed that is part of the network from here on, without isolation, blending or gates.

    For networks that are built in their final shape and trained as a whole, to compare growth with. No decision leads here, and the table
    of transitions, which is about seeds that grow, does not know this step. The seed has the initial values that the slot's next
    germination would give it.
    """
    check_transition(slot.id, slot.state.stage, Stage.GERMINATED)  # as for any new seed, the slot has to be empty
    style = _member(Style, style)
    count = slot.state.germinations
    modules = slot.build(blueprint, style, _stream(stream, slot.id, count))
    _check_shape(slot, modules[0], blueprint)
    whole = Ramp(start=1.0, target=1.0, epochs=0)
    choices = {"blueprint": blueprint, "style": style, "alpha_target": 1.0, "ramp": whole, "age": 0, "germinations": count + 1}
    state = slot.state.changed(stage=Stage.FOSSILIZED, previous_stage=slot.state.stage, epochs_in_stage=0, **choices)
    size = sum(p.numel() for module in modules if module is not None for p in module.parameters())
    event = replace(_stage_event(slot, state.stage, "plant"), blueprint=blueprint, parameters=size)
    slot.become(state, modules)
    return [event]


def advance(slot: Slot, *, report: Report, gates: GateConfig, cause: str = "advance") -> list[Event]:
    """One stage on, through its gate: GERMINATED to TRAINING to BLENDING to HOLDING. Raises GateError with the reasons when refused."""
    state = slot.state
    if state.stage not in (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING):
        raise TransitionError(f"slot {slot.id!r} is {state.stage.name}; only GERMINATED, TRAINING and BLENDING can advance")
    if state.pruning:
        raise TransitionError(f"slot {slot.id!r} is being ramped down to be pruned; it cannot advance")
    gate = NEXT_GATE[state.stage]
    seed = report(slot.id)
    verdict = require(judge(gate, seed, gates))
    state = state.enter(slot.id, GATE_BEFORE[gate])
    if state.stage is Stage.BLENDING:
        curve = Curve.SIGMOID if state.style is Style.SIGMOID_ADD else Curve.LINEAR
        state = state.changed(ramp=Ramp(start=0.0, target=state.alpha_target, epochs=state.tempo, curve=curve))
    return [gate_event(verdict, seed), _enter(slot, state, cause)]


def set_alpha_target(slot: Slot, target: float, *, speed: int, curve: Curve, style: Style | None, stream: int) -> list[Event]:
    """Send alpha of a BLENDING or HOLDING seed to a new target, at once (speed 0) or in `speed` epochs; optionally in another style."""
    state = slot.state
    if state.stage not in (Stage.BLENDING, Stage.HOLDING):
        raise TransitionError(f"slot {slot.id!r} is {state.stage.name}; only BLENDING and HOLDING have an alpha to retarget")
    if state.ramp_left > 0:
        raise TransitionError(f"slot {slot.id!r}: alpha is still on its way to {state.alpha_target}, {state.ramp_left} epochs left")
    target = _alpha(target)
    _check_epochs("speed", speed, 0)
    style = state.style if style is None else _member(Style, style)
    ramp = Ramp(start=state.alpha, target=target, epochs=speed, curve=_member(Curve, curve))
    gating = slot.gating if style is Style.GATED else None
    if style is Style.GATED and gating is None:
        with random_stream(_stream(stream, slot.id, -state.germinations)):
            gating = slot.build_gating()
    return _send_alpha(slot, ramp, "set_alpha_target", gating, style=style)


def prune(slot: Slot, *, speed: int = 0, curve: Curve = Curve.LINEAR, cause: str = "prune") -> list[Event]:
    """Remove a live seed: at once, or by a ramp of alpha down to 0 that ends in PRUNED. A seed without influence goes at once."""
    state = slot.state
    _check_epochs("speed", speed, 0)
    curve = _member(Curve, curve)
    check_transition(slot.id, state.stage, Stage.PRUNED)
    if speed == 0 or state.alpha == 0.0:
        return [_remove(slot, cause)]
    if state.pruning:
        raise TransitionError(f"slot {slot.id!r} is already being ramped down, {state.ramp_left} epochs left; prune at once with speed 0")
    return _send_alpha(slot, Ramp(start=state.alpha, target=0.0, epochs=speed, curve=curve), cause, slot.gating, pruning=True)


def fossilize(slot: Slot, *, report: Report, gates: GateConfig) -> list[Event]:
    """HOLDING to FOSSILIZED, through G5: the seed is part of the network for good."""
    check_transition(slot.id, slot.state.stage, Stage.FOSSILIZED)
    seed = report(slot.id)
    verdict = require(judge(Gate.G5, seed, gates))
    state = slot.state.enter(slot.id, Stage.FOSSILIZED)
    return [gate_event(verdict, seed), _enter(slot, state, "fossilize")]


def tick(slot: Slot, *, gradients: Mapping[str, Any], report: Report, gates: GateConfig, config: LifecycleConfig) -> list[Event]:
    """Begin the next epoch: what moves by itself (alpha, ramps, embargo, reset; with auto_advance G1 and G3), then the counts.

    gradients: what the epoch told of them, for the record.
    """
    events: list[Event] = []
    state = slot.state
    if state.stage is Stage.PRUNED:
        events.append(_enter(slot, state.enter(slot.id, Stage.EMBARGOED), "tick"))
    elif state.stage is Stage.EMBARGOED and state.epochs_in_stage >= config.embargo_epochs:
        events.append(_enter(slot, state.enter(slot.id, Stage.RESETTING), "tick"))
    elif state.stage is Stage.RESETTING and state.epochs_in_stage >= config.reset_epochs:
        # An empty slot remembers only how many seeds there have been.
        events.append(_enter(slot, SeedState(previous_stage=state.stage, germinations=state.germinations), "tick"))
    elif state.stage is Stage.GERMINATED and config.auto_advance:
        events += _try_advance(slot, report, gates)
    elif state.ramp is not None and state.stage is Stage.BLENDING:
        if not state.ramp.done:
            slot.become(state.changed(ramp=state.ramp.step()))
        if slot.state.ramp_left == 0 and state.pruning:
            events.append(_remove(slot, "end of ramp"))
        elif slot.state.ramp_left == 0 and config.auto_advance and state.alpha_target == 1.0:
            events += _try_advance(slot, report, gates)
    _count(slot, gradients)
    return events


def record(slot: Slot, contribution: float | None, trial_contribution: float | None, error: float | None, loss: float | None) -> None:
    """What was measured of the seed; see `Growable.record`."""
    state = slot.state
    loss = loss if loss is not None and math.isfinite(loss) else None
    if contribution is not None:
        if state.stage not in BLENDED:
            raise TransitionError(f"slot {slot.id!r} is {state.stage.name}; a contribution needs a seed that is blended in")
        state = state.changed(contribution=float(contribution), contribution_error=error, contribution_loss=loss, contribution_age=0)
    if trial_contribution is not None:
        if state.stage is not Stage.TRAINING:
            raise TransitionError(f"slot {slot.id!r} is {state.stage.name}; a trial is for a seed in TRAINING")
        state = state.changed(trial_contribution=float(trial_contribution), trial_error=error, trial_loss=loss)
    slot.state = state


def require(verdict: GateVerdict) -> GateVerdict:
    """The verdict, or GateError with its reasons."""
    if not verdict.passed:
        raise GateError(f"slot {verdict.slot!r}: {verdict}")
    return verdict


def gate_event(verdict: GateVerdict, seed: SeedReport) -> GateChecked:
    """The verdict on a seed as an event."""
    gate = verdict.gate
    return GateChecked(gate=gate, slot=verdict.slot, passed=verdict.passed, reasons=verdict.reasons, figures=figures(gate, seed))


def _try_advance(slot: Slot, report: Report, gates: GateConfig) -> list[Event]:
    seed = report(slot.id)
    verdict = judge(NEXT_GATE[slot.state.stage], seed, gates)
    return advance(slot, report=report, gates=gates, cause="tick") if verdict.passed else [gate_event(verdict, seed)]


def _count(slot: Slot, gradients: Mapping[str, Any]) -> None:
    """The epoch that begins counts for the stage it is spent in; a slot without a seed has no age."""
    state = slot.state
    if state.stage is not Stage.DORMANT:
        age, measured = state.age + 1, state.contribution_age + 1
        slot.state = state.changed(epochs_in_stage=state.epochs_in_stage + 1, age=age, contribution_age=measured, **gradients)


def _enter(slot: Slot, state: SeedState, cause: str) -> Event:
    event = _stage_event(slot, state.stage, cause)
    slot.become(state)
    return event


def _remove(slot: Slot, cause: str) -> Event:
    event = _stage_event(slot, Stage.PRUNED, cause)
    slot.become(slot.state.enter(slot.id, Stage.PRUNED, ramp=None, pruning=False, alpha_target=0.0), (None, None))
    slot.meter.reset()
    return event


def _send_alpha(slot: Slot, ramp: Ramp, cause: str, gating: Gating | None, **changes: Any) -> list[Event]:
    """Set alpha on its way, for which a HOLDING seed goes back to BLENDING."""
    events: list[Event] = [] if slot.state.stage is Stage.BLENDING else [_enter(slot, slot.state.enter(slot.id, Stage.BLENDING), cause)]
    slot.become(slot.state.changed(ramp=ramp, alpha_target=ramp.target, **changes), (slot.seed, gating))
    return [*events, AlphaRetargeted(slot=slot.id, alpha=ramp.start, target=ramp.target, epochs=ramp.epochs, curve=ramp.curve)]


def _stage_event(slot: Slot, after: Stage, cause: str) -> StageChanged:
    """The step from the present stage to another, told before it is taken."""
    state = slot.state
    return StageChanged(slot=slot.id, before=state.stage, after=after, cause=cause, blueprint=state.blueprint, parameters=slot.size())


def _stream(seed: int, slot: str, count: int) -> int:
    """A random stream of its own for each seed, whatever else has used random numbers."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{slot}/{count}".encode()).digest()[:7], "big")


_TRIED: set[Hashable] = set()
"""Blueprints whose seed has run on features of some shape."""


def _check_shape(slot: Slot, seed: nn.Module, blueprint: str) -> None:
    """Run the first seed of a blueprint for such features on some like those of the probe, leaving its buffers and the random streams as
    they are."""
    tried = (get(slot.place.shape.topology, blueprint), slot.place.shape, slot.place.seed_shape, slot.alpha.dtype, slot.alpha.device)
    if tried in _TRIED:
        return
    features = torch.zeros(slot.place.seed_shape, dtype=slot.alpha.dtype, device=slot.alpha.device)
    try:
        with untouched(seed), evaluating(seed):
            shape = tuple(seed(features).shape)
    except Exception as error:
        where = f"features of shape {tuple(features.shape)} at slot {slot.id!r}"
        raise BlueprintError(f"blueprint {blueprint!r} fails on {where}: {in_a_line(error)}") from error
    if shape != tuple(features.shape):
        raise BlueprintError(f"blueprint {blueprint!r} turns features of shape {tuple(features.shape)} into {shape} at slot {slot.id!r}")
    _TRIED.add(tried)


def _member(kind: type[E], value: object) -> E:
    """A style or curve, given as such or by its name."""
    if isinstance(value, kind):
        return value
    if isinstance(value, str) and value.upper() in kind.__members__:
        return kind[value.upper()]
    raise unknown(kind.__name__.lower(), str(value), kind.__members__)


def _alpha(target: float) -> float:
    """A target of alpha as a plain float, so that it is saved and loaded as what it is."""
    if isinstance(target, bool) or not isinstance(target, (int, float)) or not 0.0 < target <= 1.0:
        raise ConfigError(f"an alpha target is a number above 0 and at most 1, found {target!r}")
    return float(target)


def _check_epochs(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"a {name} is a whole number of epochs, {'at least 1' if least else '0 for at once'}, found {value!r}")
