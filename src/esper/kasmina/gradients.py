"""Statistics of gradients, gathered on the device; nothing waits for the device until somebody reads them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from esper.leyline.reports import EXPLODING_NORM, VANISHING_SHARE, GradientStats

MAX_RATIO = 10.0
MIN_HOST_NORM = 1e-8
SUMS = 6
"""Figures that a meter keeps."""
MOST_WAITING = 256
"""Steps that wait to be summed, at most."""


class Scale(NamedTuple):
    """How a gradient scaler leaves the gradients to an optimiser that undoes the scaling itself. Both 0-d, on the device."""

    factor: Tensor
    skipped: Tensor
    """Not 0 where the step will be skipped, because an infinity was found."""


class GradientMeter(nn.Module):
    """Running sums over the steps of an epoch, as a buffer, so that they move and are saved with the model.

    sums: steps, sum of norms, steps with a non-finite norm, sums of the shares that vanish and that explode, and the largest norm of a
    tensor.
    Steps wait to be summed until somebody asks, and are then taken in together: on small hosts an operation costs as much as the training
    of a layer.
    """

    sums: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros(SUMS))
        self._waiting: list[tuple[Tensor, Tensor, Tensor | None]] = []
        """Of each step that is not in the sums yet: the norms of its tensors, that over all, and where it may be skipped whether it was."""

    @torch.no_grad()
    def add(self, parameters: Sequence[nn.Parameter], scale: Scale | None = None) -> Tensor | None:
        """Add one step's gradients; returns their norm over all tensors (0-d), or None when there is no gradient at all.

        scale: what a gradient scaler has done to them and not undone yet; a step that it skips counts for nothing.
        """
        norms = tensor_norms(parameters)
        if norms is None:
            return None
        if scale is not None:
            norms = norms / scale.factor
        total = torch.linalg.vector_norm(norms, dim=0)
        # A scaler may count in place whether a step is skipped.
        self._waiting.append((norms, total, None if scale is None else scale.skipped.clone()))
        if len(self._waiting) >= MOST_WAITING:
            self.settle()
        return total

    @torch.no_grad()
    def settle(self) -> Tensor:
        """Take the steps that wait into the sums, in their order; returns the sums. Waits for no device."""
        waiting, self._waiting = self._waiting, []
        for _, alike in groupby(waiting, key=lambda step: (len(step[0]), step[2] is None)):
            norms, totals, skipped = zip(*alike, strict=True)
            steps, peaks = step_sums(torch.stack(norms, 1), torch.stack(totals))
            if skipped[0] is not None:
                counts = torch.stack(skipped) == 0
                steps, peaks = torch.where(counts, steps, 0.0), torch.where(counts, peaks, 0.0)
            for step in steps.unbind(1):
                self.sums[:-1].add_(step)
            self.sums[-1:].clamp_(min=peaks.amax())
        return self.sums

    def read(self) -> GradientStats | None:
        """The statistics so far; None before the first step. Waits for the device."""
        return gradient_stats(self.settle().tolist())

    def reset(self) -> None:
        """Forget everything, for the next epoch."""
        self._waiting.clear()
        self.sums.zero_()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> GradientMeter:
        self.settle()
        # Follows the model to its device but not into half precision, where counts stop growing: bfloat16 has no 257.
        super()._apply(fn, recurse)
        self.sums = self.sums.float()
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self.settle()
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._waiting.clear()
        super()._load_from_state_dict(*args, **kwargs)


def step_sums(norms: Tensor, total: Tensor, present: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """What steps add, from the norms of their gradients, (tensors, ...), and those over all tensors, (...): what all sums of a meter but
    the last grow by, (SUMS - 1, ...), and the largest norm of a tensor, (...).

    present: which tensors there are, of the same shape as norms, where those of many are in one table; the others have a norm of 0.
    """
    norm = torch.nan_to_num(total, 0.0, 0.0, 0.0)
    vanishing = norms <= VANISHING_SHARE * norm  # where all are 0, all vanish
    flags = torch.stack((vanishing, norms > EXPLODING_NORM))  # (2, tensors, ...)
    shares = flags.mean(1, dtype=torch.float32) if present is None else (flags & present).sum(1) / present.sum(0).clamp(min=1)
    step = torch.stack((torch.ones_like(norm), norm, (norm != total).float(), *shares.unbind()))
    return step, torch.nan_to_num(norms.amax(0), 0.0, 0.0, 0.0)


def gradient_stats(sums: Sequence[float]) -> GradientStats | None:
    """The statistics that a meter's sums, read from the device, stand for; None before the first step."""
    steps, norm, broken, vanishing, exploding, peak = sums
    if steps == 0:
        return None
    return GradientStats(
        steps=int(steps),
        norm=norm / max(1.0, steps - broken),
        peak=peak,
        vanishing=vanishing / steps,
        exploding=exploding / steps,
        finite=broken == 0,
    )


def tensor_norms(parameters: Sequence[nn.Parameter]) -> Tensor | None:
    """Norm of each parameter's gradient, 0 where one has none; shape (parameters,). None when no parameter has a gradient."""
    gradients = [p.grad for p in parameters]
    if all(gradient is None for gradient in gradients):
        return None
    return torch.stack([torch.zeros((), device=p.device) if g is None else _norm(g) for p, g in zip(parameters, gradients, strict=True)])


def _norm(grad: Tensor) -> Tensor:
    """Norm as a float32 scalar, without an overflow on the way in half precision."""
    if grad.dtype is torch.float32 and grad.layout is torch.strided:
        return torch.linalg.vector_norm(grad)
    values = grad.coalesce().values() if grad.is_sparse else grad
    return torch.linalg.vector_norm(values, dtype=torch.promote_types(values.dtype, torch.float32)).float()


def gradient_ratio(seed: GradientStats, host: GradientStats, seed_parameters: int, host_parameters: int) -> float:
    """Gradient of the seed against the host's, each per square root of its parameters: (|g_s| / |g_h|) sqrt(P_h / P_s), at most 10."""
    if host.norm < MIN_HOST_NORM:
        return 0.0
    return min(MAX_RATIO, seed.norm / host.norm * math.sqrt(host_parameters / seed_parameters))
