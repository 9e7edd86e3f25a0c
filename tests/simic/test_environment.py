"""The environment as Gymnasium sees it: its spaces, masks, rewards, seeds and mistakes."""

from __future__ import annotations

import copy
import math
import pickle
import subprocess
import sys
from itertools import pairwise

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env, data_equivalence

from esper.leyline.actions import HEADS_FOR_OP, Decision, Head, Op
from esper.leyline.errors import ConfigError, EsperError, UnknownNameError
from esper.leyline.observation import OBSERVATION
from esper.simic.environment import ActionError, GrowthEnv
from esper.simic.environment.actions import Composites, Heads
from esper.simic.growth.config import GrowthConfig
from esper.simic.growth.environment import Growth, Start
from esper.tolaria.training.config import TrainingConfig
from tests.simic.tiny import OPEN, heads, inner, make, masks_of, onward, uneven_task

IDS = ["esper/Growth-v0", "esper/GrowthFlat-v0"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ESPER_DATA", str(tmp_path))


def play(env, seed, steps=100):
    """Everything that an episode of drawn legal actions gives, in order."""
    env.action_space.seed(seed)
    observation, info = env.reset(seed=seed)
    told = [(observation, info)]
    while len(told) <= steps:
        told.append(env.step(env.action_space.sample(mask=info["action_mask"])))
        info = told[-1][-1]
        if told[-1][2]:
            break
    return told


# Gymnasium's rules


@pytest.mark.parametrize(("name", "structured"), [(IDS[0], False), (IDS[0], True), (IDS[1], False)])
def test_the_checker_of_gymnasium_has_nothing_to_say(name, structured):
    env = make(name, structured=structured, epochs=3)
    check_env(env.unwrapped)  # a warning is an error in these tests
    assert env.unwrapped.spec.id == name


@pytest.mark.parametrize("name", IDS)
def test_the_same_seed_and_actions_give_the_same_episode_bit_for_bit(name):
    first, second, other = play(make(name), 3), play(make(name), 3), play(make(name), 4)
    assert data_equivalence(first, second, exact=True)
    assert not data_equivalence(first[0], other[0])


def test_seeds_draw_hosts_from_the_pool_and_options_choose_one_without_shifting_the_draws():
    env = make(seeds=range(10, 16), epochs=1)
    drawn = [env.reset(seed=1 if not i else None)[1]["host_seed"] for i in range(8)]
    assert set(drawn) <= set(range(10, 16))
    assert len(set(drawn)) > 1
    again = [env.reset(seed=1 if not i else None, options={"host_seed": 99} if i == 3 else None)[1]["host_seed"] for i in range(8)]
    assert again == [*drawn[:3], 99, *drawn[4:]]


def test_an_episode_is_a_budget_and_ends_terminated_with_its_figures():
    told = play(make(epochs=4), 0)[1:]
    assert [(terminated, truncated, "final" in info) for _, _, terminated, truncated, info in told] == [
        *[(False, False, False)] * 3,
        (True, False, True),
    ]
    assert {"val_accuracy", "val_loss", "parameters", "fossilized"} <= told[-1][-1]["final"].keys()


def test_a_time_limit_of_the_user_truncates():
    told = play(make(epochs=4, max_episode_steps=2), 0, steps=2)
    assert told[-1][2:4] == (False, True)


@pytest.mark.parametrize("mode", ["shaped", "sparse"])
def test_the_parts_of_the_reward_sum_up_to_it(mode):
    told = play(make(reward=mode, epochs=3, fix={"widths": [4, 4, 4], "kernel": 3, "train_size": 200, "batch": 20}), 5)[1:]
    assert all(reward == pytest.approx(math.fsum(info["reward_components"].values()), abs=1e-12) for _, reward, _, _, info in told)
    assert any(reward != 0 for _, reward, _, _, _ in told)
    assert set(told[0][-1]["reward_components"]) == ({"terminal"} if mode == "sparse" else {*told[-1][-1]["reward_components"]})


# Masks and actions


def test_masks_say_exactly_what_tamiyo_finds_legal_in_every_state_of_a_life():
    env, terminated, legal_ops = make(epochs=12, fix={"widths": [2, 2], "train_size": 100}), False, set()
    env.reset(seed=0)
    hosts = inner(env).setup.hosts
    full, core = Composites(hosts.slots, hosts.blueprints, "full"), Composites(hosts.slots, hosts.blueprints)
    while not terminated:
        masks = masks_of(env)
        found = np.array([masks.legal(masks.decision(row)) for row in full.table.tolist()])
        assert (full.flat_mask(masks) == found).all()
        assert (full.mask(masks) == found).all()
        assert core.flat_mask(masks).tolist() == [masks.legal(masks.decision(row)) for row in core.table.tolist()]
        for position, (head, mask) in enumerate(zip(Head, inner(env).setup.actions.mask(masks), strict=True)):
            rows = full.table[found & np.isin(full.table[:, 0], [op for op in Op if head in HEADS_FOR_OP[op]])]
            assert set(np.flatnonzero(mask).tolist()) == (set(rows[:, position].tolist()) or {masks.idle(head)}), head
        legal_ops |= {Op(op) for op in np.flatnonzero(masks.ops())}
        _, _, terminated, _, info = env.step(heads(masks, onward(masks)))
        assert info["refused"] == ""
    assert legal_ops == set(Op)


def test_action_masks_are_the_masks_of_info_in_one_array():
    for name in IDS:
        env = make(name)
        info = env.reset(seed=0)[1]
        flat = env.get_wrapper_attr("action_masks")()
        mask = info["action_mask"]
        assert flat.dtype == np.bool_
        assert flat.tolist() == np.concatenate(mask if isinstance(mask, tuple) else [mask]).astype(bool).tolist()


def test_the_tables_of_whole_decisions_have_each_decision_once_and_wait_first():
    full, core = Composites(3, tuple("abcdefghijk"), "full"), Composites(3, tuple("abcdefghijk"))
    assert len(full.table) == full.space.n == 1 + 3 * 11 * 64 + 3 + 3 + 3 * 20 + 3 * 320
    assert len(core.table) == core.space.n == 1 + 3 * (11 + 3)
    for table in (full.table, core.table):
        assert table[0, 0] == Op.WAIT
        assert len({*map(tuple, table.tolist())}) == len(table)
    assert {*map(tuple, core.table.tolist())} <= {*map(tuple, full.table.tolist())}


def test_what_passes_the_exact_mask_is_never_refused():
    env = make("esper/GrowthFlat-v0", heads="full", epochs=10)
    assert [info["refused"] for *_, info in play(env, 1)[1:]] == [""] * 10


def test_a_combination_that_is_not_legal_waits_pays_and_says_why():
    env = make(epochs=12)
    info = env.reset(seed=0)[1]
    action = heads(masks_of(env), Decision(op=Op.GERMINATE, slot="r0c0", blueprint="norm"))
    for _ in range(7):
        info = env.step(heads(masks_of(env), onward(masks_of(env))))[-1]
    # Some slot can be germinated, and something can be done with this one; but not the one with the other.
    assert all(mask[index] for mask, index in zip(info["action_mask"], action, strict=True))
    observation, _, _, _, info = env.step(action)
    assert info["refused"].startswith("GERMINATE r0c0: the slot is ")
    assert info["reward_components"]["costs"] <= -inner(env).setup.config.reward.refused
    assert [event["kind"] for event in info["events"]].count("refused") == 1
    assert observation[OBSERVATION.host_index("last_op_succeeded")] == -1
    assert sum(event["kind"] == "stage_changed" and event["cause"] == "germinate" for event in info["events"]) == 0


def test_a_rule_that_the_body_does_not_know_binds_as_well():
    env = make()
    env.reset(seed=0)
    env.step(heads(masks_of(env), Decision(op=Op.GERMINATE, slot="r0c0", blueprint="norm")))
    info = env.step(heads(masks_of(env), Decision(op=Op.PRUNE, slot="r0c0")))[-1]
    assert "epochs old" in info["refused"]
    assert masks_of(env).why_not(Op.GERMINATE, "r0c1") == "GERMINATE r0c1: slot 'r0c0' is TRAINING; one start at a time"


def test_hosts_with_fewer_slots_are_filled_up_with_zeros_that_no_action_can_name():
    with uneven_task() as task:
        env = make(task=task, member="family", fix={}, epochs=None, seeds=range(12), structured=True)
        counts = set()
        for seed in range(12):
            observation, info = env.reset(options={"host_seed": seed})
            there = len(info["slots"])
            counts.add(there)
            assert observation["slots"].shape[0] == 3
            assert not observation["slots"][there:].any()
            assert not info["action_mask"][1][there:].any()
            assert observation["slots"][:there].any(axis=1).all()
            if there == 2:
                told = env.step(np.array([Op.GERMINATE, 2, 0, 0, 0, 0, 0, 0]))[-1]
                assert told["refused"] == "unknown slot '2'; known: r0c0, r0c1"
        assert counts == {2, 3}


def test_slots_that_are_not_enabled_cannot_be_named():
    env = make("esper/GrowthFlat-v0", slots=["r0c1"])
    legal = np.flatnonzero(env.reset(seed=0)[1]["action_mask"])
    named = {(decision.op, decision.slot) for decision in map(inner(env).decision, legal)}
    assert named == {(Op.WAIT, ""), (Op.GERMINATE, "r0c1")}


# What is seen


def test_both_forms_of_the_observation_hold_the_same_and_the_names_say_where():
    flat, structured = make(), make(structured=True)
    names = inner(flat).observation_names()
    for env in (flat, structured):
        env.reset(seed=0)
    action = heads(masks_of(flat), Decision(op=Op.GERMINATE, slot="r0c1", blueprint="conv_light"))
    seen, parts = flat.step(action)[0], structured.step(action)[0]
    assert len(names) == len(set(names)) == len(seen)
    size = OBSERVATION.host_size + 3 * OBSERVATION.slot_size
    assert (seen[:size] == np.concatenate([parts["host"], parts["slots"].ravel()])).all()
    assert [name for name, value in zip(names[size:], seen[size:], strict=True) if value] == ["slot 1.blueprint.conv_light"]
    assert inner(flat).setup.hosts.blueprints[parts["blueprints"][1] - 1] == "conv_light"
    assert parts["blueprints"].tolist()[::2] == [0, 0]
    assert seen[names.index("slot 1.stage_training")] == 1


def test_rendering_has_a_line_for_the_host_and_one_for_each_slot():
    env = make(render_mode="ansi")
    env.reset(seed=0)
    env.step(heads(masks_of(env), Decision(op=Op.GERMINATE, slot="r0c1", blueprint="conv_light")))
    lines = env.render().splitlines()
    assert [line.split()[0] for line in lines] == ["epoch", "r0c0", "r0c1", "r0c2"]
    assert "TRAINING  conv_light" in lines[2]


def test_events_tell_the_life_of_a_seed_in_plain_values():
    env = make()
    env.reset(seed=0)
    events = env.step(heads(masks_of(env), Decision(op=Op.GERMINATE, slot="r0c1", blueprint="conv_light")))[-1]["events"]
    stages = [(event["before"], event["after"]) for event in events if event["kind"] == "stage_changed"]
    assert stages == [("DORMANT", "GERMINATED"), ("GERMINATED", "TRAINING")]
    assert all(before[1] == after[0] for before, after in pairwise(stages))


def test_a_control_is_trained_once_and_kept(tmp_path):
    final = play(make(control=True, epochs=2, seeds=[5]), 0)[-1][-1]["final"]
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    assert len(kept) == 1
    assert play(make(control=True, epochs=2, seeds=[5]), 0)[-1][-1]["final"] == final
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")} == kept
    assert 0 <= final["control_accuracy"] <= 100


def test_who_only_waits_is_its_own_control_to_the_last_digit():
    env = make(control=True, epochs=3, seeds=[5])
    env.reset(seed=0)
    steps = [env.step(heads(masks_of(env), Decision(op=Op.WAIT))) for _ in range(3)]
    final = steps[-1][-1]["final"]
    assert (final["val_accuracy"], final["val_loss"]) == (final["control_accuracy"], final["control_loss"])
    assert [reward for _, reward, *_ in steps] == [0.0, 0.0, 0.0]


def test_a_control_is_measured_as_its_host_is(tmp_path):
    def control(samples: int) -> float:
        return play(make(control=True, epochs=2, seeds=[5], training={"recalibrate": samples}), 0)[-1][-1]["final"]["control_loss"]

    settled, running = control(256), control(0)
    assert len(list(tmp_path.rglob("*.json"))) == 2, "one is not taken for the other"
    assert settled != running
    assert control(256) == settled


# Settings and mistakes


def test_gates_are_permissive_unless_told_otherwise():
    def strict(**settings):
        return GrowthEnv(**settings).setup.config.training.gates.strict

    assert not strict()
    assert not strict(training={"clip": 2.0})
    assert strict(gates="strict")
    assert strict(training={"clip": 2.0}, gates={"strict": True})
    assert GrowthEnv(training={"clip": 2.0}, gates="strict").setup.config.training.clip == 2.0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epoch": 3}, "did you mean 'epochs'"),
        ({"task": "digit"}, "did you mean 'digits'"),
        ({"gates": "stric"}, "did you mean 'strict'"),
        ({"reward": "sparce"}, "'sparse'"),
        ({"fix": {"width": [2]}}, "'width'"),
        ({"seeds": []}, "expected host seeds"),
        ({"seeds": [-1]}, "at least 0"),
        ({"seeds": 3}, "expected host seeds"),
        ({"task": []}, "task is empty"),
        ({"render_mode": "human"}, "unknown render mode 'human'"),
    ],
)
def test_a_wrong_setting_is_named_with_what_was_expected(settings, words):
    with pytest.raises(EsperError, match=words):
        GrowthEnv(**settings)


