"""Each formula of the update against a case worked by hand, and the properties that the whole of it has."""

from __future__ import annotations

import copy
import math
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.actions import Head, Op
from esper.leyline.config import from_mapping
from esper.leyline.errors import ConfigError, LearningError
from esper.leyline.observation import OBSERVATION
from esper.simic.learning import ppo
from esper.simic.learning.optimizer import clipped_step
from esper.simic.learning.popart import MIN_STD, follow_returns
from esper.simic.learning.ppo import Learner, PPOConfig, annealed, clipped_surrogate, learning_rate, normalised, value_error
from esper.simic.learning.ppo_config import PriorStrength
from esper.simic.learning.ppo_metrics import Tally, estimated_kl, explained_variance, moments, policy_figures, regression_ceiling
from esper.simic.learning.rollout import Rollout, RolloutBuffer
from esper.tamiyo.policy.batch import HEADS
from esper.tamiyo.policy.heads import Exploration
from esper.tamiyo.policy.network import ValueHead
from esper.tamiyo.policy.prior_tables import prior_tables
from tests.simic.problems import Bandit, KnownReturn, Sentinel, new_policy, play, quick, train

EXPLORE = Exploration.for_budget(20)


def learner(problem=None, **changes) -> Learner:
    return Learner(new_policy(problem or Sentinel(4)), quick(**changes))


# Formulas


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        (1.1, 2.0, -2.2),  # inside the range: ratio times advantage
        (1.5, 2.0, -2.4),  # above it and good: no more than 1.2
        (1.5, -2.0, 3.0),  # above it and bad: all of it
        (0.5, 2.0, -1.0),  # below it and good: all of it
        (0.5, -2.0, 1.6),  # below it and bad: no less than 0.8
    ],
)
def test_the_surrogate_is_clipped_where_that_is_worse(ratio, advantage, loss):
    found = clipped_surrogate(torch.tensor([math.log(ratio)]), torch.tensor([advantage]), 0.2)
    assert found.item() == pytest.approx(loss)


def test_a_clipped_step_has_no_gradient():
    log_ratio = torch.tensor([0.5, 0.1], requires_grad=True)
    clipped_surrogate(log_ratio, torch.ones(2), 0.2).sum().backward()
    assert log_ratio.grad is not None
    assert log_ratio.grad[0] == 0.0
    assert log_ratio.grad[1].item() == pytest.approx(-math.exp(0.1))


@pytest.mark.parametrize(
    ("value", "target", "before", "clip", "error"),
    [
        (3.0, 1.0, 0.0, None, 2.0),  # half of 2 squared
        (3.0, 1.0, 0.0, 0.5, 2.0),  # kept near: 0.5, error 0.25; the value's own error of 4 is worse
        (1.0, 1.0, 0.0, 0.5, 0.125),  # on target, yet moved too far: the value kept near counts
        (0.3, 1.0, 0.0, 0.5, 0.245),  # inside the limit nothing changes
    ],
)
def test_a_clipped_value_takes_the_worse_of_two_errors(value, target, before, clip, error):
    tensors = (torch.tensor([each]) for each in (value, target, before))
    assert value_error(*tensors, clip).item() == pytest.approx(error)


def test_the_kl_estimate_is_r_minus_one_minus_log_r():
    assert estimated_kl(torch.tensor([math.log(2.0)])).item() == pytest.approx(1.0 - math.log(2.0))
    assert estimated_kl(torch.tensor([0.0])).item() == 0.0
    assert (estimated_kl(torch.linspace(-3, 3, 50)) >= 0.0).all()


@given(st.integers(0, 10**6))
def test_the_kl_estimate_is_right_in_the_mean(seed):
    p, q = torch.rand(2, 5, generator=torch.Generator().manual_seed(seed)).add(0.01).unbind()
    p, q = p / p.sum(), q / q.sum()
    assert (p * estimated_kl((q / p).log())).sum().item() == pytest.approx((p * (p / q).log()).sum().item(), abs=1e-5)


