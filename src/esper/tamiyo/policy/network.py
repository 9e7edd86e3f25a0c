"""The layers of the policy: slots through one encoder with shared weights, attention, an LSTM, and the heads.

Nothing in the weights depends on how many slots a host has, so that one policy serves every host.

Shapes: `...` is [hosts] for one step and [hosts, steps] for whole episodes; S: slots; F: slot fields; W: slot_width; B: blueprints;
P: HEAD_OP_PAIRS; K: choice_width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from esper.leyline.actions import Head, Op
from esper.leyline.config import Size, check_ranges
from esper.leyline.errors import ConfigError
from esper.leyline.observation import OBSERVATION
from esper.leyline.score import RENT_DOUBLINGS
from esper.tamiyo.controllers.prior import Prior
from esper.tamiyo.policy.batch import ObservationBatch
from esper.tamiyo.policy.heads import HEAD_OP_PAIRS, ILLEGAL, VALUE_HEADS, HeadLogits, choice_size, choice_width

CHOICE_OPS: tuple[Op, ...] = tuple(sorted({op for _, op in HEAD_OP_PAIRS}))
"""The ops for which more than a slot is to be chosen."""

RENT = OBSERVATION.host_index("rent")
"""Where the rent lies among the values of a host."""

CHECKPOINT_STEPS = 32
"""Steps of an episode between the memories that are kept when the LSTM is checkpointed."""

HIDDEN_GAIN, HEAD_GAIN, VALUE_GAIN = math.sqrt(2.0), 0.01, 1.0
"""Of the orthogonal initial weights: of hidden layers, of the heads (which start nearly uniform) and of the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """The sizes of a policy's layers, what it can germinate, and the prior that it starts from."""

    blueprints: tuple[str, ...]
    """Names of the blueprints that it can germinate, the values of its blueprint head."""
    hidden: Size = 128
    """Features of a host, and memory of each LSTM."""
    slot_width: Size = 64
    """Features of a slot; a multiple of `attention_heads`."""
    attention_heads: Size = 4
    """Ways in which the slots are weighed against one another."""
    blueprint_embedding: Size = 16
    op_embedding: Size = 16
    prior: Prior | None = None
    """What it decides like before it has learned anything, its logits being relative to this; None for all legal values alike."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.blueprints or len(set(self.blueprints)) < len(self.blueprints):
            raise ConfigError(f"blueprints must be a list of different names; found {', '.join(self.blueprints) or 'none'}")
        if self.slot_width % self.attention_heads:
            raise ConfigError(f"slot_width must be a multiple of attention_heads; found {self.slot_width} and {self.attention_heads}")


LSTMState = tuple[Tensor, Tensor]
"""Memory and cell of an LSTM, each [hosts, hidden]."""


class SlotEncoder(nn.Module):
    """One slot's fields, its blueprint and what each would cost there to its features, the same for every slot."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        width = config.slot_width
        self.blueprint = nn.Embedding(1 + len(config.blueprints), config.blueprint_embedding)
        self.input = nn.Linear(OBSERVATION.slot_size + config.blueprint_embedding + 2 * len(config.blueprints), width)
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, width)

    def forward(self, slots: Tensor, blueprints: Tensor, costs: Tensor, rent: Tensor) -> Tensor:
        """Features [..., S, W] of slot fields [..., S, F], blueprint indices [..., S], costs [..., S, B] and the host's rent [...].

        Each cost is seen in doublings, as it is, and as a price: the rent of that growth, in units of ten points.
        """
        prices = costs * (rent / RENT_DOUBLINGS)[..., None, None]
        x = torch.cat([slots, self.blueprint(blueprints), costs, prices], dim=-1)
        return self.output(self.norm(self.input(x)).relu()).relu()


