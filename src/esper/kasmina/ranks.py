"""The processes, ranks, that train one model together under DistributedDataParallel: how a model that grows on each of them stays the same.

torch reduces the gradients of what it found when it wrapped the model. Seeds come later, so theirs are reduced here, at the end of each
backward pass. Commands are given by every rank alike, which is checked as they are given; that the models are equal is checked bit for bit
at the end of each epoch. What ranks say to each other goes through a group of its own on the CPU, apart from the gradients'.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.variable import Variable
from torch.utils import _pytree as pytree

from esper.kasmina.fingerprint import compare_records, record_of, same_shapes, sum_of_bits
from esper.kasmina.slot import Slot, Slots
from esper.leyline.errors import EsperError, RankError
from esper.leyline.stages import OCCUPIED, Stage

T = TypeVar("T")


class Ranks:
    """This process and the others that train the same model. Made when DistributedDataParallel wraps the model.

    group: theirs. device: where the model is. local: names of parameters that torch was told to leave to each rank. joining: whether ranks
    may stop at different steps at present, as inside `DistributedDataParallel.join()`.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device, local: Collection[str], joining: Callable[[], bool]) -> None:
        if not dist.is_gloo_available():
            raise RankError("a Growable under DistributedDataParallel needs torch's gloo backend for its coordination; this torch lacks it")
        self.rank, self.size, self.local = dist.get_rank(group), dist.get_world_size(group), frozenset(local)
        self._joining = joining
        self._timeout = group._get_backend(device).options._timeout
        members = dist.get_process_group_ranks(group)
        # Of some processes only where the others do not take part, and need not know of it.
        some = len(members) < dist.get_world_size()
        control = dist.new_group(members, self._timeout, "gloo", use_local_synchronization=some)
        # torch keeps them until destroy_process_group(), which waits for their threads. Kept here too they would live until Python ends,
        # when a thread that has just sent something must not touch Python's objects any more, and the process would be aborted.
        self._groups = weakref.ref(group), weakref.ref(control)
        self._backward = -1
        """The backward pass at whose end gradients are, or were last, reduced."""
        self._reduced = True
        """Whether gradients of the step to come have been reduced, or none had to be."""
        self._unseen = ""
        """The class of an output of the model in which no tensor was found."""
        self._watching = True

    @property
    def are_there(self) -> bool:
        """Whether the ranks can still speak to each other: until destroy_process_group()."""
        return all(group() is not None for group in self._groups)

    @property
    def _group(self) -> dist.ProcessGroup:
        found = self._groups[0]()
        assert found is not None, "the process group was destroyed"
        return found

    @property
    def _control(self) -> dist.ProcessGroup:
        found = self._groups[1]()
        assert found is not None, "the process group was destroyed"
        return found

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, whose figures and decisions count for all."""
        return self.rank == 0

    # Gradients

    def watch(self, output: Any, slots: Slots) -> None:
        """Have the seeds' gradients reduced at the end of a backward pass through this output of the model."""
        # Also while nothing grows yet: a training that could not go on with the first seed ends before it has begun.
        if self.size > 1 and self._joining():
            raise RankError(
                "a rank that has come to its end cannot stand in for the gradients of seeds, as join() has it do for those of the host; "
                "give every rank the same number of steps, without join(): drop the last, incomplete batch"
            )
        if self.size == 1 or not self._watching or not torch.is_grad_enabled() or not any(map(_learns, slots.values())):
            return
        tensors = [leaf for leaf in _leaves(output) if isinstance(leaf, Tensor)]
        if not tensors:
            self._unseen, self._reduced = type(output).__name__, False
        for tensor in tensors:
            if tensor.grad_fn is not None:
                tensor.register_hook(lambda _: self._enter_backward(slots))

    def _enter_backward(self, slots: Slots) -> None:
        # Once for each pass, however many outputs there are. By its number: of a pass that raised nothing remains.
        backward = torch._C._current_graph_task_id()
        if backward != self._backward:
            self._backward = backward
            engine = Variable._execution_engine
            # Last of all that is called at the end of the pass: torch waits there for what it sends itself, whose hooks, as PowerSGD's, may
            # begin one message when another has arrived. Between those, at a moment that differs, ranks would take one for another.
            engine.queue_callback(lambda: engine.queue_callback(lambda: self._leave_backward(slots)))

    @torch.no_grad()
    def _leave_backward(self, slots: Slots) -> None:
        parameters = _learning(slots)
        for parameter, grad in zip(parameters, self.mean(parameters, [p.grad for p in parameters]), strict=True):
            if grad is not None and parameter.grad is None:
                parameter.grad = torch.empty_like(parameter).copy_(grad)  # in its own memory layout, which fused optimisers ask for
            elif grad is not None and parameter.grad is not None:
                parameter.grad.copy_(grad)
        self._reduced = True

    def check_reduced(self, slots: Slots) -> None:
        """Before an optimiser's step: raise RankError where seeds have gradients that could not be reduced."""
        if not self._reduced and any(p.grad is not None for p in _learning(slots)):
            raise RankError(
                f"the gradients of the seeds were not reduced over the ranks: no tensor was found in the model's output, of class "
                f"{self._unseen}; return a tensor, or a tuple, list, dict or dataclass of tensors"
            )

    @torch.no_grad()
    def mean(self, parameters: Sequence[nn.Parameter], grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The mean over the ranks of each of these gradients. One that is missing counts as 0, and stays missing if every rank lacks it."""
        if self.size == 1:
            return list(grads)
        found: list[Tensor | None] = [None] * len(grads)
        kinds = defaultdict[tuple[torch.device, torch.dtype], list[int]](list)
        for i, parameter in enumerate(parameters):
            kinds[parameter.device, parameter.dtype].append(i)
        for (device, dtype), places in kinds.items():
            sizes = [parameters[i].numel() for i in places]
            # The numbers of all, then for each a 1 if it is there.
            flat = torch.ones(sum(sizes) + len(places), device=device, dtype=dtype)
            *parts, there = flat.split([*sizes, len(places)])
            here = [grads[i] is not None for i in places]
            for k, (i, part) in enumerate(zip(places, parts, strict=True)):
                if (grad := grads[i]) is not None:
                    part.copy_(grad.reshape(-1))
                else:
                    part.zero_()
                    there[k] = 0.0
            self._collect("the seeds' gradients", partial(dist.all_reduce, flat.div_(self.size), group=self._group))
            any_has = here if all(here) else (there > 0).tolist()  # read from the device only where it is in doubt
            for i, mean, has in zip(places, parts, any_has, strict=True):
                found[i] = mean.view(parameters[i].shape) if has else None
        return found

    # Words

    def agree(self, what: str, outcome: Any = None) -> None:
        """Raise RankError unless every rank is here with the same words and the same outcome."""
        for rank, theirs in enumerate(self._exchange(what, outcome)):
            if theirs != outcome:
                raise RankError(f"{what} ended in {outcome} on rank {self.rank} and in {theirs} on rank {rank}; the ranks are not equal")

    def each(self, what: str, make: Callable[[], T]) -> T:
        """What `make` gives on this rank, once every rank has called it. Where it raises on one, RankError is raised on all."""
        return self._attempt(what, make)[0]

    def first(self, what: str, make: Callable[[], T]) -> T:
        """The same, and what it gives on rank 0."""
        return self._attempt(what, make)[1]

    def from_first(self, what: str, make: Callable[[], T]) -> T:
        """What `make` gives on rank 0, where alone it is called."""
        return self._attempt(what, make if self.leads else _nothing)[1]

    def _attempt(self, what: str, make: Callable[[], Any]) -> tuple[Any, Any]:
        """What was made here, and what on rank 0."""
        made, problem, cause = None, "", None
        try:
            made = make()
        except RankError:
            raise
        except Exception as error:
            problem, cause = f"{type(error).__name__}: {error}", error
        found = self._exchange(what, (problem, made if self.leads else None))
        for rank, (said, _) in enumerate(found):
            if said:
                raise RankError(f"{what} failed on rank {rank}: {said}") from cause
        return made, found[0][1]

    def _exchange(self, what: str, value: Any) -> list[Any]:
        """What every rank has to say here, in their order."""
        found: list[Any] = [(what, value)] * self.size
        if self.size > 1:
            # With a barrier first, because it is the one that tells who is missing.
            self._collect(what, lambda: dist.monitored_barrier(self._control, self._timeout, wait_all_ranks=True))
            self._collect(what, lambda: dist.all_gather_object(found, (what, value), group=self._control))
        for rank, (theirs, _) in enumerate(found):
            if theirs != what:
                raise RankError(f"rank {self.rank} is at {what} and rank {rank} at {theirs}; every rank gives the same commands in order")
        return [value for _, value in found]

    def _collect(self, what: str, collective: Callable[[], object]) -> None:
        try:
            collective()
        except RuntimeError as error:
            raise RankError(
                f"rank {self.rank} is at {what}, where every rank has to come within {self._timeout.total_seconds():g} s, and not all did: "
                f"one was lost, or does something else than this one ({error})"
            ) from error

    # Being equal

    def join(self, slots: Slots) -> None:
        """What has grown already when the model is wrapped: the same on every rank, with rank 0's values, as torch does with the host's."""
        compare_records(self._exchange("the comparison when it was wrapped", record_of(slots)), "when it was wrapped")
        self._broadcast([tensor for slot in slots.values() for tensor in (*slot.seed_parameters(), *_buffers(slot))])

    def verify(self, model: nn.Module, slots: Slots, when: str) -> None:
        """Raise RankError unless model and seeds are the same on every rank, bit for bit. Buffers of seeds become those of rank 0."""
        if self.size == 1:
            return
        records = self._exchange(f"the comparison {when}", record_of(slots))
        if not same_shapes(records):
            compare_records(records, when)
        self._broadcast([buffer for slot in slots.values() for buffer in _buffers(slot)])
        named = {name: parameter for name, parameter in model.named_parameters() if name not in self.local}
        parts = [sum_of_bits(parameter) for parameter in named.values()]
        sums = torch.stack([part.to(parts[0].device) for part in parts]).cpu()  # one wait for the device
        both = torch.stack((sums, ~sums))  # the smallest of ~sums is that of the largest
        self._collect(f"the comparison {when}", lambda: dist.all_reduce(both, dist.ReduceOp.MIN, group=self._control))
        differs = both[0] != ~both[1]
        if differs.any():
            name = list(named)[int(differs.nonzero()[0])]
            raise RankError(
                f"the ranks are not equal {when}: parameter {name!r} differs, {int(differs.sum())} of {len(named)} do; whatever changes "
                "a model in training has to do so on every rank alike, and a loop runs the wrapped model, not the one inside"
            )
        compare_records(records, when)

    @torch.no_grad()
    def _broadcast(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors if self.size > 1 else ():
            value = tensor.detach().contiguous()
            self._collect("the seeds' values", partial(dist.broadcast, value, group=self._group, group_src=0))
            tensor.copy_(value)


@contextmanager
def unwatched(ranks: Ranks | None) -> Iterator[None]:
    """Inside, no gradient is reduced: whoever runs the model there does it with what comes out."""
    if ranks is None:
        yield
        return
    ranks._watching = False
    try:
        yield
    finally:
        ranks._watching = True


@contextmanager
def alike(ranks: Ranks | None, what: str) -> Iterator[list[Any]]:
    """Inside, every rank does the same with the same outcome, which is put into the list; the error of a refusal is an outcome too."""
    outcome: list[Any] = []
    if ranks is None:
        yield outcome
        return
    ranks.agree(what)
    try:
        yield outcome
    except RankError:
        raise
    except EsperError as error:
        ranks.agree(what, str(error))
        raise
    ranks.agree(what, str(outcome))


def _learning(slots: Slots) -> list[nn.Parameter]:
    """The parameters of seeds that an ordinary backward pass reaches."""
    return [p for slot in slots.values() if _learns(slot) for p in slot.learning_parameters() if p.requires_grad]


def _learns(slot: Slot) -> bool:
    stage = slot.state.stage
    return stage in OCCUPIED and stage is not Stage.GERMINATED and not (stage is Stage.TRAINING and slot.isolation == "shadow")


def _buffers(slot: Slot) -> list[Tensor]:
    return [buffer for module in (slot.seed, slot.gating) if module is not None for buffer in module.buffers()]


def _leaves(output: Any) -> Iterator[Any]:
    """Whatever lies in the output of a model, dataclasses taken apart."""
    for leaf in pytree.tree_leaves(output):
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            for field in dataclasses.fields(leaf):
                yield from _leaves(getattr(leaf, field.name))
        else:
            yield leaf


def _nothing() -> Any:
    return None