def test_entropy_is_annealed_in_a_straight_line():
    assert [annealed(0.05, 0.01, 4, update) for update in range(6)] == pytest.approx([0.05, 0.04, 0.03, 0.02, 0.01, 0.01])
    assert annealed(0.05, 0.01, 0, 0) == 0.01


def test_the_learning_rate_warms_up_decays_and_stays():
    plain = PPOConfig(learning_rate=1.0, warmup_updates=4, decay_updates=14, final_rate=0.2)
    rates = [learning_rate(plain, update) for update in range(20)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[9] == pytest.approx(0.6)
    assert rates[14:] == pytest.approx([0.2] * 6)
    cosine = replace(plain, decay="cosine")
    assert learning_rate(cosine, 9) == pytest.approx(0.6)
    assert learning_rate(cosine, 6) > learning_rate(plain, 6)
    assert learning_rate(replace(plain, decay="none"), 100) == 1.0


def test_schedules_without_a_length_last_for_the_whole_run():
    open_ended = PPOConfig(learning_rate=1.0, warmup_updates=0, final_rate=0.0)
    assert learning_rate(open_ended, 50) == 1.0
    assert annealed(0.05, 0.01, open_ended.entropy_updates, 50) == 0.05
    run = open_ended.over(10)
    assert (run.decay_updates, run.entropy_updates) == (10, 10)
    assert learning_rate(run, 5) == pytest.approx(0.5)
    fixed = PPOConfig(decay_updates=7, entropy_updates=3)
    assert fixed.over(10) == fixed


def test_advantages_are_normalised_over_the_steps_that_happened():
    weight = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    found = normalised(torch.tensor([[1.0, 2.0, 99.0], [3.0, 4.0, 5.0]]), weight, torch.zeros(2, dtype=torch.int64), 10.0)
    # The mean is 3 and the variance 2.
    assert found.tolist() == [pytest.approx(each) for each in ([-(2**0.5), -(0.5**0.5), 0.0], [0.0, 0.5**0.5, 2**0.5])]


def test_a_task_whose_returns_vary_eight_times_as_much_does_not_drown_another():
    small = torch.tensor([[1.0, 2.0], [3.0, 6.0]])  # mean 3, variance 3.5
    large, task = 8.0 * small + 5.0, torch.tensor([0, 1, 0, 1])
    together = torch.stack([small[0], large[0], small[1], large[1]])
    found = normalised(together, torch.ones(4, 2), task, 10.0)
    expected = ((small - 3.0) / 3.5**0.5).tolist()
    assert found[task == 0].tolist() == [pytest.approx(each) for each in expected]
    assert found[task == 1].tolist() == [pytest.approx(each) for each in expected]


def test_no_step_counts_for_more_than_the_clip():
    # Nine zeros and a ten: mean 1, standard deviation 3, so that the ten lies at 3 and the zeros at -1/3.
    tail = torch.tensor([[0.0] * 9 + [10.0]])
    found = normalised(tail, torch.ones(1, 10), torch.zeros(1, dtype=torch.int64), 2.0)
    assert found[0].tolist() == pytest.approx([-1 / 3] * 9 + [2.0])


# PopArt


@given(st.lists(st.floats(-1000, 1000), min_size=2, max_size=20), st.floats(0.01, 1.0), st.integers(1, 4))
def test_values_stay_what_they_were_when_the_statistics_move(returns, rate, times):
    head = ValueHead(8).double()
    features = torch.randn(6, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    before = head.denormalise(head(features)).detach()
    for scale in range(1, times + 1):
        follow_returns(head, scale * torch.tensor(returns), torch.ones(len(returns)), rate)
    assert torch.allclose(head.denormalise(head(features)), before, rtol=1e-6, atol=1e-6)


def test_the_first_returns_set_the_statistics_and_later_ones_move_them():
    head = ValueHead(4)
    weight = torch.tensor([1.0, 1.0, 0.0])
    follow_returns(head, torch.tensor([10.0, 14.0, 999.0]), weight, 0.1)
    assert (head.mean.item(), head.std.item()) == pytest.approx((12.0, 2.0))
    assert head.normalise(torch.tensor([14.0])).item() == pytest.approx(1.0)
    follow_returns(head, torch.tensor([12.0, 12.0, 999.0]), weight, 0.1)
    assert head.mean.item() == pytest.approx(12.0)
    assert head.std.item() == pytest.approx(math.sqrt(2.0))
    for _ in range(200):
        follow_returns(head, torch.tensor([-3.0, -1.0, 999.0]), weight, 0.1)
    assert (head.mean.item(), head.std.item()) == pytest.approx((-2.0, 1.0), rel=1e-3)


def test_equal_returns_are_not_scaled_without_limit():
    head = ValueHead(4)
    follow_returns(head, torch.full((5,), 3.0), torch.ones(5), 0.1)
    assert head.std.item() == MIN_STD


# Figures


def test_explained_variance_of_known_predictions():
    returns, weight = torch.tensor([1.0, 2.0, 3.0, 50.0]), torch.tensor([1.0, 1.0, 1.0, 0.0])
    assert explained_variance(returns, returns, weight) == 1.0
    assert explained_variance(torch.full((4,), 7.0), returns, weight) == pytest.approx(0.0)
    assert explained_variance(-returns, returns, weight) == pytest.approx(-3.0)
    assert math.isnan(explained_variance(returns, torch.ones(4), weight))


def test_moments_of_a_known_sample():
    values, weight = torch.tensor([0.0, 0.0, 0.0, 4.0, 77.0]), torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0])
    found = moments(values, weight)
    assert found["mean"] == 1.0
    assert found["std"] == pytest.approx(math.sqrt(3.0))
    assert found["skew"] == pytest.approx(6.0 / 3.0**1.5)
    assert found["kurtosis"] == pytest.approx(21.0 / 9.0 - 3.0)
    assert found["positive"] == 0.25


