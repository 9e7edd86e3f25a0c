"""Small networks of many kinds, written as anybody would write them.

Nothing here needs esper: what is harvested from these networks is loaded where esper is not installed, with this file alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class ResidualBlock(nn.Module):
    """Batch norm, in-place ReLU and an in-place sum."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Identity() if inputs == width else nn.Conv2d(inputs, width, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += self.shortcut(x)
        return self.relu(y)


class ResidualNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.layer1 = ResidualBlock(8, 8)
        self.layer2 = ResidualBlock(8, 12)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer2(self.layer1(self.stem(x))).mean((2, 3)))


def frozen_norms() -> nn.Module:
    """A network in training mode whose batch norms were put into eval mode by hand, as fine-tuning does."""
    model = ResidualNet()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return model


def channels_last() -> nn.Module:
    """A network that keeps its maps and weights in the other memory layout."""
    model = ResidualNet()
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return model


class UNet(nn.Module):
    """Two levels with a skip that is concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.down2 = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(6, 10, 3, padding=1), nn.ReLU())
        self.middle = nn.Sequential(nn.Conv2d(10, 10, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(10, 6, 2, stride=2)
        self.fuse = nn.Sequential(nn.Conv2d(12, 6, 3, padding=1), nn.ReLU())
        self.out = nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.down1(x)
        y = self.up(self.middle(self.down2(skip)))
        return self.out(self.fuse(torch.cat([skip, y], 1)))


class TupleBlock(nn.Module):
    """Returns its features and the attention map they came from."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.score = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        weight = torch.sigmoid(self.score(x) / temperature)
        return x + weight * torch.relu(self.conv(x)), weight


class TupleNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.block1 = TupleBlock(6)
        self.block2 = TupleBlock(6)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, first = self.block1(self.stem(x))
        x, second = self.block2(x, temperature=0.5)
        return self.head(x.mean((2, 3))), (first + second).mean((1, 2, 3))


class Features(NamedTuple):
    """What a block of NamedTupleNet returns."""

    tokens: Tensor
    pooled: Tensor


class NamedTupleBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor, *, residual: bool = True) -> Features:
        y = F.gelu(self.linear(self.norm(x)))
        y = x + y if residual else y
        return Features(tokens=y, pooled=y.mean(1))


class NamedTupleNet(nn.Module):
    """Reads the blocks' outputs by the names of their fields, and hands over an argument by keyword only."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 8)
        self.block1 = NamedTupleBlock(8)
        self.block2 = NamedTupleBlock(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        first = self.block1(self.embed(x), residual=False)
        second = self.block2(first.tokens)
        return self.head(first.pooled + second.tokens.amax(1))


class InPlaceNet(nn.Module):
    """Overwrites features in place right behind the modules that carry slots."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1)
        self.conv2 = nn.Conv2d(6, 6, 3, padding=1)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu_(self.conv1(x))
        y = self.conv2(x)
        y.mul_(0.5).add_(1.0)
        y += x
        y[:, :2] = 0.0
        return self.head(F.leaky_relu_(y, 0.1).mean((2, 3)))


class TiedNet(nn.Module):
    """A language model whose head is the embedding's own parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.mix = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return self.head(self.norm(x + self.mix(x)))


class LSTMNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 6)
        self.lstm = nn.LSTM(6, 8, num_layers=2, batch_first=True)
        self.trunk = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y, (h, _) = self.lstm(self.embed(x))
        return self.head(self.trunk(y[:, -1] + h[-1]))


class MixerBlock(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.token_mix = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.norm2 = nn.LayerNorm(width)
        self.channel_mix = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.token_mix(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel_mix(self.norm2(x))


class Mixer(nn.Module):
    """MLP-mixer on patches, which a convolution cuts and turns into tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = Patches(3, 10)
        self.blocks = nn.ModuleList([MixerBlock(4, 10), MixerBlock(4, 10)])
        self.norm = nn.LayerNorm(10)
        self.head = nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class Patches(nn.Module):
    """(B, C, H, W) to tokens (B, H * W / 16, d): convolution inside, tokens out."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, width, 4, stride=4)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).flatten(2).transpose(1, 2)


def plain_mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3))


class CausalBlock(nn.Module):
    """Pads and cuts off the end: its output is a slice, which is not contiguous."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, width, 3, padding=2 * dilation, dilation=dilation)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.norm(self.conv(x)[..., : x.shape[-1]]))[..., 1:]


