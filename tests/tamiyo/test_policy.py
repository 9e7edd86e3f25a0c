"""The policy network: slots of any number, episodes replayed as they were played, and parameters where they belong."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.actions import TEMPOS, Decision, Head, Op
from esper.leyline.errors import ConfigError, UnknownNameError
from esper.leyline.observation import NO_BLUEPRINT, OBSERVATION
from esper.leyline.reports import LifecycleConfig, Topology
from esper.leyline.stages import Stage
from esper.tamiyo import Rules, SignalTracker
from esper.tamiyo.controllers.prior import Prior
from esper.tamiyo.policy.batch import HEADS, ObservationBatch, decision_of
from esper.tamiyo.policy.heads import HEAD_OP_PAIRS, ActionDistribution, Exploration, uniforms
from esper.tamiyo.policy.policy import Policy, PolicyConfig, PolicyState, reset_heads
from esper.tamiyo.policy.policy_controller import PolicyController
from esper.tamiyo.policy.prior_tables import prior_tables
from tests.tamiyo.samples import BLUEPRINTS, report, report_streams, seed, tracker

NAMES = ("conv_heavy", "conv_light", "mlp", "norm")
CONFIG = PolicyConfig(blueprints=NAMES, hidden=32, slot_width=16)


def policy(seed: int = 0, **changes: object) -> Policy:
    return Policy(replace(CONFIG, **changes), torch.Generator().manual_seed(seed))  # type: ignore[arg-type]


def lively(seed: int = 0, **changes: object) -> Policy:
    """A policy with opinions: its heads are not near uniform, as those of a new one are."""
    made = policy(seed, **changes)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for head in Head:
            for parameter in made.heads.part(head).parameters():
                parameter.add_(0.5 * torch.randn(parameter.shape, generator=generator))
    return made


def hosts(count: int, slots: int = 3, steps: int | None = None, generator_seed: int = 0) -> ObservationBatch:
    """Hosts that see anything, with everything legal."""
    generator = torch.Generator().manual_seed(generator_seed)
    shape = (count,) if steps is None else (count, steps)
    batch = ObservationBatch.padding(shape, slots, len(NAMES))
    batch.host.copy_(torch.randn(batch.host.shape, generator=generator))
    batch.slots.copy_(torch.randn(batch.slots.shape, generator=generator))
    batch.blueprints.copy_(torch.randint(0, 1 + len(NAMES), batch.blueprints.shape, generator=generator))
    batch.costs.copy_(torch.rand(batch.costs.shape, generator=generator))
    for mask in (batch.exists, batch.op_mask, batch.blueprint_mask, batch.slot_mask):
        mask.fill_(True)
    batch.slot_mask[..., Op.WAIT, :] = False
    return batch


def played(made: Policy, episode: ObservationBatch, explore: Exploration | None = None):
    """An episode [hosts, steps] step by step: actions, log-probs and values, each [hosts, steps]."""
    state, found = made.initial_state(len(episode.host)), []
    for step in range(episode.host.shape[1]):
        acted = made.act(episode[:, step], state, uniforms(0, range(len(episode.host)), step), explore)
        state = acted.state
        found.append((acted.actions, acted.log_prob, acted.value))
    return tuple(torch.stack(each, dim=1) for each in zip(*found, strict=True))


def by_slot(distribution: ActionDistribution) -> torch.Tensor:
    """[hosts, slots, pairs of head and op, values]: log-probabilities of the heads that are chosen last."""
    return distribution.choices.log_p.unflatten(-2, (-1, len(HEAD_OP_PAIRS)))


# From hosts to tensors and back


def test_hosts_with_fewer_slots_are_padded_and_everything_else_is_as_observed():
    large = tracker().observe(report(seed("r0c0", Stage.TRAINING, blueprint="norm"), seed("r0c1"), seed("r0c2")))
    small = tracker(("r0c0",)).observe(report(seed("r0c0", Stage.HOLDING, blueprint="conv_heavy")))
    batch = ObservationBatch.from_observations([large, small], NAMES)
    assert batch.shape == (2,)
    assert batch.exists.tolist() == [[True] * 3, [True, False, False]]
    for row, observed in enumerate([large, small]):
        count = len(observed.masks.slot_names)
        assert batch.host[row].tolist() == observed.host.tolist()
        assert batch.slots[row, :count].tolist() == observed.slots.tolist()
        assert batch.op_mask[row].tolist() == observed.masks.ops().tolist()
        assert batch.slot_mask[row, :, :count].tolist() == observed.masks.slot_mask.tolist()
    assert batch.blueprints.tolist() == [[1 + NAMES.index("norm"), 0, 0], [1 + NAMES.index("conv_heavy"), 0, 0]]
    assert not batch.slot_mask[1, :, 1:].any()


def test_blueprints_are_matched_by_name_in_both_directions():
    observed = tracker().observe(report(*(seed(slot) for slot in ("r0c0", "r0c1", "r0c2"))))
    names = ("extra", "norm", "mlp", "conv_heavy", "conv_light")
    batch = ObservationBatch.from_observations([observed], names)
    for slot in range(3):
        fits = [name for name, fits in zip(names, batch.blueprint_mask[0, slot], strict=True) if fits]
        assert sorted(fits) == sorted(BLUEPRINTS[observed.report.seeds[slot].topology])
    decision = Decision(op=Op.GERMINATE, slot="r0c1", blueprint="conv_heavy", tempo=7)
    action = list(observed.masks.indices(decision))
    action[HEADS.index(Head.BLUEPRINT)] = names.index("conv_heavy")
    assert decision_of(observed.masks, action, names) == decision


def test_costs_are_doublings_of_the_network_in_the_policy_s_order_and_nothing_where_a_blueprint_does_not_fit():
    seeds = (seed("r0c0"), seed("r0c1", topology=Topology.TOKENS))
    observed = tracker(("r0c0", "r0c1")).observe(report(*seeds, parameters=400))
    batch = ObservationBatch.from_observations([observed], ("extra", "conv_heavy", "norm", "mlp", "conv_light"))
    # Of 400 parameters: norm 16, conv_light 600, conv_heavy 1,200, mlp 800.
    norm = math.log2(1.04)
    expected = [[0.0, 2.0, norm, 0.0, math.log2(2.5)], [0.0, 0.0, norm, math.log2(3), 0.0]]
    assert batch.costs[0].tolist() == [pytest.approx(row, rel=1e-6) for row in expected]


def test_what_a_blueprint_costs_is_seen_with_what_size_costs():
    made, batch = lively(), hosts(4)
    rent = OBSERVATION.host_index("rent")
    inputs: list[torch.Tensor] = []
    made.actor.slot_encoder.input.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    for points in (0.0, 20.0):
        batch.host[:, rent] = points / 10.0
        made.actor.encode(batch)
        growth, price = inputs[-1][..., -2 * len(NAMES) :].split(len(NAMES), dim=-1)
        assert torch.equal(growth, batch.costs)
        assert torch.allclose(price, batch.costs * points / 4 / 10), "rent is what four doublings cost"


def test_what_the_policy_does_not_know_is_masked_and_a_seed_of_it_is_seen_without_its_kind():
    stranger = seed("r0c0", Stage.HOLDING, blueprint="conv_heavy", contribution=2.0)
    observed = tracker().observe(report(stranger, seed("r0c1"), seed("r0c2", topology=Topology.TOKENS)))
    batch = ObservationBatch.from_observations([observed], ("conv_light", "gone"))
    assert batch.blueprints.tolist() == [[NO_BLUEPRINT] * 3]
    assert batch.slots[0].tolist() == observed.slots.tolist()
    assert batch.blueprint_mask[0].tolist() == [[True, False], [True, False], [False, False]]
    assert batch.slot_mask[0, Op.GERMINATE].tolist() == [False, True, False], "nothing that it knows fits tokens"
    assert batch.op_mask[0].tolist() == observed.masks.ops().tolist()
    blind = ObservationBatch.from_observations([observed], ("gone",))
    expected = observed.masks.ops()
    expected[Op.GERMINATE] = False
    assert blind.op_mask[0].tolist() == expected.tolist()


POOL = ("alpha", "beta", "gamma", "delta")
registries = st.fixed_dictionaries(
    {topology: st.sets(st.sampled_from(POOL), min_size=1).map(lambda names: tuple(sorted(names))) for topology in BLUEPRINTS}
)


@given(data=st.data(), known=st.permutations(POOL), size=st.integers(1, len(POOL)), drawing=st.integers(0, 2**31))
def test_whatever_is_registered_a_policy_decides_what_is_legal_and_what_it_knows(data, known, size, drawing):
    names = tuple(known[:size])
    made = Policy(replace(CONFIG, blueprints=names, hidden=8, slot_width=8), torch.Generator().manual_seed(drawing))
    made.heads.op.bias.data[Op.GERMINATE] = 5.0
    seen = []
    for registry in data.draw(st.lists(registries, min_size=1, max_size=3)):
        (moment,) = data.draw(report_streams(length=1, blueprints=registry))
        if data.draw(st.booleans()):  # nothing grows yet, so that something can be started
            moment = report(*(seed(each.slot, topology=each.topology) for each in moment.seeds))
        slots = tuple(each.slot for each in moment.seeds)
        costs = dict.fromkeys(slots, dict.fromkeys(POOL, 10))
        seen.append(SignalTracker(slots, registry, costs, Rules(), LifecycleConfig()).observe(moment))
    batch = ObservationBatch.from_observations(seen, names)
    actions = made.act(batch, made.initial_state(len(seen)), uniforms(drawing, range(len(seen)), 0)).actions.tolist()
    controller = PolicyController(made)
    for each, action in zip(seen, actions, strict=True):
        for decision in (decision_of(each.masks, action, names), controller.decide(each, controller.start(0))[0]):
            each.masks.check(decision)
            assert decision.op is not Op.GERMINATE or decision.blueprint in names


def test_a_host_without_slots_can_wait():
    batch = ObservationBatch.from_observations([tracker(()).observe(report())], NAMES)
    acted = policy().act(batch, policy().initial_state(1), uniforms(0, [0], 0))
    assert acted.actions[0, 0] == Op.WAIT
    assert acted.log_prob.item() == 0.0


# The number and order of slots


@pytest.mark.parametrize("slots", [1, 3, 9])
def test_one_policy_serves_hosts_with_any_number_of_slots(slots):
    made = policy()
    acted = made.act(hosts(4, slots), made.initial_state(4), uniforms(0, range(4), 0))
    assert acted.actions.shape == (4, 8)
    assert (acted.actions[:, 1] < slots).all()
    assert acted.log_prob.isfinite().all()


def test_slots_that_do_not_exist_change_nothing():
    made, batch = lively(), hosts(4, 3)
    padded = ObservationBatch.padding((4,), 7, len(NAMES))
    for name in ("host", "op_mask"):
        getattr(padded, name).copy_(getattr(batch, name))
    for name in ("slots", "blueprints", "exists", "blueprint_mask", "costs"):
        getattr(padded, name)[:, :3] = getattr(batch, name)
    padded.slot_mask[..., :3] = batch.slot_mask
    padded.slots[:, 3:] = 9.0  # whatever stands there
    numbers = uniforms(3, range(4), 1)
    alone, among = made.act(batch, made.initial_state(4), numbers), made.act(padded, made.initial_state(4), numbers)
    assert torch.equal(alone.actions, among.actions)
    assert torch.allclose(alone.log_prob, among.log_prob, atol=1e-5)
    assert torch.allclose(alone.value, among.value, atol=1e-5)


def test_slots_in_another_order_have_the_same_probabilities_in_that_order():
    made, batch = lively(), hosts(4, 5)
    order = torch.tensor([3, 0, 4, 1, 2])
    turned = replace(
        batch,
        slots=batch.slots[:, order],
        blueprints=batch.blueprints[:, order],
        blueprint_mask=batch.blueprint_mask[:, order],
        costs=batch.costs[:, order],
        slot_mask=batch.slot_mask[..., order],
    )
    _, plain, _ = made.choose(batch, made.initial_state(4).actor, None)
    _, other, _ = made.choose(turned, made.initial_state(4).actor, None)
    assert torch.allclose(plain.op.log_p, other.op.log_p, atol=1e-5)
    assert torch.allclose(plain.slot.log_p[..., order], other.slot.log_p, atol=1e-5)
    assert torch.allclose(by_slot(plain)[:, order], by_slot(other), atol=1e-5)


def test_the_value_reads_the_state_and_not_what_may_be_done():
    made, batch = lively(), hosts(4)
    value, _ = made.value(batch, made.initial_state(4).critic)
    nothing_legal = replace(batch, op_mask=torch.zeros_like(batch.op_mask), slot_mask=torch.zeros_like(batch.slot_mask))
    assert torch.equal(value, made.value(nothing_legal, made.initial_state(4).critic)[0])
    assert value.std() > 0.0


# Memory and replay


def test_a_replayed_episode_scores_as_it_was_played():
    made, episode, explore = lively(), hosts(3, steps=12), Exploration(op=0.01)
    actions, log_prob, value = played(made, episode, explore)
    assert torch.allclose(made.replay(episode, explore).score(actions).log_prob, log_prob, atol=1e-5)
    assert torch.allclose(made.value_head.denormalise(made.normalised_values(episode)), value, atol=1e-5)
    plain = made.replay(episode).score(actions).log_prob
    assert not torch.allclose(plain, log_prob, atol=1e-4), "exploration must be part of the score"


def test_a_step_depends_on_those_before_it():
    made, episode = lively(), hosts(2, steps=6)
    other = episode.map(lambda tensor: tensor.clone())
    other.host[:, :5] += 1.0
    last, changed = (made.replay(each).op.log_p[:, 5] for each in (episode, other))
    assert not torch.allclose(last, changed, atol=1e-6)


def test_nothing_before_a_step_depends_on_it():
    made, episode = lively(), hosts(2, steps=6)
    other = episode.map(lambda tensor: tensor.clone())
    other.host[:, 5] += 1.0
    a, b = made.replay(episode).op.log_p, made.replay(other).op.log_p
    assert torch.allclose(a[:, :5], b[:, :5], atol=1e-6)
    assert not torch.allclose(a[:, 5], b[:, 5], atol=1e-3)


def test_a_checkpointed_lstm_gives_the_same_outputs_and_gradients():
    episode = hosts(2, steps=70)
    actions, _, _ = played(lively(), episode)
    gradients = []
    for checkpointed in (False, True):
        made = lively()
        distribution = made.replay(episode, checkpoint_lstm=checkpointed)
        values = made.normalised_values(episode, checkpoint_lstm=checkpointed)
        (distribution.score(actions).log_prob.mean() + values.square().mean()).backward()
        gradients.append([parameter.grad for parameter in made.parameters()])
    for plain, saved in zip(*gradients, strict=True):
        assert torch.allclose(plain, saved, atol=1e-5, rtol=1e-4)


BFLOAT16 = """
import torch
from tests.tamiyo.test_policy import hosts, lively, played
made, episode = lively(), hosts(2, steps=8)
actions, log_prob, _ = played(made, episode)
with torch.no_grad():
    made.replay(episode, autocast=True)