def test_a_wrong_choice_of_heads_or_option_or_action_is_named():
    with pytest.raises(ConfigError, match="expected 'core' or 'full'"):
        make("esper/GrowthFlat-v0", heads="ful")
    env = make()
    with pytest.raises(ConfigError, match="did you mean 'host_seed'"):
        env.reset(options={"hostseed": 3})
    with pytest.raises(UnknownNameError, match="task of this environment"):
        env.reset(options={"task": "stdlib"})
    env.reset(seed=0)
    with pytest.raises(ActionError, match="is not an action"):
        env.step(np.array([6, 0, 0, 0, 0, 0, 0, 0]))


def test_a_step_without_an_episode_asks_for_a_reset():
    env = make(epochs=1).unwrapped
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.action_masks()
    env.reset(seed=0)
    assert env.step(np.zeros(8, int))[2]
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.zeros(8, int))
    env.close()
    env.close()
    assert env.reset(seed=0)[0] in env.observation_space


def test_an_empty_mask_is_a_bug_that_shows_the_state():
    env = make()
    env.reset(seed=0)
    masks = masks_of(env)

    class Broken:
        slot_names, slot_mask, blueprint_mask = masks.slot_names, masks.slot_mask, masks.blueprint_mask

        def ops(self):
            return np.zeros(6, bool)

    with pytest.raises(AssertionError, match=r"no legal action; slots \('r0c0', 'r0c1', 'r0c2'\)"):
        Heads(3, masks.blueprint_names).mask(Broken())