def test_the_ceiling_is_high_where_returns_can_be_seen_and_low_where_they_cannot():
    problem = KnownReturn(32)
    rollout = play(new_policy(problem), problem, 0)
    seen = rollout.observations.host[..., OBSERVATION.host_index("val_loss_trend")]
    noise = torch.randn(seen.shape, generator=torch.Generator().manual_seed(0))
    assert regression_ceiling(rollout, 3.0 * seen + 5.0) > 0.99
    assert -0.1 < regression_ceiling(rollout, noise) < 0.1  # what cannot be seen is predicted by its mean, not by worse
    alone = RolloutBuffer(1, problem.steps, problem.slots, 2)
    assert math.isnan(regression_ceiling(play(new_policy(problem), KnownReturn(1), 0, buffer=alone), noise[:1]))


def test_entropies_are_reported_only_where_a_head_mattered_and_had_a_choice():
    problem = Sentinel(8)
    policy = new_policy(problem)
    rollout = play(policy, problem, 0, EXPLORE)
    with torch.no_grad():
        distribution = policy.replay(rollout.observations, EXPLORE)
        divergence = distribution.divergence(distribution)
    scores = distribution.score(rollout.actions)
    found = policy_figures(rollout, distribution, distribution, divergence, 0.2, torch.zeros(()))["entropy"]
    counted = [
        scores.entropies[host, step, 2].item() / math.log(4)
        for host in range(8)
        for step in range(problem.steps)
        if rollout.actions[host, step, 0] == Op.GERMINATE
    ]
    assert found[Head.BLUEPRINT] == pytest.approx(sum(counted) / len(counted), rel=1e-4)
    assert found[Head.BLUEPRINT] > 0.9, "near uniform, though it matters in few steps"
    assert math.isnan(found[Head.ALPHA_SPEED]), "never mattered"


# Configs