score = made.replay(episode, autocast=True).score(actions).log_prob
score.sum().backward()
error = (score - log_prob).abs().max().item()
assert 1e-6 < error < 0.5, error
assert all(p.grad is not None and p.grad.isfinite().all() for p in made.actor.parameters())
"""


def test_a_replay_in_bfloat16_is_near_and_has_gradients():
    # In a process of its own: some machines advertise instructions for bfloat16 that they do not have, and die of them.
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", BFLOAT16], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_state_can_be_split_by_hosts():
    made, batch = lively(), hosts(4)
    state = made.act(batch, made.initial_state(4), None).state
    both = made.act(batch[2:], state[2:], None)
    assert isinstance(state[2:], PolicyState)
    assert torch.equal(both.actions, made.act(batch, state, None).actions[2:])


@pytest.mark.parametrize("part", ["heads.op", "value_head.output"])
def test_finite_weights_whose_output_is_not_finite_are_refused_when_they_act(part):
    made, batch = lively(), hosts(3)
    with torch.no_grad():
        made.get_submodule(part).weight.fill_(3e38)
    assert all(parameter.isfinite().all() for parameter in made.parameters())
    with pytest.raises(FloatingPointError, match="a log-probability or value that the policy gives is not finite"):
        made.act(batch, made.initial_state(3), uniforms(0, range(3), 0))


def test_acting_keeps_no_graph():
    made = policy()
    acted = made.act(hosts(2), made.initial_state(2), uniforms(0, range(2), 0))
    assert not acted.log_prob.requires_grad
    assert not acted.state.actor[0].requires_grad


# Parameters


def test_every_parameter_is_in_one_group_and_only_the_critics_decay():
    made = policy()
    groups = made.parameter_groups(weight_decay=0.1)
    grouped = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(grouped) == sorted(id(parameter) for parameter in made.parameters())
    assert {group["name"]: group["weight_decay"] for group in groups} == {"actor": 0.0, "critic": 0.1}
    critic = {id(parameter) for module in (made.critic, made.value_head) for parameter in module.parameters()}
    assert {id(parameter) for parameter in groups[1]["params"]} == critic


def test_every_parameter_is_in_one_part():
    made = policy()
    parts = made.parts()
    assert sorted(id(p) for part in parts.values() for p in part) == sorted(id(p) for p in made.parameters())
    assert set(parts) == {"slot_encoder", "trunk", "choice", "critic", *(head.value for head in Head)}


def test_actor_and_critic_share_nothing():
    made, episode = policy(), hosts(2, steps=3)
    actions, _, _ = played(made, episode)
    made.replay(episode).score(actions).log_prob.sum().backward()
    touched = {name for name, parameter in made.named_parameters() if parameter.grad is not None}
    made.zero_grad()
    made.normalised_values(episode).sum().backward()
    assert not touched & {name for name, parameter in made.named_parameters() if parameter.grad is not None}


def test_new_heads_are_nearly_uniform_and_the_value_is_not_nearly_constant():
    made, batch = Policy(PolicyConfig(blueprints=NAMES)), hosts(64)
    _, distribution, _ = made.choose(batch, made.initial_state(64).actor, None)
    for block in (distribution.op, distribution.slot, distribution.choices):
        relative = torch.where(block.mask & block.reachable.unsqueeze(-1), block.log_p.exp() * block.mask.sum(dim=-1, keepdim=True), 1.0)
        assert (relative - 1.0).abs().max() < 0.1
    value, _ = made.value(batch, made.initial_state(64).critic)
    assert 0.1 < value.std() < 3.0


def test_a_policy_with_a_prior_starts_as_that_prior_and_replays_as_it_acts():
    made, episode = policy(prior=Prior(wait=0.8)), hosts(3, steps=5)
    episode.op_mask[:, :, [Op.ADVANCE, Op.FOSSILIZE]] = False
    actions, log_prob, _ = played(made, episode)
    with torch.no_grad():
        distribution = made.replay(episode)
    assert distribution.op_probabilities()[..., Op.WAIT].mean().item() == pytest.approx(0.8, abs=0.01)
    assert distribution.distance_from(prior_tables(Prior(wait=0.8), episode)).max() < 0.01
    assert distribution.distance_from(prior_tables(Prior(), episode)).max() > 0.02
    assert torch.allclose(distribution.score(actions).log_prob, log_prob, atol=1e-6)


def test_hidden_layers_are_orthogonal_with_gain_root_two():
    weight = policy().actor.host.weight
    assert torch.allclose(weight @ weight.T, 2.0 * torch.eye(len(weight)), atol=1e-5)
    assert policy().value_head.output.weight.norm().item() == pytest.approx(1.0)
    assert policy().heads.op.weight[0].norm().item() == pytest.approx(0.01)


def test_the_same_generator_gives_the_same_weights_and_the_global_stream_is_left_alone():
    before = torch.get_rng_state()
    first, again, other = policy(3), policy(3), policy(4)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


def test_resetting_heads_makes_those_uniform_and_leaves_the_rest():
    made = lively()
    before = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    changed = reset_heads(made, ["blueprint", "slot"], torch.Generator().manual_seed(9))
    moved = {name for name, tensor in made.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved == {name for name in before if name.startswith(("heads.slot.", "heads.choices.blueprint."))}
    assert {id(parameter) for parameter in changed} == {id(p) for n, p in made.named_parameters() if n in moved}
    _, distribution, _ = made.choose(hosts(4), made.initial_state(4).actor, None)
    assert distribution.slot.log_p[distribution.slot.reachable].exp().std() < 0.02
    blueprint = by_slot(distribution)[:, :, HEAD_OP_PAIRS.index((Head.BLUEPRINT, Op.GERMINATE)), : len(NAMES)]
    assert blueprint.exp().std() < 0.02
    tempo = by_slot(distribution)[:, :, HEAD_OP_PAIRS.index((Head.TEMPO, Op.GERMINATE)), : len(TEMPOS)]
    assert tempo.exp().std() > 0.05, "a head that was not reset keeps its opinions"


def test_an_unknown_head_is_refused_with_the_nearest_name():
    made = lively()
    before = made.heads.part(Head.TEMPO).get_parameter("weight").clone()
    with pytest.raises(UnknownNameError, match="unknown head 'temp'; did you mean 'tempo'"):
        reset_heads(made, ["tempo", "temp"], torch.Generator())
    assert torch.equal(made.heads.part(Head.TEMPO).get_parameter("weight"), before)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": 0}, "'hidden' must be an integer, from 1 to 65536; found 0"),
        ({"slot_width": 30}, "slot_width must be a multiple of attention_heads; found 30 and 4"),
        ({"blueprints": ()}, "blueprints must be a list of different names; found none"),
        ({"blueprints": ("a", "a")}, "blueprints must be a list of different names; found a, a"),
    ],
)
def test_a_config_that_makes_no_policy_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        replace(CONFIG, **changes)
