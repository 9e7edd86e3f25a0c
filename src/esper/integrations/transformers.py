"""Growth inside the Trainer of Hugging Face transformers: a callback.

    trainer = Trainer(model=esper.Growable(...), args=args, train_dataset=train, callbacks=[GrowthCallback(evaluate=accuracy)])
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn, optim

from esper.integrations._tending import Evaluate, Tending, clip_seeds, count_of_epochs, measure, without_seeds
from esper.kasmina.growable import Growable, growable_in
from esper.kasmina.optimizer_groups import innermost
from esper.leyline.errors import ConfigError, StateError
from esper.simic.gardener import Gardener

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ModuleNotFoundError as error:
    needed = "esper.integrations.transformers needs transformers and accelerate"
    raise ConfigError(f'{needed}; install them with: pip install "esper-lite[transformers]"') from error

STATE = "esper.Gardener"
"""The Gardener's name in the Trainer's state."""
OF_A_SEED = "esper.seed/"
"""How the keys of seeds begin in a saved state of the optimiser."""


class GrowthCallback(TrainerCallback):
    """Grows the `esper.Growable` that a Trainer trains: a Gardener that takes its step at the end of each epoch.

    evaluate: as for `esper.Gardener`: a function of the Growable that returns its validation accuracy in points, or an Evaluation.
    settings: the other arguments of `esper.Gardener` (policy, recalibrate, rent, run, ...). `epochs` is that of the training by default.

    The optimiser and the scheduler are the Trainer's own. Its checkpoints hold all that a resumed training needs. `max_grad_norm` clips
    the host as if nothing grew in it, and each seed by itself.
    """

    def __init__(self, evaluate: Evaluate, **settings: Any) -> None:
        self._tending = Tending(evaluate, settings)
        self._model: nn.Module | None = None
        self._packing: Any = None
        self._max_norm: float | None = None
        """That of the Trainer, while a step is under way and it is withheld from it."""

    @property
    def gardener(self) -> Gardener | None:
        """The Gardener of the present training, or of the last one; None before the first."""
        return self._tending.gardener

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **known: Any) -> None:
        """The Trainer has its model, and has loaded and saved nothing yet."""
        self._model = known["model"]
        model = growable_in(self._model)
        model.register_state_dict_post_hook(_untied)
        model.register_load_state_dict_post_hook(_hide_seeds)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **known: Any) -> None:
        """The Trainer has built optimiser and scheduler, and loaded their states if it resumes: the seeds join, the Gardener begins."""
        if self._model is None:
            raise ConfigError("GrowthCallback has to be there when the Trainer is made: Trainer(..., callbacks=[...]), not add_callback")
        if known["model"] is not self._model:
            raise ConfigError("GrowthCallback needs the model that the Trainer was made with: Trainer(model=...), not model_init=")
        if self._max_norm is not None:  # left by a training that was interrupted in mid-step
            args.max_grad_norm, self._max_norm = self._max_norm, None
        model, optimizer = growable_in(self._model), innermost(known["optimizer"])
        _show_seeds(model)
        if self._packing is not None:
            self._packing.remove()
        model.follow(optimizer, share_groups=True)
        _unpack(model, optimizer)
        self._packing = optimizer.register_state_dict_post_hook(partial(_pack, model))
        states: Any = state.stateful_callbacks
        saved = states.get(STATE)
        states[STATE] = _AsOfNow(self._tending)
        self._tending.begin(
            model,
            optimizer,
            epochs=count_of_epochs(state.num_train_epochs),
            done=math.floor(state.epoch or 0.0),
            resumed=None if saved is None else _decoded(saved),
        )

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **known: Any) -> None:
        """The Trainer clips over all parameters, before it tells anybody. So it gets nothing to clip by, and it is done here."""
        self._max_norm, args.max_grad_norm = args.max_grad_norm, 0.0

    def on_pre_optimizer_step(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **known: Any) -> None:
        """Clip, seeds and host apart. A scaler has unscaled the gradients by now, for the norm that the Trainer logs."""
        assert self._max_norm is not None, "a step has begun"
        args.max_grad_norm, self._max_norm = self._max_norm, None
        model = self._tending.tends.model
        if args.max_grad_norm > 0:
            measure(model, scaled=getattr(known["optimizer"], "scaler", None) is not None)
            nn.utils.clip_grad_norm_(without_seeds(model, known["model"].parameters()), args.max_grad_norm)
            clip_seeds(model, args.max_grad_norm)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **known: Any) -> None:
        """Look, decide, act. Checkpoints of this epoch are written after it."""
        self._tending.tends.step()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **known: Any) -> None:
        """The record ends. With load_best_model_at_end that checkpoint has been loaded, and its seeds are still hidden."""
        self._tending.end(finished=True)
        _show_seeds(self._tending.tends.model)


class _AsOfNow:
    """The Gardener's memory in the Trainer's state. The Trainer copies its state when it writes it down, and a copy of this is the memory
    as it is at that moment, in JSON."""

    def __init__(self, tending: Tending) -> None:
        self._tending = tending

    def __deepcopy__(self, memo: object) -> str:
        file = io.BytesIO()
        torch.save(self._tending.state(), file)
        return base64.b64encode(file.getvalue()).decode()


def _decoded(saved: str) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(io.BytesIO(base64.b64decode(saved)), weights_only=True)
    return state


def _untied(model: nn.Module, state: dict[str, Any], prefix: str, metadata: object) -> None:
    """After a state dict is made: tensors in the same memory become copies, since the Trainer's safetensors refuse tied weights."""
    seen = set()
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and value.numel():
            place = value.untyped_storage().data_ptr()
            if place in seen:
                state[name] = value.clone()
            seen.add(place)