def test_settings_by_head_have_every_head_and_refuse_others():
    for kind in (ppo.EntropyMultipliers, ppo.PriorStrength):
        assert [field.name for field in fields(kind)] == [head.value for head in Head]
    with pytest.raises(ConfigError, match=r"unknown key 'entropy_multipliers\.tmpo'; did you mean 'tempo'"):
        from_mapping(PPOConfig, {"entropy_multipliers": {"tmpo": 1.0}})
    with pytest.raises(ConfigError, match=r"unknown key 'prior_strength\.blueprints'; did you mean 'blueprint'"):
        from_mapping(PPOConfig, {"prior_strength": {"blueprints": 1.0}})


@pytest.mark.parametrize(
    "setting", [{"gamma": 1.1}, {"clip_range": -0.1}, {"epochs": 0}, {"minibatches": 0}, {"learning_rate": -1.0}, {"decay": "slow"}]
)
def test_settings_outside_their_range_are_refused(setting):
    with pytest.raises(ConfigError):
        from_mapping(PPOConfig, setting)


def test_the_defaults_are_those_of_the_design():
    config = PPOConfig()
    assert (config.gamma, config.gae_lambda, config.clip_range, config.epochs) == (0.995, 0.97, 0.2, 4)
    assert (config.learning_rate, config.max_gradient_norm, config.target_kl) == (3e-4, 0.5, 0.015)
    assert config.value_clip is None
    assert (config.entropy_start, config.prior_strength.op, config.prior_strength.blueprint) == (0.05, 0.2, 0.02)
    optimizer = Learner(new_policy(Sentinel(1)), config).optimizer
    assert [(group["name"], group["eps"], group["weight_decay"]) for group in optimizer.param_groups] == [
        ("actor", 1e-5, 0.0),
        ("critic", 1e-5, 0.01),
    ]


# The reference


def losses(made: Learner, rollout: Rollout) -> float:
    """What the distance from its reference costs a policy on a round."""
    batch = made.prepare(rollout, torch.zeros_like(rollout.reward), made._distribution(made._logits(rollout), rollout), 1)
    tally = Tally(list)
    made.actor_loss(batch, 0.0, tally)
    return tally["prior_loss"][0].item()


def test_a_policy_is_held_near_the_one_that_it_goes_on_from_and_not_near_the_prior():
    problem = Sentinel(4)
    before = new_policy(problem, seed=3)
    with torch.no_grad():
        before.heads.op.bias.copy_(torch.tensor([0.0, 4.0, 0.0, 0.0, 0.0, 0.0]))  # far from a prior that mostly waits
    settings = quick(prior_strength=PriorStrength(op=10.0), target_kl=0.0, entropy_start=0.0, entropy_end=0.0)
    free, held = (Learner(copy.deepcopy(before), settings, reference=each) for each in (None, copy.deepcopy(before)))
    rollout = play(before, problem, 0, None)
    assert losses(held, rollout) == pytest.approx(0.0, abs=1e-6)
    assert losses(free, rollout) > 10.0
    for made in (free, held):
        for _ in range(5):
            made.update(rollout)
    moved = {made: made.policy.replay(rollout.observations).divergence(before.replay(rollout.observations)).mean() for made in (free, held)}
    assert moved[held] < 0.1 * moved[free]
    assert held.reference is not None
    assert all(torch.equal(one, other) for one, other in zip(held.reference.parameters(), before.parameters(), strict=True))
    resumed = Learner(new_policy(problem, seed=5), settings, reference=new_policy(problem, seed=6))
    resumed.load_state(held.state())
    assert losses(resumed, rollout) == losses(held, rollout)


# The update as a whole


