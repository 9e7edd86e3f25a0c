"""Tasks that classify images with a small convolutional host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina.hosts import ConvHost
from esper.leyline.errors import ConfigError, DataError
from esper.tolaria.data.formats import Images
from esper.tolaria.data.splits import Data, Split, stratified
from esper.tolaria.data.streams import draws
from esper.tolaria.tasks import checks
from esper.tolaria.tasks.family import Member
from esper.tolaria.tasks.registry import Kind, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTask(Task):
    """Classify images: a `ConvHost` of the member's widths, kernel and depth, trained on what `read` gives."""

    kind: Kind = "classification"
    shape: tuple[int, int, int]
    """Channels, height and width of an image."""
    read: Callable[[Path | None], Images]
    """Reads the data from a folder or file, or from where such data is kept."""
    val_share: float = 0.1
    """The part of the training data that becomes val."""
    shift: int = 4
    """Augmentation moves an image by up to so many pixels each way; what comes in from outside is grey, the mean of the data."""
    mirror: bool = True
    """Augmentation turns every second image left to right."""

    def __post_init__(self) -> None:
        if not self.family.standard.widths:
            raise ConfigError(f"task {self.name!r}: the standard member has no 'widths'; expected the channels of at least one block")

    def load(self, source: Path | None, device: torch.device) -> Data:
        """The data on the device: val cut from train with the classes in proportion, pixels normalised by train's mean and std."""
        images = self.read(source)
        checks.is_a(images, Images, self._named("read"))
        images.check(self.shape, self.classes)
        labels = torch.from_numpy(images.y_train.astype(np.int64))
        val, train = stratified(labels, round(len(labels) * self.val_share), "val")
        x = torch.from_numpy(images.x_train.copy())
        mean, std = _statistics(x[train])

        def on_device(pixels: Tensor, targets: Tensor) -> Split:
            normalised = pixels.to(device).float().sub_(mean.to(device)).div_(std.to(device))
            return Split(normalised, targets.to(device))

        # Taken out here, so that what is kept until final figures are wanted is the test images alone.
        x_test, y_test = torch.from_numpy(images.x_test.copy()), torch.from_numpy(images.y_test.astype(np.int64))

        return Data(
            classes=self.classes,
            train=on_device(x[train], labels[train]),
            val=on_device(x[val], labels[val]),
            test=lambda: on_device(x_test, y_test),
            fingerprint=images.fingerprint(),
            origin=images.origin,
        )

    def make_host(self, member: Member, classes: int) -> tuple[nn.Module, dict[str, str]]:
        """A ConvHost. Row 0 of the slots is before the pools, row 1 after them."""
        host = ConvHost(self.shape[0], classes, member.widths, kernel=member.kernels or member.kernel, depth=member.depth)
        paths = host.slot_paths(after_pool=member.slots != "before")
        return host, {slot: path for slot, path in paths.items() if member.slots != "after" or slot.startswith("r1")}

    def example(self, member: Member) -> Tensor:
        """Two grey images, (2, C, H, W)."""
        return torch.zeros(2, *self.shape)

    def training_set(self, data: Data, member: Member, seed: int) -> Split:
        """The training split, or `train_size` of it with the classes in proportion; with `label_noise`, some labels replaced at random."""
        split, wanted = data.train, member.train_size
        if wanted > len(split):
            raise DataError(f"{data.origin}: the member asks for {wanted:,} training images; there are {len(split):,}")
        if wanted:
            chosen = stratified(split.y.cpu(), wanted, "subset", seed)[0].to(split.y.device)
            split = Split(split.x[chosen], split.y[chosen])
        if member.label_noise:
            split = Split(split.x, _noisy(split.y, data.classes, member.label_noise, seed))
        return split

    def augment(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Shift each image and mirror every second one."""
        span = 2 * self.shift + 1
        down, right = drawn % span, drawn // span % span
        mirrored = (drawn // span**2 % 2).bool() & self.mirror
        return _moved(x, down.to(x.device), right.to(x.device), mirrored.to(x.device), self.shift)


def _statistics(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel, (C, 1, 1), float32. Sums of integers, so that the order of adding plays no part."""
    histograms = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in pixels.unbind(1)]).double()
    levels = torch.arange(256, dtype=torch.float64)
    count = histograms.sum(1)
    mean = (histograms * levels).sum(1) / count
    variance = (histograms * levels**2).sum(1) / count - mean**2
    # A channel with a single value has nothing to scale.
    std = torch.where(variance > 0, variance, 1.0).sqrt()
    return mean.float()[:, None, None], std.float()[:, None, None]


def _noisy(y: Tensor, classes: int, share: float, seed: int) -> Tensor:
    """A copy of the labels in which `share` of them, rounded, are replaced by random classes, the right one among them."""
    positions = torch.arange(len(y))
    replaced = torch.argsort(draws(positions, "noise", seed), stable=True)[: round(share * len(y))]
    noisy = y.clone()
    noisy[replaced.to(y.device)] = (draws(replaced, "noise", "label", seed) % classes).to(y.device)
    return noisy


def _moved(x: Tensor, down: Tensor, right: Tensor, mirrored: Tensor, shift: int) -> Tensor:
    """Each image of (B, C, H, W) cut out of a frame of zeros, `shift` wide, at (down, right), and mirrored where told."""
    batch, channels, height, width = x.shape
    frame = F.pad(x, (shift, shift, shift, shift)).flatten(2)
    columns = torch.arange(width, device=x.device)
    columns = torch.where(mirrored[:, None], columns.flip(0), columns) + right[:, None]
    rows = torch.arange(height, device=x.device) + down[:, None]
    places = (rows[:, :, None] * (width + 2 * shift) + columns[:, None, :]).flatten(1)
    return frame.gather(2, places[:, None].expand(-1, channels, -1)).view(batch, channels, height, width)
