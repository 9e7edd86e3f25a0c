"""The policy: from observations to decisions, and to the value of the state.

Actor and critic are two networks of the same build that share nothing; the critic gives the value of the state alone. An episode
starts from zero memory. What an update learns from is therefore the whole episode, replayed from its first step: no stored memory is
used, and none can go stale.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from esper.leyline.actions import Head
from esper.leyline.errors import unknown
from esper.tamiyo.policy.batch import ObservationBatch
from esper.tamiyo.policy.heads import ActionDistribution, Exploration, HeadLogits
from esper.tamiyo.policy.network import (
    HIDDEN_GAIN,
    VALUE_GAIN,
    Heads,
    LSTMState,
    PolicyConfig,
    Trunk,
    ValueHead,
    initialise,
    initialise_head,
)
from esper.tamiyo.policy.prior_tables import prior_logits


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PolicyState:
    """What a policy remembers of each host of a batch: memory and cell of two LSTMs, each [hosts, hidden]."""

    actor: LSTMState
    critic: LSTMState

    def __getitem__(self, hosts: Tensor | slice) -> PolicyState:
        """The state of some of the hosts."""
        (h, c), (critic_h, critic_c) = self.actor, self.critic
        return PolicyState(actor=(h[hosts], c[hosts]), critic=(critic_h[hosts], critic_c[hosts]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Acted:
    """The decisions of a batch of hosts, in CPU memory; what is remembered stays on the policy's device."""

    actions: Tensor
    """int64 [hosts, 8]: an index for each head; that of `Masks.idle` where it does not matter."""
    log_prob: Tensor
    """[hosts]: as drawn, exploration included."""
    value: Tensor
    """[hosts]: expected return of the state, on the reward's own scale."""
    chances: Tensor
    """[hosts, 8, V]: what each head was drawn from; see `ActionDistribution.chances`."""
    state: PolicyState