def test_the_kl_stop_ends_the_policys_epochs_and_the_critic_goes_on():
    problem = Sentinel(4)
    rollout = play(new_policy(problem), problem, 0, EXPLORE)
    epochs, changed = {}, {}
    for target in (0.0, 1e-6):
        made = learner(epochs=5, target_kl=target, learning_rate=1e-2)
        values = made.policy.normalised_values(rollout.observations).detach()
        metrics = made.update(rollout)
        epochs[target] = metrics["train/epochs"]
        changed[target] = metrics["train/explained_variance_after"]
        assert (made.policy.normalised_values(rollout.observations) - values).abs().max() > 0.0
    assert epochs == {0.0: 5, 1e-6: 0.5}, "of two minibatches the first moves the policy, and the second finds that it moved"
    assert changed[1e-6] == pytest.approx(changed[0.0], abs=0.2), "the critic had all its epochs"


def test_the_reported_kl_is_that_between_the_policies_before_and_after():
    problem = Sentinel(4)
    made = learner(target_kl=0.0)
    rollout = play(made.policy, problem, 0, EXPLORE)
    before = made.policy.replay(rollout.observations, EXPLORE)
    metrics = made.update(rollout)
    by_head = made.policy.replay(rollout.observations, EXPLORE).divergence(before).mean(dim=(0, 1))
    assert metrics["train/kl"] == pytest.approx(by_head.sum().item(), rel=1e-3)
    assert [metrics[f"train/kl_by_head/{head.value}"] for head in HEADS] == pytest.approx(by_head.tolist(), rel=1e-3, abs=1e-7)
    assert metrics["train/kl"] > 1e-4


def test_explained_variance_of_monte_carlo_returns_owes_nothing_to_the_critic():
    # With lambda 0 a target is the reward and the critic's next word: one that is always wrong by the same can look good.
    problem = KnownReturn(6)
    made = Learner(new_policy(problem), quick(gae_lambda=0.0, gamma=1.0))
    rollout = play(made.policy, problem, 0, EXPLORE)
    metrics = made.update(rollout)
    summed = torch.stack([rollout.reward[:, step:].sum(dim=1) for step in range(rollout.reward.shape[1])], dim=1)
    expected = 1.0 - (summed - rollout.value).var() / summed.var()
    assert metrics["train/explained_variance_monte_carlo"] == pytest.approx(expected.item(), abs=1e-4)
    assert abs(metrics["train/explained_variance"] - expected.item()) > 0.01


def test_padding_changes_nothing():
    problem = Sentinel(4)
    outcomes = []
    for room in (problem.steps, problem.steps + 7):
        made = learner()
        buffer = RolloutBuffer(5, room, problem.slots, 4, exploration=EXPLORE)
        play(made.policy, problem, 0, EXPLORE, buffer=buffer, hosts=range(4))
        # A fifth host that stopped at once, or a good deal of padding behind it.
        batch = problem.observe(0)[:1]
        buffer.decided([4], 0, batch, made.policy.act(batch, made.policy.initial_state(1), None, EXPLORE))
        buffer.outcome([4], 0, torch.zeros(1), terminated=torch.ones(1, dtype=torch.bool))
        rollout = buffer.rollout()
        if room > problem.steps:
            rollout = replace(rollout, **_all_of(buffer))
        made.update(rollout)
        outcomes.append(made.policy.state_dict())
    for name in outcomes[0]:
        assert torch.allclose(outcomes[0][name], outcomes[1][name], atol=1e-5), name


def _all_of(buffer: RolloutBuffer) -> dict[str, object]:
    """Every tensor of a buffer in its full length, padding and all."""
    names = [field.name for field in fields(Rollout) if field.name != "exploration"]
    return {name: getattr(buffer, name) for name in names}


def test_every_step_counts_the_same_in_whatever_minibatch_it_is():
    problem = Sentinel(5)
    made = learner(problem)
    rollout = play(made.policy, problem, 0, EXPLORE)
    advantage = rollout.advantages(0.99, 0.95)
    before = made.policy.replay(rollout.observations, EXPLORE)
    gradients = []
    for minibatches in (1, 2):
        whole = made.prepare(rollout, advantage, before, minibatches)
        made.policy.zero_grad()
        for hosts in torch.arange(5).tensor_split(minibatches):
            loss = made.actor_loss(whole.part(hosts), 0.01, Tally(list))
            (loss / minibatches).backward()
        gradients.append(made.policy.heads.op.weight.grad)
    assert torch.allclose(gradients[0], gradients[1], atol=1e-6)