class Trunk(nn.Module):
    """Observations to features that remember: slots, pooled into the host, through an LSTM."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.config = config
        hidden, width = config.hidden, config.slot_width
        self.slot_encoder = SlotEncoder(config)
        self.host = nn.Linear(OBSERVATION.host_size, hidden)
        self.host_norm = nn.LayerNorm(hidden)
        self.query = nn.Linear(hidden, width)
        self.key = nn.Linear(width, width)
        self.join = nn.Linear(hidden + width, hidden)
        self.join_norm = nn.LayerNorm(hidden)
        self.lstm = nn.LSTM(hidden, hidden, batch_first=True)
        self.output_norm = nn.LayerNorm(hidden)

    def encode(self, batch: ObservationBatch) -> tuple[Tensor, Tensor]:
        """What is seen now: features of the host [..., hidden] and of each slot [..., S, W]."""
        slots = self.slot_encoder(batch.slots, batch.blueprints, batch.costs, batch.host[..., RENT])
        host = self.host_norm(self.host(batch.host)).relu()
        pooled = self._pool(host, slots, batch.exists)
        return self.join_norm(self.join(torch.cat([host, pooled], dim=-1))).relu(), slots

    def _pool(self, host: Tensor, slots: Tensor, exists: Tensor) -> Tensor:
        """[..., W]: the slots' features, each head's part weighed by how well the slot answers the host's query; 0 without slots."""
        heads = (self.config.attention_heads, -1)
        query = self.query(host).unflatten(-1, heads).unsqueeze(-3)  # [..., 1, heads, W / heads]
        key, value = self.key(slots).unflatten(-1, heads), slots.unflatten(-1, heads)  # [..., S, heads, W / heads]
        scores = (query * key).sum(dim=-1) / math.sqrt(key.shape[-1])  # [..., S, heads]
        there = exists.unsqueeze(-1)  # [..., S, 1]
        weights = scores.float().masked_fill(~there, ILLEGAL).softmax(dim=-2) * there  # [..., S, heads]
        return (weights.unsqueeze(-1).to(value.dtype) * value).sum(dim=-3).flatten(-2)

    def step(self, batch: ObservationBatch, memory: LSTMState) -> tuple[Tensor, Tensor, LSTMState]:
        """One step of each host [hosts]: features [hosts, hidden], those of the slots [hosts, S, W], and the memory after it."""
        x, slots = self.encode(batch)
        # To the LSTM this is a sequence of one step, [hosts, 1, hidden], and its memory is [1 layer, hosts, hidden].
        h, c = memory
        x, (h, c) = self.lstm(x.unsqueeze(1), (h.unsqueeze(0), c.unsqueeze(0)))
        return self.output_norm(x.squeeze(1)), slots, (h.squeeze(0), c.squeeze(0))

    def replay(self, batch: ObservationBatch, *, checkpoint_lstm: bool, autocast: bool) -> tuple[Tensor, Tensor]:
        """Whole episodes [hosts, steps] from zero memory: features [hosts, steps, hidden] and those of the slots [hosts, steps, S, W]."""
        # Without a cache: one filled where no gradient is kept would cut the next backward pass off from the weights.
        with torch.autocast(batch.host.device.type, torch.bfloat16, enabled=autocast, cache_enabled=False):
            x, slots = self.encode(batch)
            remembered = self._checkpointed(x) if checkpoint_lstm else self.lstm(x)[0]
            return self.output_norm(remembered).float(), slots.float()

    def _checkpointed(self, x: Tensor) -> Tensor:
        """The same as the LSTM alone; its inner values are worked out again for the gradient, some steps at a time, instead of kept."""
        memory: Any = None
        parts = []
        for part in x.split(CHECKPOINT_STEPS, dim=1):
            out, memory = checkpoint(self.lstm, part, memory, use_reentrant=False, preserve_rng_state=False)
            parts.append(out)
        return torch.cat(parts, dim=1)


