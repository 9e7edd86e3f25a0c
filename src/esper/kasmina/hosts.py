"""The built-in hosts: ordinary networks that know nothing of growing, and the places in them where slots fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recompute

from esper.kasmina.blueprints import SelfAttention
from esper.leyline.errors import ConfigError

BlockParts = Literal["both", "attention", "mlp"]
"""What a transformer block has."""
INIT_STD = 0.02
"""Standard deviation of a GPT's weights at birth."""


class ConvBlock(nn.Module):
    """`depth` times convolution, batch norm and ReLU, then a max pool that halves the map. `features` is the place before the pool."""

    def __init__(self, inputs: int, width: int, *, kernel: int, depth: int, pool: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i in range(depth):
            # No bias: the batch norm behind would take it out again.
            convolution = nn.Conv2d(inputs if i == 0 else width, width, kernel, padding=kernel // 2, bias=False)
            layers += [convolution, nn.BatchNorm2d(width), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.pool = nn.MaxPool2d(2) if pool else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.features(x))


class ConvHost(nn.Module):
    """A small image classifier: blocks of convolutions, a global mean, one linear layer. (B, channels, H, W) to logits (B, classes).

    The defaults are the 6,418-parameter host of CIFAR-10; widths (8, 16, 32, 64, 128) give its deep relative with 99,922 parameters,
    widths (1, 2, 4) with kernel 1 the impaired one with 77. Each pool halves the map, so three pools take images from 8 x 8, five from
    32 x 32; `pools` says for each block whether it has one, all by default. kernel: the size of all convolutions, or one for each block.
    """

    def __init__(
        self,
        in_channels: int = 3,
        classes: int = 10,
        widths: Sequence[int] = (8, 16, 32),
        *,
        kernel: int | Sequence[int] = 3,
        depth: int = 1,
        pools: Sequence[bool] | None = None,
    ) -> None:
        super().__init__()
        pooled = [True] * len(widths) if pools is None else list(pools)
        if not widths:
            raise ConfigError("ConvHost: widths is empty; expected the channels of at least one block")
        kernels = [kernel] * len(widths) if isinstance(kernel, int) else list(kernel)
        if len(kernels) != len(widths):
            raise ConfigError(f"ConvHost: kernel has {len(kernels)} entries; expected one for each of the {len(widths)} widths")
        if even := [size for size in kernels if size % 2 == 0]:
            raise ConfigError(f"ConvHost: kernel is {even[0]}; expected an odd size, which keeps the size of the map")
        if len(pooled) != len(widths):
            raise ConfigError(f"ConvHost: pools has {len(pooled)} entries; expected one for each of the {len(widths)} widths")
        inputs = [in_channels, *widths[:-1]]
        self.blocks = nn.Sequential(
            *(ConvBlock(i, w, kernel=k, depth=depth, pool=p) for i, w, k, p in zip(inputs, widths, kernels, pooled, strict=True))
        )
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(images).mean((2, 3)))

    def slot_paths(self, *, after_pool: bool = False) -> dict[str, str]:
        """Module path by slot id, in the order of the forward pass: row 0 before each pool and, with `after_pool`, row 1 behind it."""
        paths: dict[str, str] = {}
        for column, block in enumerate(self.blocks):
            paths[f"r0c{column}"] = f"blocks.{column}.features"
            if after_pool and isinstance(block.pool, nn.MaxPool2d):
                paths[f"r1c{column}"] = f"blocks.{column}"
        return paths


class GPTBlock(nn.Module):
    """A pre-norm transformer block: x + attention(norm(x)), then x + mlp(norm(x)), on (B, T, d); or one of the two alone."""

    def __init__(self, width: int, heads: int, *, parts: BlockParts, dropout: float, checkpoint: bool) -> None:
        super().__init__()
        self.parts = parts
        if parts != "mlp":
            self.norm1 = nn.LayerNorm(width)
            self.attention = SelfAttention(width, heads, causal=True)
        if parts != "attention":
            self.norm2 = nn.LayerNorm(width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)
        self.checkpoint = checkpoint

    def forward(self, x: Tensor) -> Tensor:
        if self.checkpoint and self.training:
            # Inside the block rather than around it, so that hooks on the block, slots among them, run once and not again in backward.
            return recompute(self._forward, x, use_reentrant=False, preserve_rng_state=self.dropout.p > 0)
        return self._forward(x)

    def _forward(self, x: Tensor) -> Tensor:
        if self.parts != "mlp":
            x = x + self.dropout(self.attention(self.norm1(x)))
        if self.parts != "attention":
            x = x + self.dropout(self.mlp(self.norm2(x)))
        return x


class GPTHost(nn.Module):
    """A small GPT with learned positions and tied embeddings: tokens (B, T), T up to `block`, to logits (B, T, vocabulary).

    `parts` says what each block has, both attention and an MLP when it is empty; without attention it sees one token at a time.
    With `checkpoint` the blocks' activations are computed again in the backward pass instead of kept: less memory, more time,
    the same numbers. Tracing with torch.fx needs it off or the host in eval mode.
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        block: int = 256,
        width: int = 384,
        heads: int = 6,
        layers: int = 6,
        parts: Sequence[BlockParts] = (),
        dropout: float = 0.0,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        parts = parts or ["both"] * layers
        if len(parts) != layers:
            raise ConfigError(f"GPTHost: parts has {len(parts)} entries; expected one for each of the {layers} layers")
        if width % heads:
            raise ConfigError(f"GPTHost: width {width} cannot be divided into {heads} heads; expected a multiple of {heads}")
        self.block = block
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(block, width)
        self.dropout = nn.Dropout(dropout)
        blocks = (GPTBlock(width, heads, parts=each, dropout=dropout, checkpoint=checkpoint) for each in parts)
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        self._initialise()

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        torch._assert(length <= self.block, f"the sequence is longer than the host's block of {self.block} tokens")
        x = self.dropout(self.embedding(tokens) + self.position.weight[:length])
        # The embedding is the head as well. Used as a function, it stays a single entry of the state dict.
        return F.linear(self.norm(self.blocks(x)), self.embedding.weight)

    def slot_paths(self) -> dict[str, str]:
        """Module path by slot id: one slot behind each block."""
        return {f"r0c{i}": f"blocks.{i}" for i in range(len(self.blocks))}

    def _initialise(self) -> None:
        """Normal weights and zero biases; what writes to the residual stream is smaller, so that depth does not add up at birth."""
        residual = INIT_STD / math.sqrt(2 * len(self.blocks))
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=residual if name.endswith(("attention.out.weight", "mlp.2.weight")) else INIT_STD)
