"""Work that is done again and again on tensors of the same shapes: on a GPU it is captured and replayed, on a CPU it just runs.

A policy is small, so that a GPU waits for Python to start the next kernel. What was captured is started as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from esper.tolaria.training.captured import Captured, GraphPool

T = TypeVar("T")


class Repeated:
    """Work by name, and the tensors that it reads.

    What was captured reads the same memory each time. So what differs from one time to the next is `put` where it stays, and the rest,
    settings and shapes and where the parameters are, is told to `begin`: once any of that is another, all is captured anew.
    """

    def __init__(self, device: torch.device) -> None:
        self.graphs = _graphs(device)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._fits: tuple[object, ...] = ()
        self._places: dict[str, Any] = {}
        self._works: dict[object, _Work] = {}

    @property
    def captures(self) -> bool:
        """Whether anything is captured; otherwise nothing is copied either, and work may wait for the device."""
        return self.graphs is not None

    @contextmanager
    def beside(self) -> Iterator[None]:
        """In here work runs on a stream of its own, since torch's usual one cannot be captured; what follows comes after it."""
        if self.stream is None:
            yield
            return
        usual = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(usual)
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            usual.wait_stream(self.stream)

    def begin(self, *fits: object) -> None:
        """What is done from here on fits this; what was captured for anything else is dropped."""
        if fits != self._fits:
            self.forget()
            self._fits = fits

    def forget(self) -> None:
        """Drop what was captured, as tensors that it used are no longer in use."""
        self._works.clear()
        self._places.clear()

    def put(self, name: str, value: T) -> T:
        """The same value, its tensors where those of this name always are. Shapes are those of the first time."""
        if not self.captures:
            return value
        if name not in self._places:
            taken = {id(tensor) for place in self._places.values() for tensor in _tensors(place)}
            self._places[name] = _changed(value, lambda tensor: tensor if id(tensor) in taken else torch.empty_like(tensor))
        place: T = self._places[name]
        for old, new in zip(_tensors(place), _tensors(value), strict=True):
            assert old.shape == new.shape, f"{name}: {tuple(new.shape)} where {tuple(old.shape)} was"
            if old is not new:
                old.copy_(new)
        return place

    def __call__(self, name: object, work: Callable[[], T]) -> T:
        """What the work gives: tensors, alone or in tuples, dicts or dataclasses. Once captured, that of the first time is replayed."""
        if self.graphs is None:
            return work()
        if name not in self._works:
            self._works[name] = _Work(work, self.graphs)
        given: T = self._works[name]()
        return given


class _Work:
    """One piece of work, and what it gave last, which the next time writes over."""

    def __init__(self, work: Callable[[], Any], graphs: GraphPool) -> None:
        self._work, self._given = work, None
        self.captured = Captured(self._run, graphs)

    def _run(self) -> None:
        self._given = self._work()

    def __call__(self) -> Any:
        self.captured()
        return _changed(self._given, torch.clone)


def addresses(module: nn.Module) -> tuple[int, ...]:
    """Where parameters and buffers are: what was captured goes on using them there."""
    return tuple(tensor.data_ptr() for tensor in (*module.parameters(), *module.buffers()))


def _graphs(device: torch.device) -> GraphPool | None:
    return GraphPool() if device.type == "cuda" else None


def _changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same with every tensor in it changed."""
    match value:
        case Tensor():
            return change(value)
        case dict():
            return {key: _changed(each, change) for key, each in value.items()}
        case list() | tuple():
            return type(value)(_changed(each, change) for each in value)
        case _ if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{field.name: _changed(getattr(value, field.name), change) for field in fields(value)})
        case _:
            return value


def _tensors(value: Any) -> list[Tensor]:
    """Every tensor in it, always in the same order."""
    found: list[Tensor] = []

    def take(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    _changed(value, take)
    return found
