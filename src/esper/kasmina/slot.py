"""A place in a host where a seed can grow: what it computes in the forward pass, and the record of its seed's life."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from esper.kasmina.blending import ADDITIVE, Gating, boost, graft, straight_through
from esper.kasmina.blueprints import Seed, SlotShape, build
from esper.kasmina.gradients import GradientMeter, gradient_ratio
from esper.kasmina.seed_state import SeedState
from esper.leyline.actions import Style
from esper.leyline.errors import BlueprintError, EsperError, SlotError, StateError
from esper.leyline.reports import GradientStats, Isolation, SeedReport
from esper.leyline.stages import BLENDED, OCCUPIED, Stage

M = TypeVar("M", bound=nn.Module)


@contextmanager
def random_stream(seed: int) -> Iterator[None]:
    """Draws random numbers on the CPU from a stream of its own. The global streams, of every device, go on as if nothing had happened."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
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
    dtype: torch.dtype
    device: torch.device
    position: float
    """0 for the first module called in the host's forward pass, 1 for the last."""
    items: int | None = None
    """Length of the module's output if it is a tuple or list, whose first item is the features; None for a tensor."""
    container: type | None = None
    """The class of that tuple or list."""


class Slot(nn.Module):
    """One slot. Holds the seed's modules as ordinary submodules; the host knows it only as a forward hook."""

    alpha: Tensor
    seed: Seed | None
    gating: Gating | None

    def __init__(self, id: str, place: Place, isolation: Isolation, checkpoint: bool = False) -> None:
        super().__init__()
        self.id, self.place, self.isolation, self.checkpoint = id, place, isolation, checkpoint
        self.life = SeedState()
        self.seed = None
        self.gating = None
        self.meter = GradientMeter()
        # A tensor that the graph reads: a step of alpha changes its value and recompiles nothing.
        self.register_buffer("alpha", torch.zeros((), dtype=place.dtype))
        self.form = Form.ABSENT
        self.share: Tensor | None = None  # per-sample mask of a stacked pass; see Growable.stacked
        self.to(place.device)

    # The forward pass

    def hook(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Forward hook on the host's module. None leaves the output as it is."""
        if self.form is Form.ABSENT or (self.form is Form.ISOLATED and not torch.is_grad_enabled()):
            return None
        if isinstance(output, Tensor):
            return self.blend(output)
        items = (self.blend(output[0]), *output[1:])
        return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)

    def blend(self, h: Tensor) -> Tensor:
        """The features that the host sees in place of h."""
        assert self.seed is not None, f"slot {self.id} has form {self.form} and no seed"
        if self.form is Form.ISOLATED:
            s = self.seed(h if self.isolation == "none" else h.detach())
            return boost(h, s) if self.isolation == "boost" else straight_through(h, s)
        alpha: Tensor | float = self.alpha
        if self.form is Form.FOSSIL:
            alpha = 1.0
        elif self.form is Form.TRIAL:
            alpha = self.life.alpha_target
        out = graft(h, self.seed, self.gating, self.life.style, alpha).to(h.dtype)
        if self.share is None:
            return out
        return torch.where(self.share.view(-1, *[1] * (h.dim() - 1)), out, h)

    def settle(self) -> None:
        """Bring the forward form and alpha's tensor in line with the record."""
        stage = self.life.stage
        if stage is Stage.TRAINING:
            self.form = Form.ABSENT if self.isolation == "shadow" else Form.ISOLATED
        elif stage is Stage.FOSSILIZED and self.life.style in ADDITIVE:
            self.form = Form.FOSSIL
        else:
            self.form = Form.BLENDED if stage in BLENDED else Form.ABSENT
        self.alpha.fill_(self.life.alpha)

    # The seed's modules

    def build(self, blueprint: str, style: Style, stream: int) -> tuple[Seed, Gating | None]:
        """New modules for this slot, from their own random stream, not yet part of anything."""
        with random_stream(stream):
            try:
                seed = build(blueprint, self.place.shape, checkpoint=self.checkpoint)
            except EsperError:
                raise
            except Exception as error:
                what = f"blueprint {blueprint!r} cannot be built for slot {self.id!r}, {self.place.shape}"
                raise BlueprintError(f"{what}: {type(error).__name__}: {error}") from error
            gating = Gating(self.place.shape.topology, self.place.shape.width) if style is Style.GATED else None
        return self._place(seed), gating if gating is None else self._place(gating)

    def build_gating(self, stream: int) -> Gating:
        """A new gate for a seed that becomes GATED later."""
        with random_stream(stream):
            return self._place(Gating(self.place.shape.topology, self.place.shape.width))

    def _place(self, module: M) -> M:
        return module.to(device=self.alpha.device, dtype=self.alpha.dtype).train(self.training)

    def install(self, seed: Seed | None, gating: Gating | None) -> None:
        """Make these the slot's modules."""
        self.seed, self.gating = seed, gating

    def seed_parameters(self) -> list[nn.Parameter]:
        """Parameters of the seed and its gate; empty when there is none."""
        return [p for module in (self.seed, self.gating) if module is not None for p in module.parameters()]

    def learning_parameters(self) -> list[nn.Parameter]:
        """Parameters that get gradients now: straight through, a gate learns only once it is blended in; in a shadow pass it does."""
        if self.life.stage in BLENDED or self.isolation == "shadow" or self.seed is None:
            return self.seed_parameters()
        return list(self.seed.parameters())

    @torch.no_grad()
    def is_finite(self) -> bool:
        """Whether every parameter of the seed is finite."""
        parameters = self.seed_parameters()
        return not parameters or bool(torch.stack([p.isfinite().all() for p in parameters]).all())

    def report(self, host: GradientStats | None, host_parameters: int) -> SeedReport:
        """All that is known about the seed now; `host` are the host's gradients of the present epoch."""
        gradients, ratio = self.gradients(host, host_parameters)
        life = self.life
        return SeedReport(
            slot=self.id,
            stage=life.stage,
            previous_stage=life.previous_stage,
            epochs_in_stage=life.epochs_in_stage,
            age=life.age,
            topology=self.place.shape.topology,
            width=self.place.shape.width,
            position=self.place.position,
            blueprint=life.blueprint,
            style=life.style,
            tempo=life.tempo,
            alpha=life.alpha,
            alpha_target=life.alpha_target,
            ramp_left=life.ramp_left,
            pruning=life.pruning,
            parameters=sum(p.numel() for p in self.seed_parameters()),
            host_parameters=host_parameters,
            initialised=self.seed is not None,
            finite=self.is_finite(),
            gradients=gradients,
            gradient_ratio=ratio,
            contribution=life.contribution,
            contribution_error=life.contribution_error,
            contribution_loss=life.contribution_loss,
            contribution_age=life.contribution_age,
            trial_contribution=life.trial_contribution,
            trial_error=life.trial_error,
            trial_loss=life.trial_loss,
        )

    def gradients(self, host: GradientStats | None, host_parameters: int) -> tuple[GradientStats | None, float | None]:
        """Statistics and ratio of the present epoch, or of the last one while this one has no step yet."""
        now = self.meter.read()
        if now is None:
            return self.life.gradients, self.life.gradient_ratio
        count = sum(p.numel() for p in self.seed_parameters())
        return now, None if host is None else gradient_ratio(now, host, count, host_parameters)

    # Saving and loading

    def get_extra_state(self) -> Tensor:
        """The record as JSON in a byte tensor: nothing pickled, and safetensors can hold it."""
        text = json.dumps({"path": self.place.path, "life": self.life.to_json()}, sort_keys=True)
        return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        """Build the modules that the record tells of; their tensors are loaded right after, as those of any submodule."""
        life = self.read_extra_state(state)
        seed, gating = self.modules_for(life)
        self.life = life
        self.install(seed, gating)
        self.settle()

    def modules_for(self, life: SeedState) -> tuple[Seed | None, Gating | None]:
        """Untrained modules of the structure that a record describes."""
        if life.stage not in OCCUPIED:
            return None, None
        return self.build(life.blueprint, life.style, stream=0)

    def read_extra_state(self, state: Any) -> SeedState:
        """The record in an extra state; raises StateError when it is damaged or another slot's."""
        if not isinstance(state, Tensor) or state.dtype is not torch.uint8:
            raise StateError(f"slot {self.id!r}: its record should be a byte tensor, found {type(state).__name__}")
        try:
            record = json.loads(bytes(state.tolist()))
            path, life = record["path"], SeedState.from_json(record["life"])
        except (ValueError, KeyError, TypeError, EsperError) as error:
            raise StateError(f"slot {self.id!r}: its record is damaged ({error})") from error
        if path != self.place.path:
            raise StateError(f"slot {self.id!r} is at {self.place.path!r} here and was saved at {path!r}")
        return life


def check_ids(ids: Iterable[str]) -> None:
    """Raise SlotError for what cannot be a slot's id."""
    for id in ids:
        if not isinstance(id, str) or not id or "/" in id:
            raise SlotError(f"a slot's id is a string, not empty and without '/', found {id!r}")


def module_name(id: str) -> str:
    """A slot's name among submodules, which may not hold dots, nor be the name of a method such as `keys`."""
    key = id.replace(".", "/")
    return f"/{key}" if hasattr(nn.ModuleDict(), key) else key
