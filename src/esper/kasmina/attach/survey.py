"""Looking at a model before anything is attached: a few forward passes that learn which modules could carry a slot."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from esper.kasmina.attach.axes import Spread, changed_axes, read_axes, spreads
from esper.kasmina.attach.graph import Role, depends_on, main_role, roles
from esper.kasmina.attach.reach import reaches
from esper.kasmina.attach.running import call, check_parameters, evaluating, modes_kept, untouched
from esper.kasmina.attach.sighting import Sighting, Watch, features_of, is_scripted, position
from esper.kasmina.attach.variation import Example, one_changed, one_more, other_sizes, sample_counts
from esper.kasmina.blueprints.registry import SlotShape
from esper.kasmina.fast_path import no_fast_path
from esper.kasmina.layout import Layout, named_layout
from esper.kasmina.outputs import floating_leaves, holder_of, replaced
from esper.kasmina.slot import Place, Slot
from esper.leyline.errors import SlotError, in_a_line
from esper.leyline.reports import Topology

Sightings = Mapping[str, Sighting]

MOST_SIZES = 2
"""Passes with inputs of other sizes."""


class Survey:
    """What forward passes of a model tell about its modules. The model is left exactly as it was after each.

    One pass with the example; others, with inputs made from it, only when somebody asks for what they tell. A pass that fails with such
    an input tells nothing.
    """

    def __init__(self, model: nn.Module, example: Example) -> None:
        check_parameters(model)
        self.model, self.example = model, example
        try:
            watch, self.output = self._pass(example)
        except Exception as error:
            raise SlotError(f"the model does not run on the example input: {in_a_line(error)}") from error
        self.sightings: Sightings = watch.sightings
        self.takers = watch.takers

    def _pass(self, example: Example) -> tuple[Watch, Any]:
        with untouched(self.model), evaluating(self.model), no_fast_path(), Watch(self.model) as watch:
            output = call(self.model, example)
        return watch, output

    def _try(self, example: Example) -> Sightings | None:
        try:
            return self._pass(example)[0].sightings
        except Exception:  # the model has its reasons: a fixed batch, a fixed size
            return None

    @cached_property
    def _samples(self) -> tuple[int, int, dict[str, Spread]]:
        """The axis of the inputs along which the samples lie, how many there are, and where features change with one of them.

        Samples do not see each other, and places of a sequence do; in doubt the first axis is the batch.
        """
        best: tuple[float, int, int, dict[str, Spread]] | None = None
        for axis, count in sample_counts(self.example).items():
            example, before = self.example, self.sightings
            if count == 1:
                example = one_more(example, axis, count)
                two = self._try(example)
                if two is None:
                    continue
                before, count = two, 2
            after = self._try(one_changed(example, axis, count))
            found = {} if after is None else spreads(before, after, count)
            told = [each.axis is not None for each in found.values() if each.anywhere]
            share = sum(told) / len(told) if told else 0.0
            if best is None or share > best[0]:
                best = share, axis, count, found
            if share > 0.5:
                break
        return (0, 0, {}) if best is None else best[1:]

    @cached_property
    def _grown(self) -> Sightings | None:
        """A pass with one more sample."""
        axis, _, _ = self._samples
        counts = sample_counts(self.example)
        return self._try(one_more(self.example, axis, counts[axis])) if axis in counts else None

    @cached_property
    def _resized(self) -> list[Sightings]:
        """Passes with inputs of other sizes, those that run."""
        axis, _, _ = self._samples
        counts = sample_counts(self.example)
        ran: list[Sightings] = []
        for other in other_sizes(self.example, axis, counts[axis]) if axis in counts else ():
            seen = self._try(other)
            ran += [] if seen is None else [seen]
            if len(ran) == MOST_SIZES:
                break
        return ran

    def depends(self, path: str) -> bool:
        """Whether a module's features depend on the samples, as far as that is known: their values change with a sample's, or would if
        the signal of an untrained network did not vanish on its way."""
        found = self._samples[2].get(path)
        return found is None or found.anywhere or path in self._graph[1]

    def batch_axis(self, path: str) -> int | None:
        """The axis of a module's features along which the samples lie; None when there is none."""
        shape = self.sightings[path].shapes[-1]
        found = self._samples[2].get(path)
        if found is not None and found.axis is not None:
            return found.axis
        longer = changed_axes(self.sightings[path], self._grown.get(path) if self._grown is not None else None)
        if len(longer) == 1:
            return longer.pop()
        return 0 if len(shape) == 2 or shape[0] in (sample_counts(self.example).get(0), self._usual_rows) else None

    @cached_property
    def _usual_rows(self) -> int | None:
        """How long the first axis of features is as a rule; None unless most of them agree."""
        rows = Counter(s.shapes[-1][0] for s in self.sightings.values() if s.shapes and len(s.shapes[-1]) > 1)
        usual, count = rows.most_common(1)[0] if rows else (0, 0)
        return usual if usual > 1 and 2 * count > rows.total() else None

    def reaches(self, places: Sequence[Place]) -> dict[str, int]:
        """How many positions of the features at each of these places change with one position of the input, by path; 0 if unknown."""
        axis, _, _ = self._samples
        counts = sample_counts(self.example)
        return reaches(self.model, self.example, (axis, counts.get(axis, 0)), self.takers, places)

    def capacities(self, places: Sequence[Place]) -> dict[str, int]:
        """Parameters of the layers that run between the place before and each of these, itself included, by path; each counts once.

        A layer that is never called as a module counts with the one that holds it.
        """
        ends = sorted((self.sightings[place.path].order, place.path) for place in places)
        found = dict.fromkeys((path for _, path in ends), 0)
        layers = [(self._order(path), module) for path, module in self.model.named_modules() if path]
        counted = set[int]()
        for order, module in sorted(layers, key=lambda each: each[0]):
            place = next((path for end, path in ends if order <= end), None)
            own = [parameter for parameter in module.parameters(recurse=False) if id(parameter) not in counted]
            counted.update(map(id, own))
            if place is not None:
                found[place] += sum(parameter.numel() for parameter in own)
        return found

    def _order(self, path: str) -> float:
        """When a module, or the nearest around it that is called, was done; infinity for what the model itself does alone."""
        while path and not self.sightings[path].calls:
            path = path.rpartition(".")[0]
        return self.sightings[path].order if path else math.inf

    def layout(self, path: str) -> Layout | str:
        """The layout of a module's features, or why it is not clear."""
        seen = self.sightings[path]
        shape = seen.shapes[-1]
        batch = self.batch_axis(path)
        if batch is None:
            return f"its output, shape {shape}, does not have the example's samples along any axis"
        moving = None
        if len(shape) > 2 and self._resized:
            moving = set[int]().union(*(changed_axes(seen, other.get(path)) for other in self._resized)) - {batch}
        axes = read_axes(shape, batch, seen.hints, seen.consumer, moving)
        if axes is None:
            return f"the layout of its output, shape {shape}, is not clear; {_layout_help(len(shape))}"
        return Layout(axes)

    @cached_property
    def _graph(self) -> tuple[dict[str, Role], set[str]]:
        """What modules' features are to the output, and which depend on floating-point inputs, read from a pass with gradients.

        Nothing is known of modules that are run without gradients at first and with them in the backward pass.
        """
        inputs: list[Tensor] = []

        def leaf(t: Tensor) -> Tensor:
            if not t.is_floating_point():
                return t
            inputs.append(t.detach().clone().requires_grad_())
            return inputs[-1].clone()  # no leaf itself, so that a model may write to it

        example = pytree.tree_map_only(Tensor, leaf, self.example)
        try:
            with untouched(self.model), modes_kept(self.model), _unfrozen(self.model), Watch(self.model, graph=True) as watch:
                self.model.eval()
                output = call(self.model, example)
        except Exception:  # what runs without gradients may not run with them
            return {}, set()
        outputs = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
        calls = {path: seen.nodes for path, seen in watch.sightings.items() if seen.nodes}
        if not outputs:
            return {}, set()
        nodes = {node for each in calls.values() for node in each}
        role_of, depending = roles(outputs, nodes, self.model.parameters()), depends_on(nodes, inputs)
        found = {path: main_role(role_of[node] for node in each) for path, each in calls.items()}
        without = {path: seen.module for path, seen in watch.sightings.items() if seen.calls and not seen.nodes}
        found |= dict.fromkeys(without.keys() - self._reached(without), Role.CUT)
        return found, {path for path, each in calls.items() if not depending.isdisjoint(each)}

    def _reached(self, modules: Mapping[str, nn.Module]) -> set[str]:
        """Those of the modules where gradients arrive in a backward pass in training mode: it may run them once more, as one that saves
        memory does. All of them where that pass fails."""
        if not modules:
            return set()
        scales = {path: torch.ones((), requires_grad=True) for path in modules}

        def scaled(path: str, output: Any) -> Any:
            features = features_of(output)
            if not isinstance(features, Tensor) or not features.is_floating_point():
                return output
            return replaced(output, features, features * scales[path].to(features))

        hooks = [each.register_forward_hook(lambda _, __, out, path=path: scaled(path, out)) for path, each in modules.items()]
        gradients = [(p, p.grad) for p in self.model.parameters()]
        self.model.zero_grad()
        try:
            with untouched(self.model), modes_kept(self.model), _unfrozen(self.model):
                outputs = floating_leaves(call(self.model.train(), self.example))
                sum((leaf.float().sum() for leaf in outputs if leaf.requires_grad), start=torch.zeros(())).backward()
        except Exception:
            return set(modules)
        finally:
            for hook in hooks:
                hook.remove()
            for parameter, gradient in gradients:
                parameter.grad = gradient
        return {path for path, scale in scales.items() if scale.grad is not None}

    def role(self, path: str) -> Role | None:
        """What a module's features are to the model's output; None where that is not known."""
        return self._graph[0].get(path)

    def examine(self, path: str, *, causal: bool, stated: Layout | None = None) -> Place | str:
        """The place at one path, or the reason why it cannot carry a slot."""
        seen = self.sightings[path]
        first = next(s.path for s in self.sightings.values() if s.module is seen.module)
        if first != path:
            return f"it is the same module as {first!r}, which may carry the slot"
        if is_scripted(seen.module):
            return "it is TorchScript, which takes no hooks; a slot may be behind the module around it"
        if seen.calls == 0:
            return "the example forward pass never calls it as a module"
        features = features_of(seen.output)
        if not isinstance(features, Tensor):
            return f"its output is {_describe(seen.output)}; a slot needs a tensor, or a tuple that starts with one"
        if not features.is_floating_point():
            return f"its output has dtype {features.dtype}; a slot needs floating-point features"
        if features.dim() < 2:
            return f"its output has shape {tuple(features.shape)}; a slot needs features of samples, with at least two axes"
        layout = self.layout(path) if stated is None else stated
        if isinstance(layout, str):
            return layout
        if len(layout.axes) != features.dim():
            return f"{layout} features have {len(layout.axes)} axes; its output has shape {tuple(features.shape)}"
        width = features.shape[layout.channels]
        if any(len(shape) != features.dim() or shape[layout.channels] != width for shape in seen.shapes):
            return f"it is called {seen.calls} times in one forward pass, for features of different widths"
        if width < 2 and layout.topology in (Topology.TOKENS, Topology.VECTOR):
            return "its output has a single feature; a seed needs at least two"
        return Place(
            path=path,
            shape=SlotShape(topology=layout.topology, width=width, causal=causal),
            example_shape=tuple(features.shape),
            layout=layout,
            dtype=features.dtype,
            device=features.device,
            position=position(seen.order, self.sightings),
            output=holder_of(seen.output, features),
            calls=seen.calls,
        )


