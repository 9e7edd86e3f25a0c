"""The commands that move a seed through its life, for one slot at a time.

Each command checks everything first and then replaces the slot's record and modules in one go, so that it happens whole or
raises and leaves all as it was. Each returns the events that tell what happened.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from enum import IntEnum
from typing import TypeVar

import torch
from torch import nn

from esper.kasmina.alpha import FIRST_CURVE, Ramp
from esper.kasmina.attach.probe import evaluating, untouched
from esper.kasmina.gates import judge
from esper.kasmina.seed_state import SeedState
from esper.kasmina.slot import Slot
from esper.leyline.actions import Curve, Style
from esper.leyline.errors import BlueprintError, ConfigError, GateError, TransitionError, unknown
from esper.leyline.events import AlphaRetargeted, Event, GateChecked, StageChanged
from esper.leyline.reports import Gate, GateConfig, GateVerdict, LifecycleConfig, SeedReport
from esper.leyline.stages import LIVE, Stage, check_transition

Report = Callable[[Slot], SeedReport]
E = TypeVar("E", bound=IntEnum)


def germinate(
    slot: Slot, blueprint: str, *, style: Style, tempo: int, alpha_target: float, stream: int, report: Report, gates: GateConfig
) -> list[Event]:
    """DORMANT to GERMINATED: build the seed from `blueprint`, through G0. `stream` seeds its initial values."""
    check_transition(slot.id, slot.life.stage, Stage.GERMINATED)
    style = _member(Style, style)
    _check_tempo(tempo)
    alpha_target = _alpha(alpha_target)
    count = slot.life.germinations
    seed, gating = slot.build(blueprint, style, _stream(stream, slot.id, count))
    _check_shape(slot, seed, blueprint)
    verdict = judge(Gate.G0, replace(report(slot), initialised=True), gates)
    assert verdict.passed, f"{slot.id}: G0 refused after its checks passed: {verdict}"
    life = slot.life.enter(
        slot.id, Stage.GERMINATED, blueprint=blueprint, style=style, tempo=tempo, alpha_target=alpha_target, age=0, germinations=count + 1
    )
    events = [gate_event(verdict), _stage_event(slot, life.stage, "germinate", blueprint, sum(p.numel() for p in seed.parameters()))]
    slot.install(seed, gating)
    slot.life = life
    slot.settle()
    return events


def advance(slot: Slot, *, report: Report, gates: GateConfig, cause: str = "advance") -> list[Event]:
    """One stage on, through its gate: GERMINATED to TRAINING to BLENDING to HOLDING. Raises GateError with the reasons when refused."""
    steps = {
        Stage.GERMINATED: (Gate.G1, Stage.TRAINING),
        Stage.TRAINING: (Gate.G2, Stage.BLENDING),
        Stage.BLENDING: (Gate.G3, Stage.HOLDING),
    }
    if slot.life.stage not in steps:
        raise TransitionError(f"slot {slot.id!r} is {slot.life.stage.name}; only GERMINATED, TRAINING and BLENDING can advance")
    if slot.life.pruning:
        raise TransitionError(f"slot {slot.id!r} is being ramped down to be pruned; it cannot advance")
    gate, stage = steps[slot.life.stage]
    verdict = require(judge(gate, report(slot), gates))
    life = slot.life.enter(slot.id, stage)
    if stage is Stage.BLENDING:
        life = replace(life, ramp=Ramp(start=0.0, target=life.alpha_target, epochs=life.tempo, curve=FIRST_CURVE[life.style]))
    return [gate_event(verdict), _enter(slot, life, cause)]


def set_alpha_target(slot: Slot, target: float, *, speed: int, curve: Curve, style: Style | None, stream: int) -> list[Event]:
    """Send alpha of a BLENDING or HOLDING seed to a new target, at once (speed 0) or in `speed` epochs; optionally in another style."""
    if slot.life.stage not in (Stage.BLENDING, Stage.HOLDING):
        raise TransitionError(f"slot {slot.id!r} is {slot.life.stage.name}; only BLENDING and HOLDING have an alpha to retarget")
    if slot.life.ramp_left > 0:
        raise TransitionError(f"slot {slot.id!r}: alpha is still on its way to {slot.life.alpha_target}, {slot.life.ramp_left} epochs left")
    target = _alpha(target)
    _check_speed(speed)
    style = slot.life.style if style is None else _member(Style, style)
    gating = slot.gating if style is Style.GATED else None
    if style is Style.GATED and gating is None:
        gating = slot.build_gating(_stream(stream, slot.id, -slot.life.germinations))
    ramp = Ramp(start=slot.life.alpha, target=target, epochs=speed, curve=_member(Curve, curve))
    life = slot.life
    events: list[Event] = []
    if life.stage is Stage.HOLDING:
        life = life.enter(slot.id, Stage.BLENDING)
        events.append(_stage_event(slot, Stage.BLENDING, "set_alpha_target", life.blueprint, _size(slot)))
    slot.install(slot.seed, gating)
    slot.life = replace(life, ramp=ramp, alpha_target=target, style=style)
    slot.settle()
    return [*events, AlphaRetargeted(slot=slot.id, alpha=ramp.start, target=target, epochs=speed, curve=ramp.curve)]


def prune(slot: Slot, *, speed: int = 0, curve: Curve = Curve.LINEAR, cause: str = "prune") -> list[Event]:
    """Remove a live seed: at once, or by a ramp of alpha down to 0 that ends in PRUNED. A seed without influence goes at once."""
    life = slot.life
    _check_speed(speed)
    curve = _member(Curve, curve)
    if life.stage not in LIVE:
        check_transition(slot.id, life.stage, Stage.PRUNED)
    if speed == 0 or life.alpha == 0.0:
        return [_remove(slot, cause)]
    if life.pruning:
        raise TransitionError(f"slot {slot.id!r} is already being ramped down, {life.ramp_left} epochs left; prune at once with speed 0")
    ramp = Ramp(start=life.alpha, target=0.0, epochs=speed, curve=curve)
    events: list[Event] = []
    if life.stage is Stage.HOLDING:
        life = life.enter(slot.id, Stage.BLENDING)
        events.append(_stage_event(slot, Stage.BLENDING, cause, life.blueprint, _size(slot)))
    slot.life = replace(life, ramp=ramp, alpha_target=0.0, pruning=True)
    slot.settle()
    return [*events, AlphaRetargeted(slot=slot.id, alpha=ramp.start, target=0.0, epochs=speed, curve=ramp.curve)]


def fossilize(slot: Slot, *, report: Report, gates: GateConfig) -> list[Event]:
    """HOLDING to FOSSILIZED, through G5: the seed is part of the network for good."""
    check_transition(slot.id, slot.life.stage, Stage.FOSSILIZED)
    verdict = require(judge(Gate.G5, report(slot), gates))
    life = slot.life.enter(slot.id, Stage.FOSSILIZED)
    return [gate_event(verdict), _enter(slot, life, "fossilize")]


def tick(slot: Slot, *, report: Report, gates: GateConfig, config: LifecycleConfig) -> list[Event]:
    """Begin the next epoch: what moves by itself (alpha, ramps, embargo, reset; with auto_advance G1 and G3), then the counts."""
    events: list[Event] = []
    life = slot.life
    if life.stage is Stage.PRUNED:
        events.append(_enter(slot, life.enter(slot.id, Stage.EMBARGOED), "tick"))
    elif life.stage is Stage.EMBARGOED and life.epochs_in_stage >= config.embargo_epochs:
        events.append(_enter(slot, life.enter(slot.id, Stage.RESETTING), "tick"))
    elif life.stage is Stage.RESETTING and life.epochs_in_stage >= config.reset_epochs:
        check_transition(slot.id, life.stage, Stage.DORMANT)
        events.append(_enter(slot, life.emptied(Stage.DORMANT), "tick"))
    elif life.stage is Stage.GERMINATED and config.auto_advance:
        events += _try_advance(slot, Gate.G1, report, gates)
    elif life.ramp is not None and life.stage is Stage.BLENDING:
        if not life.ramp.done:
            slot.life = replace(life, ramp=life.ramp.step())
            slot.settle()
        if slot.life.ramp_left == 0:
            events += _ramp_ended(slot, report, gates, config)
    _count(slot)
    return events


def require(verdict: GateVerdict) -> GateVerdict:
    """The verdict, or GateError with its reasons."""
    if not verdict.passed:
        raise GateError(f"slot {verdict.slot!r}: {verdict}")
    return verdict


def gate_event(verdict: GateVerdict) -> GateChecked:
    """The verdict as an event."""
    return GateChecked(gate=verdict.gate, slot=verdict.slot, passed=verdict.passed, reasons=verdict.reasons)


def _try_advance(slot: Slot, gate: Gate, report: Report, gates: GateConfig) -> list[Event]:
    verdict = judge(gate, report(slot), gates)
    return advance(slot, report=report, gates=gates, cause="tick") if verdict.passed else [gate_event(verdict)]


def _ramp_ended(slot: Slot, report: Report, gates: GateConfig, config: LifecycleConfig) -> list[Event]:
    if slot.life.pruning:
        return [_remove(slot, "end of ramp")]
    if config.auto_advance and slot.life.alpha_target == 1.0:
        return _try_advance(slot, Gate.G3, report, gates)
    return []


def _count(slot: Slot) -> None:
    """The epoch that begins counts for the stage it is spent in; a slot without a seed has no age."""
    life = slot.life
    if life.stage is Stage.DORMANT:
        return
    slot.life = replace(life, epochs_in_stage=life.epochs_in_stage + 1, age=life.age + 1, contribution_age=life.contribution_age + 1)


def _enter(slot: Slot, life: SeedState, cause: str) -> Event:
    event = _stage_event(slot, life.stage, cause, slot.life.blueprint, _size(slot))
    slot.life = life
    slot.settle()
    return event


def _remove(slot: Slot, cause: str) -> Event:
    life = slot.life.enter(slot.id, Stage.PRUNED, ramp=None, pruning=False, alpha_target=0.0)
    event = _stage_event(slot, life.stage, cause, life.blueprint, _size(slot))
    slot.life = life
    slot.install(None, None)
    slot.meter.reset()
    slot.settle()
    return event


def _stage_event(slot: Slot, after: Stage, cause: str, blueprint: str, parameters: int) -> StageChanged:
    return StageChanged(slot=slot.id, before=slot.life.stage, after=after, cause=cause, blueprint=blueprint, parameters=parameters)


def _size(slot: Slot) -> int:
    return sum(p.numel() for p in slot.seed_parameters())


def _stream(seed: int, slot: str, count: int) -> int:
    """A random stream of its own for each seed, whatever else has used random numbers."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{slot}/{count}".encode()).digest()[:7], "big")


def _check_shape(slot: Slot, seed: nn.Module, blueprint: str) -> None:
    """Run the new seed once on features like those of the probe, leaving its buffers and the random streams as they are."""
    features = torch.zeros(slot.place.example_shape, dtype=slot.alpha.dtype, device=slot.alpha.device)
    try:
        with untouched(seed), evaluating(seed):
            shape = tuple(seed(features).shape)
    except Exception as error:
        where = f"features of shape {tuple(features.shape)} at slot {slot.id!r}"
        raise BlueprintError(f"blueprint {blueprint!r} fails on {where}: {type(error).__name__}: {error}") from error
    if shape != tuple(features.shape):
        raise BlueprintError(f"blueprint {blueprint!r} turns features of shape {tuple(features.shape)} into {shape} at slot {slot.id!r}")


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


def _check_tempo(tempo: int) -> None:
    if isinstance(tempo, bool) or not isinstance(tempo, int) or tempo < 1:
        raise ConfigError(f"a tempo is a whole number of epochs, at least 1, found {tempo!r}")


def _check_speed(speed: int) -> None:
    if isinstance(speed, bool) or not isinstance(speed, int) or speed < 0:
        raise ConfigError(f"a speed is a whole number of epochs, 0 for at once, found {speed!r}")