class Heads(nn.Module):
    """The actor's features to the logits of the eight heads, in every context at once."""

    columns: Tensor
    choice_ops: Tensor

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        hidden, width = config.hidden, config.slot_width
        self.op = nn.Linear(hidden, len(Op))
        self.op_embedding = nn.Embedding(len(Op), config.op_embedding)
        self.slot = PointerHead(hidden, config.op_embedding, width)
        self.from_host = nn.Linear(hidden, width)
        self.from_op = nn.Linear(config.op_embedding, width, bias=False)
        self.from_slot = nn.Linear(width, width, bias=False)
        self.norm = nn.LayerNorm(width)
        sizes = {head: choice_size(head, len(config.blueprints)) for head in VALUE_HEADS}
        self.choices = nn.ModuleDict({head.value: nn.Linear(width, size) for head, size in sizes.items()})
        # [P * K]: where the values of each pair of head and op, padded to K by repeating the last, stand among those that `forward` works
        # out, [ops * values of all heads], the ops running slowest.
        starts = dict(zip(VALUE_HEADS, accumulate(sizes.values(), initial=0), strict=False))
        firsts = [(CHOICE_OPS.index(op) * sum(sizes.values()) + starts[head], sizes[head] - 1) for head, op in HEAD_OP_PAIRS]
        columns = [first + min(value, last) for first, last in firsts for value in range(choice_width(len(config.blueprints)))]
        self.register_buffer("columns", torch.tensor(columns), persistent=False)
        self.register_buffer("choice_ops", torch.tensor(CHOICE_OPS), persistent=False)

    def forward(self, features: Tensor, slots: Tensor) -> HeadLogits:
        """The logits in every context, from features [..., hidden] and those of the slots [..., S, W]."""
        ops = self.op_embedding.weight
        # Host, op and slot are added before the non-linearity, so that each goes through its layer once: [..., S, ops, W].
        host, op = self.from_host(features)[..., None, None, :], self.from_op(ops[self.choice_ops])
        context = self.norm(host + op + self.from_slot(slots).unsqueeze(-2)).relu()
        # One product for all heads: many small ones would take longer.
        parts = [self.choices[head.value] for head in VALUE_HEADS]
        weight, bias = (torch.cat([part.get_parameter(name) for part in parts]) for name in ("weight", "bias"))
        # [..., S, ops, values of all heads] to [..., S, P * K].
        values = nn.functional.linear(context, weight, bias).flatten(-2).index_select(-1, self.columns)
        return HeadLogits(
            op=self.op(features), slot=self.slot(features, slots, ops), choices=values.unflatten(-1, (len(HEAD_OP_PAIRS), -1))
        )

    def part(self, head: Head) -> nn.Module:
        """The layers that belong to one head alone."""
        if head is Head.OP:
            return self.op
        return self.slot if head is Head.SLOT else self.choices[head.value]


class PointerHead(nn.Module):
    """The slot head: a query made of host and op, held against a key of every slot."""

    def __init__(self, hidden: int, op_embedding: int, width: int) -> None:
        super().__init__()
        self.from_host = nn.Linear(hidden, hidden)
        self.from_op = nn.Linear(op_embedding, hidden, bias=False)
        self.query = nn.Linear(hidden, width)
        self.key = nn.Linear(width, width)

    def forward(self, features: Tensor, slots: Tensor, ops: Tensor) -> Tensor:
        """Logits [..., 6, S] from features [..., hidden], those of the slots [..., S, W] and embeddings of the ops [6, op_embedding]."""
        query = self.query((self.from_host(features).unsqueeze(-2) + self.from_op(ops)).relu())
        return query @ self.key(slots).transpose(-1, -2) / math.sqrt(query.shape[-1])


class ValueHead(nn.Module):
    """The value of a state: a normalised output, and the mean and std of returns that bring it to the reward's scale.

    PopArt keeps `mean` and `std` near those of the returns and corrects the weights, so that the values stay what they were.
    """

    mean: Tensor
    std: Tensor
    second_moment: Tensor
    updates: Tensor

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.output = nn.Linear(hidden, 1)
        # In double precision: the std comes from a small difference of large squares when returns lie far from 0.
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("std", torch.ones((), dtype=torch.float64))
        self.register_buffer("second_moment", torch.ones((), dtype=torch.float64))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def forward(self, features: Tensor) -> Tensor:
        """[...]: the normalised value of features [..., hidden]."""
        return self.output(features).squeeze(-1)

    def normalise(self, returns: Tensor) -> Tensor:
        """Returns on the scale of `forward`."""
        return (returns - self.mean.to(returns.dtype)) / self.std.to(returns.dtype)

    def denormalise(self, values: Tensor) -> Tensor:
        """Values of `forward` on the reward's scale."""
        return values * self.std.to(values.dtype) + self.mean.to(values.dtype)


def initialise_head(part: nn.Module, generator: torch.Generator) -> None:
    """Logits near 0: the last layer of the head gets the small gain."""
    initialise(part, HIDDEN_GAIN, generator)
    initialise(part.query if isinstance(part, PointerHead) else part, HEAD_GAIN, generator)


@torch.no_grad()
def initialise(module: nn.Module, gain: float, generator: torch.Generator) -> None:
    """Orthogonal weights, zero biases, plain norms; LSTMs of gain 1 by gate, and remembering at first."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.orthogonal_(part.weight, gain, generator=generator)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.LSTM):
            for name, parameter in part.named_parameters():
                for gate, values in zip(("input", "forget", "cell", "output"), parameter.chunk(4), strict=True):
                    if name.startswith("weight"):
                        nn.init.orthogonal_(values, 1.0, generator=generator)
                    else:
                        values.fill_(1.0 if gate == "forget" and name == "bias_ih_l0" else 0.0)