@contextmanager
def _unfrozen(model: nn.Module) -> Iterator[None]:
    """With gradients, those of frozen weights too: what they do to features is seen in the graph alone."""
    frozen = [p for p in model.parameters() if not p.requires_grad and (p.is_floating_point() or p.is_complex())]
    try:
        with torch.enable_grad():
            for parameter in frozen:
                parameter.requires_grad_(True)
            yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


def probe(
    model: nn.Module, example: Example, paths: Collection[str], *, causal: bool, topology: Mapping[str, Topology | str]
) -> dict[str, Place]:
    """The places at these paths. Every mistake is found before anything is changed."""
    survey = Survey(model, example)
    for path in (*paths, *topology):
        if path not in survey.sightings:
            raise SlotError(f"the model has no module {path!r}; {_near(path, survey.sightings)}")
    stated = {path: named_layout(kind) for path, kind in topology.items()}
    places = {}
    for path in paths:
        place = survey.examine(path, causal=causal, stated=stated.get(path))
        if isinstance(place, str):
            raise SlotError(f"no slot can be attached to {path!r}: {place}")
        if has_slot(survey.sightings[path].module):
            raise SlotError(f"{path!r} carries a slot of another Growable already; call release() on that one first")
        places[path] = place
    found = list(places.values())
    reach, capacity = survey.reaches(found), survey.capacities(found)
    return {path: replace(place, reach=reach[path], capacity=capacity[path]) for path, place in places.items()}


def has_slot(module: nn.Module) -> bool:
    """Whether a slot hangs on this module already."""
    return any(isinstance(getattr(hook, "__self__", None), Slot) for hook in module._forward_hooks.values())


def _describe(output: Any) -> str:
    if isinstance(output, (tuple, list)) and output:
        return f"a {type(output).__name__} that starts with {type(output[0]).__name__}"
    return f"of type {type(output).__name__}"


def _layout_help(dimensions: int) -> str:
    kinds = {3: '"BCT", "BTC" or "TBC"', 4: '"BCHW" or "BHWC"', 5: '"BCDHW" or "BDHWC"'}
    if dimensions not in kinds:
        return "slots take 2 to 5 dimensions"
    return f"say topology={{path: axes}}, with axes such as {kinds[dimensions]}"


def _near(path: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(path, sorted(known), n=3, cutoff=0.4)
    if close:
        return "near it: " + ", ".join(repr(c) for c in close)
    top = sorted({p.split(".")[0] for p in known})
    return "it has: " + ", ".join(repr(t) for t in top[:8])