def test_gradients_are_measured_by_part_and_clipped_for_actor_and_critic_apart():
    made = learner()
    for number, parameter in enumerate(made.policy.parameters()):
        parameter.grad = torch.full_like(parameter, 0.01 * (number + 1))
    parts = {part: torch.cat([p.grad.flatten() for p in group]).norm().item() for part, group in made.policy.parts().items()}
    directions = {id(p): p.grad.clone() for p in made.policy.parameters()}
    gradients, tally = made.gradients, Tally(list)
    clipped_step(made.optimizer, gradients.measure(tally), 0.5)
    assert dict(zip(gradients.parts, tally["gradient_norm"][0].tolist(), strict=True)) == pytest.approx(parts, rel=1e-4)
    for group in made.optimizer.param_groups:
        after = torch.cat([p.grad.flatten() for p in group["params"]])
        before = torch.cat([directions[id(p)].flatten() for p in group["params"]])
        assert after.norm().item() == pytest.approx(0.5, rel=1e-3)
        assert torch.nn.functional.cosine_similarity(after, before, dim=0).item() == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(("name", "words"), [("reward", "reward"), ("value", "value"), ("log_prob", "log-probability")])
def test_a_round_that_is_not_finite_is_refused_and_the_policy_left_as_it_was(name, words):
    made = learner()
    rollout = play(made.policy, Sentinel(4), 0, EXPLORE)
    before = {key: tensor.clone() for key, tensor in made.policy.state_dict().items()}
    wrong = getattr(rollout, name).clone()
    wrong[0, 0] = math.nan
    with pytest.raises(LearningError, match=f"update 1 of the policy went wrong: a {words} of the round is not finite; what was saved "):
        made.update(replace(rollout, **{name: wrong}))
    assert all(torch.equal(made.policy.state_dict()[key], tensor) for key, tensor in before.items())
    assert made.updates == 0


@pytest.mark.parametrize(("epochs", "minibatches"), [(1, 1), (3, 2)])
@pytest.mark.parametrize("rate", [1e3, 1e4, 1e5, 1e10, 1e30, 1e39])
def test_learning_that_diverges_is_told_before_a_useless_policy_is_handed_on(rate, epochs, minibatches):
    made = learner(learning_rate=rate, epochs=epochs, minibatches=minibatches, target_kl=0.0)
    sentence = r"update \d of the policy went wrong: .* is not finite; what was saved is intact, .* a lower ppo\.learning_rate"
    with pytest.raises(LearningError, match=sentence):
        train(made, Sentinel(4), 8, EXPLORE)


def test_the_network_that_diverged_is_the_one_that_is_named():
    with pytest.raises(LearningError, match="the gradient of the critic is not finite"):
        train(learner(weight_decay=1e30), Sentinel(4), 1, EXPLORE)
    with pytest.raises(LearningError, match="the gradient of the actor is not finite"):
        train(learner(entropy_start=1e38), Sentinel(4), 1, EXPLORE)


def test_only_the_critics_weights_decay():
    made = learner(weight_decay=0.5)
    before = {name: parameter.detach().clone() for name, parameter in made.policy.named_parameters()}
    for parameter in made.policy.parameters():
        parameter.grad = torch.zeros_like(parameter)
    made.optimizer.step()
    for name, parameter in made.policy.named_parameters():
        of_critic = name.startswith(("critic.", "value_head."))
        kept = 1.0 - 0.5 * made.config.learning_rate if of_critic else 1.0
        assert torch.allclose(parameter, kept * before[name], rtol=1e-6), name
        assert of_critic or torch.equal(parameter, before[name]), name