def _hide_seeds(model: nn.Module, keys: Any) -> None:
    """After a load, which may be that of a checkpoint: the optimiser that the Trainer builds next has the host's parameters alone, as the
    state has that it will load. Lifted when the training begins, or at the next forward pass.

    keys: of the load. The Trainer passes over those that the model does not have, and with them over what grew at another slot.
    """
    assert isinstance(model, Growable)
    for name in keys.unexpected_keys:
        if name.startswith("slots."):
            slot = name.split(".")[1].replace("/", ".")
            raise StateError(f"the checkpoint has a slot {slot!r}, and this model has {', '.join(model.slots)}; give it the slots of then")
    model.unfollow()
    for parameter in _seeds(model).values():
        parameter.requires_grad_(False)
    if _show_seeds not in model._forward_pre_hooks.values():
        model.register_forward_pre_hook(_show_seeds)


def _show_seeds(model: Growable, inputs: object = None) -> None:
    """Also a forward pre-hook, that goes when it has done its work; a function by itself, so that the model can be copied and pickled."""
    for key in [key for key, hook in model._forward_pre_hooks.items() if hook is _show_seeds]:
        del model._forward_pre_hooks[key]
    for parameter in _seeds(model).values():
        parameter.requires_grad_(True)


def _seeds(model: Growable) -> dict[str, nn.Parameter]:
    """Parameters of all seeds, by a name."""
    return {f"{OF_A_SEED}{id}/{name}": p for id, slot in model.slots.items() for name, p in slot.named_parameters()}


def _pack(model: Growable, optimizer: optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """An optimiser's state dict with the host's parameters alone in its groups, and what belongs to the seeds under their names.

    The Trainer loads it into an optimiser that it has just built, before the growth can be told to it.
    """
    names = {id(p): name for name, p in _seeds(model).items()}
    of = {index: names[id(p)] for index, p in enumerate(_parameters(optimizer)) if id(p) in names}
    return {
        **state,
        "state": {of.get(key, key): value for key, value in state["state"].items()},
        "param_groups": [{**group, "params": [each for each in group["params"] if each not in of]} for group in state["param_groups"]],
    }


def _unpack(model: Growable, optimizer: optim.Optimizer) -> None:
    """Give the seeds, now that the optimiser follows, what a packed state dict brought for them."""
    seeds = _seeds(model)
    index_of = {id(p): index for index, p in enumerate(_parameters(optimizer))}
    state = optimizer.state_dict()
    found = {key: value for key, value in state["state"].items() if isinstance(key, str) and key.startswith(OF_A_SEED)}
    if found:
        state_of: dict[Any, Any] = optimizer.state
        for key in found:
            del state_of[key]
        host = {key: value for key, value in state["state"].items() if key not in found}
        optimizer.load_state_dict({**state, "state": host | {index_of[id(seeds[key])]: value for key, value in found.items()}})


def _parameters(optimizer: optim.Optimizer) -> Iterator[nn.Parameter]:
    """In the order in which a state dict numbers them."""
    return (p for group in optimizer.param_groups for p in group["params"])
