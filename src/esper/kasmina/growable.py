"""A model that can grow: any nn.Module with slots attached to some of its modules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor, nn, optim
from torch.utils import _pytree as pytree

from esper.kasmina import commands, counterfactuals, shadow
from esper.kasmina.attach.proposal import Proposal, Proposals
from esper.kasmina.attach.running import check_parameters
from esper.kasmina.attach.survey import probe
from esper.kasmina.attach.variation import Example
from esper.kasmina.facade import class_for, rebuild, shown
from esper.kasmina.fast_path import FastPath
from esper.kasmina.gates import NEXT_GATE, judge
from esper.kasmina.gradients import SUMS, GradientMeter, Scale, gradient_stats
from esper.kasmina.grafting import hook_first
from esper.kasmina.harvest import harvest
from esper.kasmina.norms import (
    HARVEST_SAMPLES,
    REFERENCE_SAMPLES,
    Norm,
    check_loader,
    is_tracked,
    recalibrated,
    reference_batches,
    tracked_norms,
)
from esper.kasmina.optimizer_groups import SLOT_KEY, Follower, innermost
from esper.kasmina.ranks import Ranks, alike
from esper.kasmina.slot import FIGURES, FRESH, Form, Place, Slot, Slots
from esper.kasmina.state import check_state
from esper.kasmina.trial import unharvestable
from esper.leyline.actions import Curve, Decision, Op, Style
from esper.leyline.errors import ConfigError, GateError, SlotError, TransitionError, unknown
from esper.leyline.events import Event
from esper.leyline.reports import GateConfig, GateVerdict, GradientStats, Isolation, LifecycleConfig, SeedReport, Topology
from esper.leyline.stages import BLENDED, LIVE, OCCUPIED, Stage

Structure = tuple[tuple[Form, Style, str] | None, ...]
"""What tells one computation of the network from another: for each slot its form, its style, and the seed's blueprint; None where
nothing is in the forward pass."""


class Growable(nn.Module):
    """Wraps a model so that seeds can grow at its slots. The model itself is not changed: slots are forward hooks.

    model: any nn.Module; it stays reachable, under its own state-dict names, as `.host`.
    slots: module paths, or what `esper.find_slots(model, example)` proposes, or a mapping from ids of your choice to either.
    example: an input for one probe forward: a tensor, a tuple of positional arguments, or a dict of keyword arguments.
    isolation: how a seed in TRAINING is kept from touching the host; see `Isolation`.
    gates, lifecycle: what the gates ask, and how long stages last.
    causal: whether token features may only look back (True is safe for language models).
    checkpoint: recompute the activations inside seeds in the backward pass: less memory, more time.
    topology: states the features' layout at a path where shapes alone do not tell.
    seed: the random stream that new seeds are initialised from.
    places: what was found at these paths of a model of the same architecture on the same device; by default this one is probed.

    One epoch: train, measure (`record`), decide and act, then `tick()`.

    It looks like its host: its class is named after the host's and has its forward signature, and attributes that it does not have itself
    (`config`, `generate`) are the host's.
    """

    made_from: ClassVar[tuple[type[Growable], type[nn.Module]] | None] = None
    """The two classes that the class of an instance was made from: Growable and that of its host."""

    def __init__(
        self,
        model: nn.Module,
        slots: Sequence[str | Proposal] | Mapping[str, str | Proposal],
        example: Example,
        *,
        isolation: Isolation = "boost",
        gates: GateConfig | None = None,
        lifecycle: LifecycleConfig | None = None,
        causal: bool = True,
        checkpoint: bool = False,
        topology: Mapping[str, Topology | str] | None = None,
        seed: int = 0,
        places: Mapping[str, Place] | None = None,
    ) -> None:
        super().__init__()
        if isolation not in get_args(Isolation):
            raise unknown("isolation", str(isolation), get_args(Isolation))
        if isinstance(slots, Proposals) and not slots:
            raise SlotError(slots.why_none())
        chosen = slots if isinstance(slots, Mapping) else {_path(place): place for place in slots}
        named = {id: _path(place) for id, place in chosen.items()}
        if isinstance(slots, str) or not named or len(named) != len(slots):
            raise SlotError(f"slots is a list of distinct module paths, or a mapping from ids to paths, found {slots!r}")
        for id in named:
            if not isinstance(id, str) or not id or "/" in id:
                raise SlotError(f"a slot's id is a string, not empty and without '/', found {id!r}")
        if places is None:
            places = probe(model, example, named.values(), causal=causal, topology=topology or {})
            for path, why in unharvestable(model, example, list(places.values())).items():
                raise SlotError(f"no slot can be attached to {path!r}, as nothing that grows there could be harvested: {why}")
        if len(set(named.values())) != len(named):
            raise SlotError("two slots have the same path; a module can carry one slot")
        self.__class__ = class_for(type(self) if self.made_from is None else self.made_from[0], type(model))
        self.host = model
        self.gates = gates or GateConfig()
        self.lifecycle = lifecycle or LifecycleConfig()
        self.growth_seed = seed
        self.example = example
        self.journal: list[Event] = []
        """What has happened to the seeds, oldest first; `drain_journal()` takes it."""
        self.host_meter = GradientMeter()
        self.slots = Slots(Slot(id, places[path], isolation, checkpoint) for id, path in named.items())
        """The slots by id, in the order given."""
        self.host_meter.to(places[next(iter(named.values()))].device)
        self._handles = [hook_first(model.get_submodule(slot.place.path), slot.hook) for slot in self.slots.values()]
        self._fast_path = FastPath(model, self.slots.values(), self._handles)
        self._follower: Follower | None = None
        self._ranks: Ranks | None = None
        self._aside: list[tuple[nn.Parameter, Tensor]] = []
        """Gradients of seeds that are out of sight until the optimiser's step."""
        self._entries: dict[Structure, Callable[..., Any]] = {}
        self._host_size = sum(p.numel() for p in model.parameters())
        self._figures: list[float] | None = None
        """Those of `figures()` while they are known; see `cache_figures`."""
        self._measured = False
        self._norms = tracked_norms(model)
        self._frozen: list[Norm] | None = None
        """Of the host's norms, those that were in eval mode at the last optimiser step; None before the first."""
        self.reference: Iterable[Any] | None = None
        """Training batches that batch norms are made anew from when the model is harvested; a Gardener leaves its own here."""
        # Not self.train(): a host may keep some of its modules, batch norms say, in another mode than the rest.
        self.training = model.training
        self.slots.train(model.training)
        self.register_load_state_dict_post_hook(_loaded)

    # Looking like the host

    def __getattr__(self, name: str) -> Any:
        """Submodules, parameters and buffers, as every module has them; then whatever the host has.

        Special methods are not the host's: a copy of its own making, say, would be a copy of the host alone.
        """
        state = self.__dict__
        if "_modules" in state:  # not yet while an instance is being made
            if name in state["_modules"]:
                return state["_modules"][name]
            for kind in ("_parameters", "_buffers"):
                if name in state[kind]:
                    return state[kind][name]
            host = state["_modules"].get("host")
            if host is not None and not (name.startswith("__") and name.endswith("__")):
                try:
                    return getattr(host, name)
                except AttributeError as error:
                    its = type(host).__name__
                    raise AttributeError(f"{type(self).__name__} has no attribute {name!r}, and neither has its host, {its}") from error
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self.host)})

    def __repr__(self) -> str:
        return shown(self)

    # Running

    @torch.compiler.disable(recursive=False)
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The host's forward pass, with whatever grows in it."""
        if self._fast_path:
            with self._fast_path.kept():
                output = self._entry()(self.host, args, kwargs)
        else:
            output = self._entry()(self.host, args, kwargs)
        if self._ranks is not None:
            self._watch(output)
        return output

    @torch.compiler.disable
    def _watch(self, output: Any) -> None:
        if self.ranks is not None:
            self.ranks.watch(output, self.slots)

    @torch.compiler.disable
    def _entry(self) -> Callable[..., Any]:
        """The function through which the host is entered, one for each structure of the network.

        torch.compile keeps what it compiled with a function's code object and gives up after eight versions of it. A code
        object for each structure starts that count anew, so growth never meets the limit and no stale graph is ever run.
        """
        structure = self._structure()
        if structure not in self._entries:
            self._entries[structure] = FunctionType(_enter_host.__code__.replace(), globals(), "forward")
        return self._entries[structure]

    def _structure(self) -> Structure:
        absent = Form.ABSENT
        return tuple(None if slot.form is absent else (slot.form, slot.state.style, slot.state.blueprint) for slot in self.slots.values())

    @property
    def slot_ids(self) -> tuple[str, ...]:
        """Ids of the slots, in the order given."""
        return tuple(self.slots)

    def at(self, *stages: Stage) -> list[str]:
        """Ids of the slots that are at one of these stages, in order."""
        return [slot.id for slot in self.slots.values() if slot.state.stage in stages]

    @property
    def ranks(self) -> Ranks | None:
        """The processes that train this model together, this one among them; None unless DistributedDataParallel has wrapped the model, or
        a module that holds it."""
        return self._ranks if self._ranks is not None and self._ranks.are_there else None

    @ranks.setter
    def ranks(self, ranks: Ranks) -> None:
        self._ranks = ranks

    @property
    def is_static(self) -> bool:
        """Whether all seeds that are here, and there are some, were planted: the network was built so, and nothing grows in it now."""
        found = [slot.state for slot in self.slots.values() if slot.state.stage in OCCUPIED]
        return bool(found) and all(state.planted for state in found)

    @property
    def learns_whole(self) -> bool:
        """Whether no parameter of the host is frozen."""
        return all(p.requires_grad for p in self.host.parameters())

    def parameter_count(self) -> int:
        """Parameters of the host and of every seed in it now."""
        return sum(p.numel() for p in self.parameters())

    # Commands

    def germinate(
        self, slot: str, blueprint: str, *, style: Style | str = Style.LINEAR_ADD, tempo: int = 5, alpha_target: float = 1.0
    ) -> None:
        """Create a seed in an empty slot. See `esper blueprints` for what can grow where."""
        check_parameters(self.host)  # again, as it may have been sharded since
        choices = {"style": style, "tempo": tempo, "alpha_target": alpha_target}
        self._command(slot, commands.germinate, blueprint, **choices, stream=self.growth_seed)

    def plant(self, slot: str, blueprint: str, *, style: Style | str = Style.LINEAR_ADD) -> None:
        """Make a seed part of the network at once, for good: for a network that is trained in its final shape from the start."""
        check_parameters(self.host)
        self._command(slot, commands.plant, blueprint, style=style, stream=self.growth_seed)

    def advance(self, slot: str) -> None:
        """Move a seed one stage on, if its gate agrees: GERMINATED to TRAINING to BLENDING to HOLDING."""
        self._command(slot, commands.advance, report=self.report, gates=self.gates)

    def set_alpha_target(
        self, slot: str, target: float, *, speed: int = 3, curve: Curve | str = Curve.LINEAR, style: Style | str | None = None
    ) -> None:
        """Send alpha of a BLENDING or HOLDING seed to `target` within `speed` epochs; `style` also changes how it blends."""
        self._command(slot, commands.set_alpha_target, target, speed=speed, curve=curve, style=style, stream=self.growth_seed)

    def prune(self, slot: str, *, speed: int = 0, curve: Curve | str = Curve.LINEAR, cause: str = "prune") -> None:
        """Remove a live seed, at once or by ramping its alpha down within `speed` epochs."""
        self._command(slot, commands.prune, speed=speed, curve=curve, cause=cause)

    def fossilize(self, slot: str) -> None:
        """Keep a HOLDING seed for good, if gate G5 agrees."""
        self._command(slot, commands.fossilize, report=self.report, gates=self.gates)

    def act(self, decision: Decision) -> None:
        """Carry out a controller's decision."""
        slot, target = decision.slot, decision.alpha_target
        match decision.op:
            case Op.WAIT:
                return
            case Op.GERMINATE:
                self.germinate(slot, decision.blueprint, style=decision.style, tempo=decision.tempo, alpha_target=target)
            case Op.ADVANCE:
                self.advance(slot)
            case Op.FOSSILIZE:
                self.fossilize(slot)
            case Op.PRUNE:
                self.prune(slot, speed=decision.alpha_speed, curve=decision.alpha_curve)
            case Op.SET_ALPHA_TARGET:
                self.set_alpha_target(slot, target, speed=decision.alpha_speed, curve=decision.alpha_curve, style=decision.style)

    def tick(self) -> None:
        """End the epoch: alpha moves, ramps and embargoes run on, auto_advance takes G1 and G3, gradient statistics start anew.

        Figures that are not known are read here, in one go. Under DistributedDataParallel every rank ticks, and then they are compared.
        """
        with alike(self.ranks, "tick()"):
            self._tick()
        if self.ranks is not None:
            self.ranks.verify(self, self.slots, "at the end of an epoch")

    def _tick(self) -> None:
        host, rows = self._rows()
        self._figures = None

        def report(id: str) -> SeedReport:
            return self.slots[id].report(rows[id], host, self._host_size)

        self.host_meter.reset()
        for id, slot in self.slots.items():
            gradients = slot.gradients(rows[id], host, self._host_size)
            if slot.state.stage in OCCUPIED:
                slot.meter.reset()
            self._settled(slot, commands.tick(slot, gradients=gradients, report=report, gates=self.gates, config=self.lifecycle))

    def _command(self, id: str, command: Callable[..., list[Event]], *args: Any, **kwargs: Any) -> None:
        with alike(self.ranks, commands.in_words(command, id, args, kwargs)) as outcome:
            outcome += self._carry_out(id, command, *args, **kwargs)

    def _carry_out(self, id: str, command: Callable[..., list[Event]], *args: Any, **kwargs: Any) -> list[Event]:
        slot = self.slots[id]
        seed = slot.seed
        try:
            events = command(slot, *args, **kwargs)
        except GateError:
            report = self.report(id)
            self.journal.append(commands.gate_event(self.verdict(id, report), report))
            raise
        if self._figures is not None and slot.seed is not seed:
            start = SUMS + FIGURES * self.slot_ids.index(id)
            self._figures[start : start + FIGURES] = FRESH
        self._settled(slot, events)
        return events

    def _settled(self, slot: Slot, events: list[Event]) -> None:
        if events:
            if self._structure() not in self._entries:
                self._entries.clear()  # what was compiled for the structure before is not needed again
            if self._follower is not None:
                self._follower.sync(slot)
        self.journal.extend(events)

    def grow_like(self, other: Growable) -> None:
        """Grow to where another model of the same kind is now. What is here already keeps its values; what is new is copied."""
        for id, slot in self.slots.items():
            slot.grow_like(other.slots[id])
        _loaded(self, None)

    # What is known

    def report(self, slot: str) -> SeedReport:
        """All that is known about the seed at one slot."""
        found = self.slots[slot]
        host, rows = self._rows()
        return found.report(rows[found.id], host, self._host_size)

    def figures(self) -> Tensor:
        """All that reports need from the device, in one tensor of shape (SUMS + FIGURES * slots,): sums of the host's gradients, then for
        each slot those of its seed's and whether the seed is finite. For an engine that reads those of many models at once."""
        sums = self.host_meter.settle()
        return torch.cat((sums, *(slot.figures().to(sums.device) for slot in self.slots.values())))

    def cache_figures(self, figures: Sequence[float] | None = None) -> None:
        """From here to the next step or tick, reports, gates and the tick itself read nothing from the device.

        For whoever trains the model, and knows that nothing else changes the parameters of a seed in between; a seed that comes or goes is
        taken care of. figures: those of `figures()`, if they have been read since the last step; by default they are read here.
        """
        self._figures = self.figures().tolist() if figures is None else list(figures)

    def reports(self) -> tuple[SeedReport, ...]:
        """One report for each slot, in order. Figures that are not known are read, which is the only wait for the device."""
        host, rows = self._rows()
        return tuple(slot.report(rows[slot.id], host, self._host_size) for slot in self.slots.values())

    def _rows(self) -> tuple[GradientStats | None, dict[str, list[float]]]:
        """The host's gradients in the present epoch, and the figures of each slot."""
        figures = self.figures().tolist() if self._figures is None else self._figures
        # (SUMS + FIGURES * slots,) is the host's sums, then a row for each slot.
        starts = range(SUMS, len(figures), FIGURES)
        return gradient_stats(figures[:SUMS]), {id: figures[start : start + FIGURES] for id, start in zip(self.slots, starts, strict=True)}

    def finite(self, slot: str) -> bool:
        """Whether every parameter of the seed at one slot is finite."""
        return bool(self._rows()[1][slot][SUMS])

    def host_gradients(self) -> GradientStats | None:
        """Gradients of the host in the present epoch; None before its first step."""
        return self.host_meter.read() if self._figures is None else gradient_stats(self._figures[:SUMS])

    def verdict(self, slot: str, report: SeedReport | None = None) -> GateVerdict:
        """What the next gate on the way of this slot's seed would say now. Changes nothing. report: the slot's, if it is known already."""
        report = self.report(slot) if report is None else report
        if report.stage not in NEXT_GATE:
            raise TransitionError(f"slot {slot!r} is {report.stage.name}; no gate lies ahead of it")
        return judge(NEXT_GATE[report.stage], report, self.gates)

    def record(
        self,
        slot: str,
        *,
        contribution: float | None = None,
        trial_contribution: float | None = None,
        error: float | None = None,
        loss: float | None = None,
    ) -> None:
        """Tell the body what was measured on validation data, in points: with the seed minus without it.

        What else is known of it: its standard error in points, and the same in nats of loss, without the seed minus with it.
        """
        commands.record(self.slots[slot], contribution, trial_contribution, error, loss)

    def drain_journal(self) -> list[Event]:
        """Take what has happened since the last call."""
        events, self.journal = self.journal, []
        return events

    # Gradients and optimisers

    def follow(self, optimizer: optim.Optimizer, *, share_groups: bool = False) -> None:
        """Let an optimiser follow the growth: a parameter group for each slot is filled and emptied as seeds come and go.

        Call it before a learning-rate scheduler is built, or build the optimiser from `parameter_groups()`. One optimiser steps the
        seeds: a later one takes them over. For seeds with an optimiser of their own, build it from their groups and let that one follow.
        share_groups: a seed whose slot has no group of its own joins the group of its neighbours. No scheduler notices, so this may be
        called when there is one already.
        """
        optimizer = innermost(optimizer)
        if self._follower is not None and self._follower.optimizer is optimizer:
            return
        before, self._follower = self._follower, Follower(optimizer, self.host, self.slots, self._before_step, share_groups)
        if before is not None:
            before.leave()

    def unfollow(self) -> None:
        """Take the seeds out of the optimiser that follows; nobody steps them from here on."""
        if self._follower is not None:
            self._follower.leave()
            self._follower = None

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Groups to build an optimiser from: the host's, and one for each slot, empty while it has no seed."""
        seeds = [{"params": slot.seed_parameters(), SLOT_KEY: slot.id} for slot in self.slots.values()]
        return [{"params": [p for p in self.host.parameters() if p.requires_grad]}, *seeds]

    def measure_gradients(self) -> None:
        """Add the present gradients to the statistics. An optimiser that follows does it at each step while a seed is alive;
        call it yourself, after backward, to measure before you clip. Never waits for the device."""
        self._each_norm()

    def clip_gradients(self, max_norm: float) -> None:
        """Clip the host's gradient and each seed's apart, so that no seed scales another's step; measures them on the way."""
        for parameters, norm in self._each_norm():
            nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)

    def set_seeds_aside(self) -> None:
        """From here to the step of the optimiser that follows, the seeds' gradients are out of sight: whoever clips all parameters together
        does not let a seed scale the host's step."""
        seeds = [p for slot in self.slots.values() for p in slot.seed_parameters()]
        self._aside = [(p, p.grad) for p in seeds if p.grad is not None]
        for parameter, _ in self._aside:
            parameter.grad = None

    def _each_norm(self, scale: Scale | None = None) -> list[tuple[list[nn.Parameter], Tensor]]:
        self._measured = True
        if self._figures is not None:
            self._figures = None
        own = list(self.host.parameters())
        host = self.host_meter.add(own, scale) if own else None
        norms = [(own, host)]
        for slot in self.slots.values():
            parameters = slot.learning_parameters() if slot.state.stage in OCCUPIED else []
            if parameters:
                norms.append((parameters, slot.meter.add(parameters, scale)))
        return [(parameters, norm) for parameters, norm in norms if norm is not None]

    def _before_step(self, scale: Scale | None) -> None:
        for parameter, gradient in self._aside:
            parameter.grad = gradient
        self._aside = []
        if self.ranks is not None:
            self.ranks.check_reduced(self.slots)
        self._frozen = [norm for norm in self._norms if not norm.training]
        self._figures = None
        if not self._measured and any(slot.state.stage in LIVE for slot in self.slots.values()):
            self._each_norm(scale)
        self._measured = False

    def shadow_backward(self, closure: Callable[[], Tensor]) -> Tensor | None:
        """Train the seeds in TRAINING in a pass of their own: `closure` runs this model and returns the loss.

        The loss feels each of these seeds at its target alpha; only they get gradients, added to their `.grad`. Buffers and random streams
        are left as they were. Under DistributedDataParallel `closure` runs this model, not the wrapper, and the gradients are reduced over
        the ranks. None when no seed is in TRAINING.
        """
        return shadow.backward(self.host, self.slots, self.ranks, closure)

    # Counterfactuals

    def without(self, *slots: str) -> AbstractContextManager[None]:
        """The network as if these slots were empty. Restored on the way out, whatever happens inside."""
        return counterfactuals.shown_as(self.slots, {self.slots[id].id: Form.ABSENT for id in slots})

    def bare(self) -> AbstractContextManager[None]:
        """The network as if every slot were empty."""
        return self.without(*self.slot_ids)

    def trial(self, *slots: str) -> AbstractContextManager[None]:
        """The network with these seeds, still in TRAINING, shown at their target alpha."""
        return counterfactuals.trial(self.slots, slots)

    def showing(self, on: Collection[str]) -> AbstractContextManager[None]:
        """The network with exactly these slots switched on, a configuration; one in TRAINING is shown at its target alpha."""
        return counterfactuals.showing(self.slots, on)

    def stacked(self, configurations: Sequence[frozenset[str]], batch: int) -> AbstractContextManager[None]:
        """Several configurations in one pass: the input holds `batch` samples for each, one configuration after another."""
        return counterfactuals.stacked(self.slots, configurations, batch)

    # Batch norms

    def learning_norms(self) -> list[Norm]:
        """Batch norms whose running statistics follow the training: all but those that the host keeps in eval mode while it trains."""
        frozen = self._frozen_norms()
        return [norm for norm in tracked_norms(self) if norm not in frozen]

    def has_learning_norms(self) -> bool:
        """Whether there is any of them."""
        frozen = self._frozen_norms()
        if any(norm not in frozen for norm in self._norms):
            return True
        return any(is_tracked(module) for module in self.slots.modules())

    def _frozen_norms(self) -> list[Norm]:
        if self._frozen is not None:
            return self._frozen
        # No step was seen: a model in eval mode does not tell which.
        return [norm for norm in self._norms if not norm.training] if self.host.training else []

    def note_frozen(self, paths: Collection[str]) -> None:
        """For whoever trains without an optimiser's step: the host's batch norms at these paths are in eval mode while it trains."""
        self._frozen = [norm for norm in self._norms if norm in {self.host.get_submodule(path) for path in paths}]

    def recalibrated(self, batches: Sequence[Example]) -> AbstractContextManager[None]:
        """Inside, batch norms have statistics made anew from these training inputs, for the network as it is shown now.

        Their running statistics lag behind a network that changes, and eval mode uses them: without this, what is measured is mostly
        the lag. Everything is put back on the way out, so that training goes on as if nothing had been measured.
        """
        return recalibrated(self, self.learning_norms(), batches)

    def reference_inputs(self, loader: Iterable[Any], samples: int = REFERENCE_SAMPLES) -> list[Example]:
        """Inputs to recalibrate with, on this model's device: those of the loader's first batches."""
        return reference_batches(loader, next(self.parameters()).device, samples)

    # Leaving

    def harvest(self, live: str = "drop", *, recalibrate: Iterable[Any] | None = None) -> nn.Module:
        """The grown network as a plain module: host and fossils.

        Seeds still alive are dropped, or with live="keep" kept at their present alpha. recalibrate: a loader of training batches, inputs
        or (inputs, targets), from which the batch norms of what is harvested get their statistics; by default the Gardener's, if it has
        one. This model keeps its own.
        """
        kept = self.kept_by(live)
        loader = self.reference if recalibrate is None else recalibrate
        if loader is not None:
            check_loader(loader)
        if loader is None or not self.learning_norms():
            return harvest(self, kept)
        with self.showing(kept), self.recalibrated(self.reference_inputs(loader, HARVEST_SAMPLES)):
            return harvest(self, kept)

    def kept_by(self, live: str) -> list[str]:
        """Ids of the slots whose seeds a harvest keeps, in order: fossils, and with live="keep" whatever is blended in."""
        if live not in ("drop", "keep"):
            raise ConfigError(f'live is "drop" or "keep", found {live!r}')
        return self.at(*BLENDED) if live == "keep" else self.at(Stage.FOSSILIZED)

    def release(self) -> nn.Module:
        """Take the slots off the host and give it back as it was. This model cannot be used afterwards."""
        for handle in self._handles:
            handle.remove()
        return self.host

    # Saving and loading

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load the state of such a model at any moment of its growth, whatever has grown here. Checked whole before anything changes."""
        check_state(self, state_dict, strict)
        # Names were checked above, all of them. torch would refuse what a host puts into its state dict besides tensors and extra state.
        found = super().load_state_dict(state_dict, strict=False, assign=assign)
        known = self.state_dict().keys()
        return type(found)(found.missing_keys, [name for name in found.unexpected_keys if name not in known])

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        if prefix:  # loaded as a part of some other module, which does not call load_state_dict here
            check_state(self, {name.removeprefix(prefix): value for name, value in state_dict.items()}, strict=False)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Growable:
        # The example goes where the model goes, and into its precision, so that a harvest can be tried out on it.
        self.example = pytree.tree_map_only(Tensor, fn, self.example)
        super()._apply(fn, recurse)
        return self

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        # Its class is made, not written down where a pickle could find it.
        return rebuild, self.made_from, self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        # A copy starts without an optimiser, a loader and other ranks, which belong to the original, and compiles for itself.
        own: dict[str, Any] = {"_follower": None, "_ranks": None, "_aside": [], "_entries": {}, "_figures": None, "reference": None}
        return {**self.__dict__, **own}


def _path(place: str | Proposal) -> str:
    return place.path if isinstance(place, Proposal) else place


def growable_in(model: object) -> Growable:
    """The one Growable that a model is or holds: inside DistributedDataParallel, what torch.compile returns, a LightningModule. One inside
    an average of it, which a LightningModule may hold as well, does not count."""
    if isinstance(model, Growable):
        return model
    what = "growth needs an esper.Growable"
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{what}, found {type(model).__name__}; wrap the model first")
    averages = tuple(f"{path}." for path, module in model.named_modules() if isinstance(module, optim.swa_utils.AveragedModel))
    found = {path: module for path, module in model.named_modules() if isinstance(module, Growable) and not path.startswith(averages)}
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        raise ConfigError(f"{what}, and {type(model).__name__} holds {len(found)} of them: {', '.join(found)}; expected one")
    raise ConfigError(f"{what}, and {type(model).__name__} neither is nor holds one; wrap the model first")


def _enter_host(host: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return host(*args, **kwargs)


def _loaded(model: nn.Module, keys: object) -> None:
    """After a load, direct or as a part of another module: the seeds are new ones."""
    assert isinstance(model, Growable)
    model._entries.clear()
    model._figures = None
    if model._follower is not None:
        for slot in model.slots.values():
            model._follower.sync(slot)