def test_a_checkpointed_update_is_the_same_update():
    problem = Sentinel(4)
    outcomes = []
    for checkpointed in (False, True):
        made = learner(checkpoint_lstm=checkpointed)
        made.update(play(made.policy, problem, 0, EXPLORE))
        outcomes.append(made.policy.state_dict())
    assert all(torch.allclose(outcomes[0][name], outcomes[1][name], atol=1e-5) for name in outcomes[0])


def test_reports_have_the_names_that_dashboards_know_and_no_nan():
    problem = Sentinel(4)
    made = learner()
    flat = made.update(play(made.policy, problem, 0, EXPLORE))
    known = {"approx_kl", "clip_fraction", "clip_range", "entropy_loss", "explained_variance", "learning_rate", "loss"}
    known |= {"n_updates", "policy_gradient_loss", "value_loss"}
    assert {f"train/{name}" for name in known} <= flat.keys()
    assert {"rollout/ep_rew_mean", "rollout/ep_len_mean", "train/entropy/blueprint", "train/kl_by_head/op"} <= flat.keys()
    assert {"train/op_probability/wait", "train/logit_gap/slot", "train/gradient_norm/slot_encoder", "train/mattered/tempo"} <= flat.keys()
    assert "train/entropy/alpha_speed" not in flat, "it never mattered"
    assert all(isinstance(value, float) and math.isfinite(value) for value in flat.values())
    assert flat["rollout/ep_len_mean"] == problem.steps


def test_resetting_heads_forgets_what_the_optimiser_knew_of_them():
    problem = Sentinel(4)
    made = learner()
    made.update(play(made.policy, problem, 0, EXPLORE))
    weight = made.policy.heads.choices["blueprint"].get_parameter("weight")
    other = made.policy.heads.choices["tempo"].get_parameter("weight")
    assert weight in made.optimizer.state
    made.reset_heads(["blueprint"])
    assert weight not in made.optimizer.state
    assert other in made.optimizer.state
    made.update(play(made.policy, problem, 1, EXPLORE))
    assert weight in made.optimizer.state


def test_settings_that_change_between_two_updates_are_those_of_the_next():
    problem = Sentinel(4)
    made, resumed = learner(weight_decay=0.5), learner(weight_decay=0.25, learning_rate=1e-4)
    made.update(play(made.policy, problem, 0, EXPLORE))
    resumed.load_state(copy.deepcopy(made.state()))
    made.config = resumed.config
    for each in (made, resumed):
        each.update(play(each.policy, problem, 1, EXPLORE))
        assert [(group["lr"], group["weight_decay"]) for group in each.optimizer.param_groups] == [(1e-4, 0.0), (1e-4, 0.25)]
    assert all(torch.equal(a, b) for a, b in zip(made.policy.parameters(), resumed.policy.parameters(), strict=True))


def test_one_host_is_a_batch_of_one():
    problem = Sentinel(1)
    made = learner(problem, minibatches=4)
    metrics = made.update(play(made.policy, problem, 0, EXPLORE))
    assert metrics["train/epochs"] >= 1
    assert "train/explained_variance_ceiling" not in metrics


def test_the_prior_acts_in_every_state_in_which_a_head_could_matter():
    problem = Bandit(16)
    made = learner(problem)
    rollout = play(made.policy, problem, 0, greedy=True)
    distribution = made.policy.replay(rollout.observations)
    distance = distribution.distance_from(prior_tables(made.config.prior, rollout.observations))[:, 0]
    distance.sum().backward()
    column = HEADS.index(Head.BLUEPRINT)
    could = rollout.observations.op_mask[:, 0, Op.GERMINATE]
    did = rollout.actions[:, 0, 0] == Op.GERMINATE
    assert (could & ~did).any()
    assert (distance[~could, column] == 0.0).all()
    assert (distance[could & ~did, column] != 0.0).any()