class Policy(nn.Module):
    """Actor and critic. The same generator gives the same initial weights; torch's global random stream is left alone."""

    def __init__(self, config: PolicyConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        with torch.random.fork_rng(devices=[]):
            self.actor = Trunk(config)
            self.heads = Heads(config)
            self.critic = Trunk(config)
            self.value_head = ValueHead(config.hidden)
        generator = generator or torch.Generator().manual_seed(0)
        for module in (self.actor, self.heads, self.critic):
            initialise(module, HIDDEN_GAIN, generator)
        for head in Head:
            initialise_head(self.heads.part(head), generator)
        initialise(self.value_head, VALUE_GAIN, generator)

    @property
    def device(self) -> torch.device:
        """The device that the weights are on, where batches have to be too."""
        return self.value_head.output.weight.device

    def initial_state(self, hosts: int) -> PolicyState:
        """The state before the first step of an episode: nothing is remembered."""
        zero = self.value_head.output.weight.new_zeros(hosts, self.config.hidden)
        return PolicyState(actor=(zero, zero), critic=(zero, zero))

    # Acting

    @torch.inference_mode()
    def choose(
        self,
        batch: ObservationBatch,
        memory: LSTMState,
        uniforms: Tensor | None,
        explore: Exploration | None = None,
    ) -> tuple[Tensor, ActionDistribution, LSTMState]:
        """The actor alone: actions of a batch [hosts], their distribution, and its memory afterwards.

        uniforms: [hosts, 8] random numbers to draw with (see `heads.uniforms`); None for the likeliest value of each head.
        """
        features, slots, memory = self.actor.step(batch, memory)
        distribution = ActionDistribution(self._logits(features, slots, batch), batch, explore)
        actions = distribution.mode() if uniforms is None else distribution.sample(uniforms.to(features.device))
        return actions, distribution, memory

    @torch.inference_mode()
    def value(self, batch: ObservationBatch, memory: LSTMState) -> tuple[Tensor, LSTMState]:
        """The critic alone: the value [hosts] of the states in a batch [hosts], and its memory afterwards."""
        features, _, memory = self.critic.step(batch, memory)
        return self.value_head.denormalise(self.value_head(features)), memory

    @torch.inference_mode()
    def act(
        self,
        batch: ObservationBatch,
        state: PolicyState,
        uniforms: Tensor | None,
        explore: Exploration | None = None,
    ) -> Acted:
        """Decide for a batch [hosts]; the arguments are those of `choose`.

        Raises FloatingPointError when weights, though finite, have grown so large that what comes out of them is not.
        """
        rows, state = self.step(batch, state, uniforms, explore)
        return self.acted(rows.cpu(), state)

    @torch.inference_mode()
    def step(
        self,
        batch: ObservationBatch,
        state: PolicyState,
        uniforms: Tensor | None,
        explore: Exploration | None = None,
    ) -> tuple[Tensor, PolicyState]:
        """What `act` works out on the device, which is not waited for, as rows for `acted`, and what is remembered afterwards."""
        actions, distribution, actor = self.choose(batch, state.actor, uniforms, explore)
        value, critic = self.value(batch, state.critic)
        log_prob = distribution.score(actions).log_prob
        chances = distribution.chances(actions).flatten(-2)
        # Read together, so that a device is waited for once: [hosts, 8 + 2 + 8 V], in double precision, which holds all as they are.
        rows = torch.cat([actions.double(), log_prob.unsqueeze(-1), value.double().unsqueeze(-1), chances], dim=-1)
        return rows, PolicyState(actor=actor, critic=critic)

    @torch.inference_mode()
    def acted(self, rows: Tensor, state: PolicyState) -> Acted:
        """The decisions in rows [hosts, 8 + 2 + 8 V] of `step` that were brought to CPU memory."""
        if not torch.isfinite(rows).all():
            raise FloatingPointError("a log-probability or value that the policy gives is not finite")
        heads = len(Head)
        actions, log_prob, value, chances = rows.split([heads, 1, 1, rows.shape[-1] - heads - 2], dim=-1)
        value = value.squeeze(-1).to(self.value_head.output.weight.dtype)
        return Acted(
            actions=actions.long(), log_prob=log_prob.squeeze(-1), value=value, chances=chances.unflatten(-1, (heads, -1)), state=state
        )

    def _logits(self, features: Tensor, slots: Tensor, batch: ObservationBatch) -> HeadLogits:
        """The heads' logits on top of the prior's log-probabilities, from features [..., hidden] and those of the slots [..., S, W]."""
        logits: HeadLogits = self.heads(features, slots)
        if self.config.prior is None:
            return logits
        op, choices = prior_logits(self.config.prior, batch)
        return replace(logits, op=logits.op + op, choices=logits.choices + choices)

    # Replaying

    def replay(
        self,
        batch: ObservationBatch,
        explore: Exploration | None = None,
        *,
        checkpoint_lstm: bool = False,
        autocast: bool = False,
    ) -> ActionDistribution:
        """The distributions over whole episodes [hosts, steps], as `choose` had them step by step.

        checkpoint_lstm: less memory for the gradient at the price of time.
        autocast: bfloat16 in encoders and LSTM; the heads stay in float32.
        """
        return ActionDistribution(self.logits(batch, checkpoint_lstm=checkpoint_lstm, autocast=autocast), batch, explore)

    def logits(self, batch: ObservationBatch, *, checkpoint_lstm: bool = False, autocast: bool = False) -> HeadLogits:
        """What the distributions over whole episodes [hosts, steps] are made of."""
        features, slots = self.actor.replay(batch, checkpoint_lstm=checkpoint_lstm, autocast=autocast)
        return self._logits(features, slots, batch)

    def normalised_values(self, batch: ObservationBatch, *, checkpoint_lstm: bool = False, autocast: bool = False) -> Tensor:
        """[hosts, steps]: the critic's output over whole episodes, before it is brought to the reward's scale."""
        features, _ = self.critic.replay(batch, checkpoint_lstm=checkpoint_lstm, autocast=autocast)
        return self.value_head(features)

    # Parameters

    def parameter_groups(self, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """Groups for an optimiser: the actor's parameters, and the critic's, which alone decay."""
        return [
            {"name": "actor", "params": [*self.actor.parameters(), *self.heads.parameters()], "weight_decay": 0.0},
            {"name": "critic", "params": [*self.critic.parameters(), *self.value_head.parameters()], "weight_decay": weight_decay},
        ]

    def parts(self) -> dict[str, list[nn.Parameter]]:
        """Every parameter once, by the part it belongs to: slot_encoder, trunk, each head, choice (what the last heads share), critic."""
        slot_encoder = list(self.actor.slot_encoder.parameters())
        of_heads = {head.value: list(self.heads.part(head).parameters()) for head in Head}
        taken = {id(each) for group in (slot_encoder, *of_heads.values()) for each in group}
        return {
            "slot_encoder": slot_encoder,
            "trunk": [each for each in self.actor.parameters() if id(each) not in taken],
            "choice": [each for each in self.heads.parameters() if id(each) not in taken],
            **of_heads,
            "critic": [*self.critic.parameters(), *self.value_head.parameters()],
        }


def reset_heads(policy: Policy, heads: Iterable[str], generator: torch.Generator) -> list[nn.Parameter]:
    """Make chosen heads as new, nearly uniform, and leave the rest. Returns their parameters: an optimiser should forget them too."""
    names = list(heads)
    for name in names:
        if name not in set(Head):
            raise unknown("head", name, (head.value for head in Head))
    parts = [policy.heads.part(Head(name)) for name in names]
    device = policy.device
    for part in parts:
        initialise_head(part.cpu(), generator)  # the generator's device, so that chance is the same on all
        part.to(device)
    return [parameter for part in parts for parameter in part.parameters()]