def run(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_registration_loads_nothing_heavy():
    done = run("import esper.simic.registration, gymnasium, sys; print('esper/Growth-v0' in gymnasium.registry, 'torch' in sys.modules)")
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_without_gymnasium_one_sentence_says_what_to_install():
    done = run("import sys; sys.modules['gymnasium'] = None\nimport esper.simic.environment")
    assert done.stderr.splitlines()[-1].endswith('the environments need gymnasium; install it with: pip install "esper-lite[rl]"')


def test_an_environment_is_pickled_and_copied_in_the_middle_of_an_episode() -> None:
    env = make(control=True, epochs=4, seeds=[5])
    env.reset(seed=0)
    for _ in range(2):
        env.step(heads(masks_of(env), onward(masks_of(env))))
    twins = [pickle.loads(pickle.dumps(env)), copy.deepcopy(env)]
    rest = []
    for each in (env, *twins):
        steps = [each.step(heads(masks_of(each), onward(masks_of(each)))) for _ in range(2)]
        rest.append([(seen.tolist(), reward, ended, info["refused"], info["reward_components"]) for seen, reward, ended, _, info in steps])
    assert rest[0] == rest[1] == rest[2]
    assert rest[0][-1][2], "the episode came to its end"
    starts = [each.reset(seed=1)[0].tolist() for each in (env, *twins)]
    assert starts[0] == starts[1] == starts[2], "and a copy begins anew like the original"


def test_a_copy_made_before_a_decision_judges_what_the_decision_takes_like_the_original() -> None:
    config = GrowthConfig(control=False, epochs=12, fix={"widths": "[2,2,2]", "train_size": "100"}, training=TrainingConfig(gates=OPEN))
    growth = Growth(config)
    growth.begin({0: Start("digits", 1)})
    seen = growth.train()[0].observation
    while not seen.masks.slots(Op.PRUNE)[0]:
        growth.act({0: onward(seen.masks)})
        seen = growth.train()[0].observation
    twins = [pickle.loads(pickle.dumps(growth)), copy.deepcopy(growth)]
    for each in (growth, *twins):
        each.act({0: Decision(op=Op.PRUNE, slot=seen.masks.slot_names[0])})
    governors = [each.hosts[0].host.governor.state() for each in (growth, *twins)]
    assert governors[0]["losses"] == [], "the seed had influence, which the governor is told of"
    assert governors[0] == governors[1] == governors[2]
