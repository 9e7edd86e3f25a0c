"""The zoo: networks of many kinds with an input for each and the places of its slots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina.hosts import ConvHost, GPTHost
from tests.kasmina import networks

BATCH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Specimen:
    """One kind of network: how to make it, what to feed it, where its slots are."""

    name: str
    factory: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    """Makes an example input, which is random data to train on as well."""
    slots: tuple[str, ...]
    batch_axis: int = 0
    plain: bool = True
    """Made of the classes in networks.py and torch's alone; esper's own hosts are not."""

    def model(self) -> nn.Module:
        """The network with the same weights each time, in training mode."""
        with torch.random.fork_rng():
            torch.manual_seed(1)
            return self.factory()

    def example(self, seed: int = 0) -> Any:
        """An input, or another one for another seed."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.inputs()


def run(model: nn.Module, example: Any) -> Any:
    """Call a model with an example input of any kind."""
    if isinstance(example, dict):
        return model(**example)
    return model(*example) if isinstance(example, tuple) else model(example)


def leaves(output: Any) -> list[Tensor]:
    """The tensors of an output, in order."""
    return [output] if isinstance(output, Tensor) else [leaf for item in output for leaf in leaves(item)]


def loss_of(output: Any) -> Tensor:
    """A loss whose target differs from place to place, so that no two features get the same gradient."""
    terms = [F.mse_loss(leaf, torch.linspace(-1, 1, leaf.numel(), dtype=leaf.dtype).view_as(leaf)) for leaf in leaves(output)]
    return torch.stack(terms).sum()


def _images(channels: int, size: int = 8) -> Callable[[], Tensor]:
    return lambda: torch.randn(BATCH, channels, size, size)


def _tokens(known: int, length: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(0, known, (BATCH, length))


ZOO: tuple[Specimen, ...] = (
    Specimen(name="residual", factory=networks.ResidualNet, inputs=_images(3), slots=("stem", "layer1", "layer2")),
    Specimen(name="frozen_norms", factory=networks.frozen_norms, inputs=_images(3), slots=("layer1", "layer2.bn1")),
    Specimen(
        name="channels_last",
        factory=networks.channels_last,
        inputs=lambda: torch.randn(BATCH, 3, 8, 8).to(memory_format=torch.channels_last),
        slots=("layer1", "layer2"),
    ),
    Specimen(name="unet", factory=networks.UNet, inputs=_images(2), slots=("down1", "down2", "middle", "up", "fuse")),
    Specimen(name="tuple", factory=networks.TupleNet, inputs=_images(3), slots=("block1", "block2")),
    Specimen(name="namedtuple", factory=networks.NamedTupleNet, inputs=lambda: torch.randn(BATCH, 4, 5), slots=("block1", "block2")),
    Specimen(name="in_place", factory=networks.InPlaceNet, inputs=_images(3), slots=("conv1", "conv2")),
    Specimen(name="tied", factory=networks.TiedNet, inputs=_tokens(11, 5), slots=("embedding", "mix")),
    Specimen(name="lstm", factory=networks.LSTMNet, inputs=lambda: torch.randn(BATCH, 5, 4), slots=("embed", "lstm", "trunk")),
    Specimen(name="mixer", factory=networks.Mixer, inputs=_images(3), slots=("patches", "blocks.0", "blocks.1.channel_mix")),
    Specimen(name="mlp", factory=networks.plain_mlp, inputs=lambda: torch.randn(BATCH, 6), slots=("1", "2")),
    Specimen(name="sound", factory=networks.SoundNet, inputs=lambda: torch.randn(BATCH, 2, 12), slots=("stem", "body.0", "body.1")),
    Specimen(name="dropout", factory=networks.DropoutNet, inputs=_images(1), slots=("stem", "body.1", "drop")),
    Specimen(
        name="encoder",
        factory=networks.Encoder,
        inputs=lambda: {"tokens": torch.randint(0, 9, (BATCH, 5)), "mask": torch.tensor([[False] * 4 + [True]] * BATCH)},
        slots=("blocks.0.attention", "blocks.0", "blocks.1"),
    ),
    Specimen(name="torch_encoder", factory=networks.TorchEncoder, inputs=_tokens(9, 5), slots=("encoder.layers.1", "encoder.layers.2")),
    Specimen(name="squeeze", factory=networks.SqueezeNet, inputs=_images(1), slots=("blocks.0", "blocks.1")),
    Specimen(
        name="recommender",
        factory=networks.Recommender,
        inputs=lambda: (torch.randint(0, 20, (BATCH,)), torch.randn(BATCH, 5)),
        slots=("users", "tower"),
    ),
    Specimen(name="checkpointed", factory=networks.CheckpointedNet, inputs=_images(1), slots=("block.0", "block")),
    Specimen(name="channels_last_axes", factory=networks.ChannelsLastNet, inputs=_images(3), slots=("block1", "block2")),
    Specimen(
        name="time_first",
        factory=networks.TimeFirstNet,
        inputs=lambda: torch.randn(5, BATCH, 4),
        slots=("embed", "layers.0", "layers.1", "recurrent"),
        batch_axis=1,
    ),
    Specimen(name="volume", factory=networks.VolumeNet, inputs=lambda: torch.randn(BATCH, 1, 4, 4, 4), slots=("stem", "body")),
    Specimen(name="series", factory=networks.SeriesNet, inputs=lambda: torch.randn(BATCH, 2, 12), slots=("block1", "block2")),
    Specimen(
        name="conv_host",
        factory=lambda: ConvHost(1, 5, (4, 6)),
        inputs=_images(1),
        slots=("blocks.0.features", "blocks.0", "blocks.1.features"),
        plain=False,
    ),
    Specimen(
        name="gpt_host",
        factory=lambda: GPTHost(11, block=6, width=16, heads=2, layers=2, dropout=0.1, checkpoint=True),
        inputs=_tokens(11, 6),
        slots=("blocks.0", "blocks.1"),
        plain=False,
    ),
)

BY_NAME = {specimen.name: specimen for specimen in ZOO}