class SoundNet(nn.Module):
    """A 1-d convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(2, 6, 5, padding=2)
        self.body = nn.Sequential(CausalBlock(6, 1), CausalBlock(6, 2))
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x)).mean(-1))


class DropoutNet(nn.Module):
    """Draws random numbers before, between and behind its slots."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Dropout2d(0.2))
        self.body = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.ReLU(), nn.Dropout(0.3))
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.body(self.stem(x)).mean((2, 3))))


class EncoderBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm1 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y, _ = self.attention(x, x, x, key_padding_mask=mask, need_weights=False)
        x = self.norm1(x + y)
        return self.norm2(x + self.mlp(x))


class Encoder(nn.Module):
    """A transformer encoder called by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 8)
        self.blocks = nn.ModuleList([EncoderBlock(8), EncoderBlock(8)])
        self.head = nn.Linear(8, 2)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, mask=mask)
        return self.head(x[:, 0])


class TorchEncoder(nn.Module):
    """torch's own transformer encoder, which looks into its first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(8, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


class SqueezeNet(nn.Module):
    """Feature maps from a block whose last layers are linear: a squeeze-and-excite block."""

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.conv = nn.Conv2d(width, width, 3, padding=1)
            self.squeeze = nn.Sequential(nn.Linear(width, 2), nn.ReLU(), nn.Linear(2, width), nn.Sigmoid())

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return y * self.squeeze(y.mean((2, 3)))[:, :, None, None]

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.blocks = nn.Sequential(self.Block(6), self.Block(6))
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Recommender(nn.Module):
    """Two inputs, embeddings and plain vectors, and a single number out."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(20, 6)
        self.items = nn.Linear(5, 6)
        self.tower = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 8), nn.ReLU())
        self.score = nn.Linear(8, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return self.score(self.tower(torch.cat([self.users(user), self.items(item)], -1))).squeeze(-1)


class CheckpointedNet(nn.Module):
    """Recomputes its blocks in the backward pass, the slots inside them included."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.block = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.ReLU(), nn.Dropout(0.2), nn.Conv2d(6, 6, 3, padding=1))
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self.block, self.stem(x), use_reentrant=False) if self.training else self.block(self.stem(x))
        return self.head(x.mean((2, 3)))


class ReadsWeight(nn.Module):
    """Calls a layer and reads its weight as well, as a penalty would."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)
        self.other = nn.Linear(6, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.other(self.layer(x))) + self.layer.weight.square().mean()


class ChannelsLastNet(nn.Module):
    """Blocks of linear layers on images with their channels last, as many as the image is high and wide."""

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm, self.widen, self.narrow = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.narrow(F.gelu(self.widen(self.norm(x))))

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 4, 2, stride=2)
        self.block1, self.block2 = self.Block(4), self.Block(4)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).permute(0, 2, 3, 1)
        return self.head(self.block2(self.block1(x)).mean((1, 2)))


class TimeFirstNet(nn.Module):
    """torch's encoder as it comes, with the batch as its second axis."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0) for _ in range(2))
        self.recurrent = nn.GRU(8, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.recurrent(x)[0][-1])


class VolumeNet(nn.Module):
    """Volumes, or videos: five axes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.ReLU())
        self.body = nn.Sequential(nn.Conv3d(4, 6, 3, stride=2, padding=1), nn.BatchNorm3d(6), nn.ReLU())
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x)).mean((2, 3, 4)))


class SeriesNet(nn.Module):
    """Several series side by side, each a sequence of patches: (B, series, patches, features)."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.mix = nn.LayerNorm(8), nn.Linear(8, 8)

        def forward(self, x: Tensor, **options: Tensor) -> tuple[Tensor, None]:
            return x + self.mix(self.norm(x)), None

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.block1, self.block2 = self.Block(), self.Block()
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x.unflatten(-1, (-1, 4)))
        return self.head(self.block2(self.block1(x)[0])[0].mean(2))
