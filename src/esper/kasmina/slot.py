"""A place in a host where a seed can grow: what it computes in the forward pass, and the record of its seed's life."""

from __future__ import annotations

import copy
import json
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Sequence, ValuesView
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from enum import Enum, auto
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from esper.kasmina.blending import ADDITIVE, Gating, graft, isolated
from esper.kasmina.blueprints import Seed, SlotShape, build
from esper.kasmina.gradients import SUMS, GradientMeter, gradient_ratio, gradient_stats
from esper.kasmina.layout import Layout
from esper.kasmina.outputs import Holder, replaced
from esper.kasmina.seed_state import SeedState
from esper.leyline.actions import Style
from esper.leyline.codec import to_plain
from esper.leyline.errors import BlueprintError, EsperError, StateError, in_a_line, unknown
from esper.leyline.reports import GradientStats, Isolation, SeedRecord, SeedReport
from esper.leyline.stages import BLENDED, OCCUPIED, Stage

M = TypeVar("M", bound=nn.Module)

FIGURES = SUMS + 1
"""Figures on the device that a slot's report is made from."""
FRESH = (*[0.0] * SUMS, 1.0)
"""Those of a slot without a seed, and of one whose seed has just been built: nothing was measured, and nothing is broken."""
RECORD = tuple(field.name for field in fields(SeedRecord))
"""What a report takes over from the seed's record."""


@contextmanager
def random_stream(seed: int) -> Iterator[None]:
    """Draws random numbers on the CPU from a stream of its own. The global streams, of every device, go on as if nothing had happened.

    Outside inference mode, whose tensors could never be trained.
    """
    # A device as context takes a turn in every call; the CPU is where things are made anyway, unless somebody said otherwise.
    elsewhere = torch.get_default_device().type != "cpu"
    with torch.inference_mode(False), torch.random.fork_rng(devices=[]), torch.device("cpu") if elsewhere else nullcontext():
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would restart those of the accelerators too
        yield


class Form(Enum):
    """What a slot does in the forward pass."""

    ABSENT = auto()
    """Nothing: the host's features pass as they are."""
    ISOLATED = auto()
    """The features pass as they are, and the seed learns from their gradient."""
    BLENDED = auto()
    """The seed is blended in by alpha."""
    TRIAL = auto()
    """The seed of a TRAINING slot is shown at its target alpha, for a measurement or a shadow pass."""
    FOSSIL = auto()
    """The seed is part of the network for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A module of the host whose output can carry a slot, as the probe saw it."""

    path: str
    shape: SlotShape
    example_shape: tuple[int, ...]
    """Shape of the features in the probe."""
    layout: Layout
    """Which of its axes is what."""
    dtype: torch.dtype
    device: torch.device
    position: float
    """0 for the first module called in the host's forward pass, 1 for the last."""
    output: Holder | None = None
    """Where the features are in the module's output; None for a tensor, which is them."""
    calls: int = 1
    """How often the module is called in one forward pass."""
    reach: int = 0
    """Positions of the features that change with one position of the input; 0 where that is not known, or where there are none."""
    capacity: int = 0
    """Parameters of the layers that run between the slot before, or the beginning, and this one, its own module included."""

    @property
    def seed_shape(self) -> tuple[int, ...]:
        """Shape of the features in the probe as a seed sees them."""
        return self.layout.arranged(self.example_shape)


class Slot(nn.Module):
    """One slot. Holds the seed's modules as ordinary submodules; the host knows it only as a forward hook."""

    alpha: Tensor
    seed: Seed | None
    gating: Gating | None

    def __init__(self, id: str, place: Place, isolation: Isolation, checkpoint: bool = False) -> None:
        super().__init__()
        self.id, self.place, self.isolation, self.checkpoint = id, place, isolation, checkpoint
        self.state = SeedState()
        self.seed = None
        self.gating = None
        self.meter = GradientMeter()
        # A tensor that the graph reads: a step of alpha changes its value and recompiles nothing.
        self.register_buffer("alpha", torch.zeros((), dtype=place.dtype))
        self._empty: tuple[SeedState, int, SeedReport] | None = None
        self._size: int | None = 0
        self._kind: str | None = ""
        self.form = Form.ABSENT
        self.share: Tensor | None = None  # per-sample mask of a stacked pass; see Growable.stacked
        if self.alpha.device != place.device:
            self.to(place.device)

    # The forward pass

    @property
    def works(self) -> bool:
        """Whether anything runs here in a forward pass: a seed in isolation only matters to gradients."""
        return self.form is not Form.ABSENT and (self.form is not Form.ISOLATED or torch.is_grad_enabled())

    def hook(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Forward hook on the host's module. None leaves the output as it is."""
        if not self.works:
            return None
        if isinstance(output, Tensor):
            return self.blend(output)
        return replaced(output, output[0], self.blend(output[0]))

    def blend(self, h: Tensor) -> Tensor:
        """The features that the host sees in place of h."""
        assert self.seed is not None, f"slot {self.id} has form {self.form} and no seed"
        if self.form is Form.ISOLATED:
            layout = self.place.layout
            s = layout.restore(self.seed(layout.arrange(h if self.isolation == "none" else h.detach())), h)
            return isolated(h, s, pull=self.isolation == "boost")
        alpha: Tensor | float = self.alpha
        if self.form is Form.FOSSIL:
            alpha = 1.0
        elif self.form is Form.TRIAL:
            alpha = self.state.alpha_target
        out = graft(h, self.seed, self.gating, self.state.style, alpha, self.place.layout).to(h.dtype)
        if self.share is None:
            return out
        batch = self.place.layout.batch
        # (B,) as (B, 1, ..., 1); a sample may have several rows, as the windows of an image.
        share = self.share.repeat_interleave(h.shape[batch] // len(self.share))
        return torch.where(share.view([-1 if axis == batch else 1 for axis in range(h.dim())]), out, h)

    def settle(self) -> None:
        """Bring the forward form and alpha's tensor in line with the record."""
        stage = self.state.stage
        if stage is Stage.TRAINING:
            self.form = Form.ABSENT if self.isolation == "shadow" else Form.ISOLATED
        elif stage is Stage.FOSSILIZED and self.state.style in ADDITIVE:
            self.form = Form.FOSSIL
        else:
            self.form = Form.BLENDED if stage in BLENDED else Form.ABSENT
        self.alpha.fill_(self.state.alpha)

    # The seed's modules

    def become(self, state: SeedState, modules: tuple[Seed | None, Gating | None] | None = None) -> None:
        """Take over a record and the seed and gate that go with it; by default those that are there stay."""
        self.state = state
        if modules is not None:
            self.seed, self.gating = modules
            self._size = self._kind = None
        self.settle()

    def grow_like(self, other: Slot) -> None:
        """Have what another model's slot has: its record, and a copy of each of its modules that is not here yet."""
        same = self.state.germinations == other.state.germinations
        seed = self.seed if same and self.seed is not None and other.seed is not None else copy.deepcopy(other.seed)
        gating = self.gating if same and self.gating is not None and other.gating is not None else copy.deepcopy(other.gating)
        self.become(other.state, (self._place(seed) if seed else None, self._place(gating) if gating else None))

    def build(self, blueprint: str, style: Style, stream: int) -> tuple[Seed, Gating | None]:
        """New modules for this slot, from their own random stream, not yet part of anything."""
        with random_stream(stream):
            try:
                seed = build(blueprint, self.place.shape, checkpoint=self.checkpoint)
            except EsperError:
                raise
            except Exception as error:
                what = f"blueprint {blueprint!r} cannot be built for slot {self.id!r}, {self.place.shape}"
                raise BlueprintError(f"{what}: {in_a_line(error)}") from error
            # Here, where it is still on the CPU: nobody has to wait for a device to know that a new seed is sound.
            if not all(bool(parameter.isfinite().all()) for parameter in seed.parameters()):
                raise BlueprintError(f"blueprint {blueprint!r} builds a seed with parameters that are not finite for slot {self.id!r}")
            return self._place(seed), self.build_gating() if style is Style.GATED else None

    def build_gating(self) -> Gating:
        """A new gate, drawn from the present random stream."""
        return self._place(Gating(self.place.shape.topology, self.place.shape.width))

    def _place(self, module: M) -> M:
        return module.to(device=self.alpha.device, dtype=self.alpha.dtype).train(self.training)

    def seed_parameters(self) -> list[nn.Parameter]:
        """Parameters of the seed and its gate; empty when there is none."""
        return [p for module in (self.seed, self.gating) if module is not None for p in module.parameters()]

    def learning_parameters(self) -> list[nn.Parameter]:
        """Parameters that get gradients now: straight through, a gate learns only once it is blended in; in a shadow pass it does."""
        if self.state.stage in BLENDED or self.isolation == "shadow" or self.seed is None:
            return self.seed_parameters()
        return list(self.seed.parameters())

    def size(self) -> int:
        """Parameters of the seed and its gate, counted once for each seed."""
        if self._size is None:
            self._size = sum(p.numel() for p in self.seed_parameters())
        return self._size

    def kind(self) -> str:
        """The modules of the seed and its gate in words, the same for seeds that compute alike; written once for each seed."""
        if self._kind is None:
            self._kind = f"{self.seed!r}, {self.gating!r}"
        return self._kind

    @torch.no_grad()
    def figures(self) -> Tensor:
        """What a report needs from the device, shape (FIGURES,): the meter's sums, and 1 if every parameter is finite, else 0."""
        checks = [p.isfinite().all() for p in self.seed_parameters()]
        finite = torch.stack(checks).all() if checks else torch.ones_like(self.alpha)
        return torch.cat((self.meter.settle(), finite.float().view(1)))

    def report(self, figures: Sequence[float], host: GradientStats | None, host_parameters: int) -> SeedReport:
        """All that is known about the seed now. figures: as read from the device. host: its gradients of the present epoch.

        Gradients are those of the present epoch, or of the last one while this one has no step yet. Of an empty slot nothing new is known
        while its record stays, and its report stays as well.
        """
        state, place = self.state, self.place
        empty = state.stage not in OCCUPIED
        if empty and self._empty is not None and self._empty[0] is state and self._empty[1] == host_parameters:
            return self._empty[2]
        known = {name: getattr(state, name) for name in RECORD}
        known |= self.gradients(figures, host, host_parameters)
        made = SeedReport(
            **known,
            slot=self.id,
            topology=place.shape.topology,
            width=place.shape.width,
            position=place.position,
            reach=place.reach,
            capacity=place.capacity,
            alpha=state.alpha,
            ramp_left=state.ramp_left,
            parameters=self.size(),
            host_parameters=host_parameters,
            finite=bool(figures[SUMS]),
        )
        if empty:
            self._empty = state, host_parameters, made
        return made

    def gradients(self, figures: Sequence[float], host: GradientStats | None, host_parameters: int) -> dict[str, Any]:
        """What the present epoch says of the seed's gradients, as fields of its record; nothing before its first step."""
        found = gradient_stats(figures[:SUMS])
        if found is None:
            return {}
        ratio = None if host is None else gradient_ratio(found, host, self.size(), host_parameters)
        return {"gradients": found, "gradient_ratio": ratio, "host_gradient": None if host is None else host.norm}

    # Saving and loading

    def get_extra_state(self) -> Tensor:
        """The record as JSON in a byte tensor: nothing pickled, and safetensors can hold it."""
        text = json.dumps({"path": self.place.path, "life": to_plain(self.state)}, sort_keys=True)
        return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        """Build the modules that the record tells of; their tensors are loaded right after, as those of any submodule."""
        record = self.read_extra_state(state)
        self.become(record, self.modules_for(record))

    def modules_for(self, state: SeedState) -> tuple[Seed | None, Gating | None]:
        """Untrained modules of the structure that a record describes."""
        return self.build(state.blueprint, state.style, stream=0) if state.stage in OCCUPIED else (None, None)

    def read_extra_state(self, state: Any) -> SeedState:
        """The record in an extra state; raises StateError when it is damaged or another slot's."""
        if not isinstance(state, Tensor) or state.dtype is not torch.uint8:
            raise StateError(f"slot {self.id!r}: its record should be a byte tensor, found {type(state).__name__}")
        try:
            content = json.loads(bytes(state.tolist()))
            path, record = content["path"], SeedState.from_json(content["life"])
        except (ValueError, KeyError, TypeError, EsperError) as error:
            raise StateError(f"slot {self.id!r}: its record is damaged ({error})") from error
        if path != self.place.path:
            raise StateError(f"slot {self.id!r} is at {self.place.path!r} here and was saved at {path!r}")
        return record


class Slots(nn.Module):
    """The slots of a model, in order: a mapping from id to slot."""

    def __init__(self, slots: Iterable[Slot]) -> None:
        super().__init__()
        self._by_id = {slot.id: slot for slot in slots}
        for slot in self._by_id.values():
            self.add_module(module_name(slot.id), slot)

    def __getitem__(self, id: str) -> Slot:
        if id not in self._by_id:
            raise unknown("slot", id, self._by_id)
        return self._by_id[id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def keys(self) -> KeysView[str]:
        """The ids, in order."""
        return self._by_id.keys()

    def values(self) -> ValuesView[Slot]:
        """The slots, in order."""
        return self._by_id.values()

    def items(self) -> ItemsView[str, Slot]:
        """Ids and slots, in order."""
        return self._by_id.items()


def module_name(id: str) -> str:
    """A slot's name among submodules, which may not hold dots, nor be the name of a method such as `keys`."""
    key = id.replace(".", "/")
    return f"/{key}" if hasattr(_NAMES_TAKEN, key) else key


_NAMES_TAKEN = nn.ModuleDict()
"""Whatever is an attribute of such a module cannot be the name of a submodule."""
