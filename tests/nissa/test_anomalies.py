"""Anomaly detectors: each fires on a case that is made for it, once, and all are quiet on a healthy run; they survive whatever comes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.leyline.actions import Head, Op
from esper.leyline.config import from_mapping, to_mapping
from esper.leyline.errors import ConfigError
from esper.leyline.events import Anomaly, Envelope, Event, HostFinished, HostStarted, Note, PolicyUpdated, RolledBack
from esper.nissa.anomalies import AnomalyConfig, Detectors, describe

RECORDED: list[dict[str, float]] = json.loads(Path(__file__).with_name("healthy_rounds.json").read_text())
"""The rounds of `esper train ppo` as it is by default; of its figures, those that detectors look at."""

OFF = AnomalyConfig(
    entropy_floor=0,
    value_spread=0,
    value_explained=-1,
    ratio_kl=0,
    ratio_clipped=1,
    ratio_error=0,
    gradient_factor=0,
    gradient_vanished=0,
    hacking_trend=0,
    rollbacks_in_row=0,
    rollback_share=1,
)

Rounds = list[dict[str, float]]
Change = dict[str, float] | Callable[[int], dict[str, float]]


def envelope(event: Event, host: int | None = None, epoch: int | None = None) -> Envelope:
    return Envelope(seq=0, time=None, host=host, epoch=epoch, event=event)


def updates(rounds: Sequence[dict[str, float]]) -> list[Envelope]:
    return [envelope(PolicyUpdated(update=number, metrics=metrics)) for number, metrics in enumerate(rounds, start=1)]


def healthy() -> Rounds:
    return [dict(metrics) for metrics in RECORDED]


def changed(rounds: Iterable[int], change: Change) -> Rounds:
    """The recorded rounds, some of them, counted from 1, with other figures."""
    found = healthy()
    for number in rounds:
        found[number - 1] |= change(number) if callable(change) else change
    return found


def told(events: Sequence[Envelope], config: AnomalyConfig | None = None) -> list[tuple[int, Anomaly]]:
    """What detectors say, each with the place of the event, counted from 1."""
    detectors = Detectors(config or AnomalyConfig())
    return [(place, anomaly) for place, event in enumerate(events, start=1) for anomaly in detectors.see(event)]


def told_of(rounds: Rounds, config: AnomalyConfig | None = None) -> list[tuple[int, str]]:
    return [(place, anomaly.detector) for place, anomaly in told(updates(rounds), config)]


def started(round: int = 1, arm: str = "") -> HostStarted:
    return HostStarted(task="digits", seed=1, member={}, epochs=20, parameters=100, slots=("a",), round=round, arm=arm)


def finished(rollbacks: int) -> HostFinished:
    return HostFinished(
        val_accuracy=50.0,
        val_loss=1.0,
        test_accuracy=None,
        test_loss=None,
        host_parameters=100,
        parameters=100,
        rent=5.0,
        control_accuracy=None,
        control_loss=None,
        flops={},
        germinated=0,
        fossilized=0,
        pruned=0,
        rollbacks=rollbacks,
        reward=0.0,
        components={},
        decisions={},
        refused=0,
        slots={},
        seeds=(),
    )


def played(first: int, rollbacks: Sequence[int], round: int, arm: str = "") -> list[Envelope]:
    """A round in which each host has so many rollbacks."""
    hosts = range(first, first + len(rollbacks))
    begun = [envelope(started(round, arm), host, 0) for host in hosts]
    return begun + [envelope(finished(count), host, 20) for host, count in zip(hosts, rollbacks, strict=True)]


def rolled_back(host: int, *epochs: int) -> list[Envelope]:
    return [envelope(RolledBack(reason="the val loss is nan", to_epoch=0, pruned=()), host, epoch) for epoch in epochs]


# A healthy run


def test_the_recorded_default_run_is_healthy() -> None:
    assert len(RECORDED) == 24
    assert told(updates(healthy())) == []


def test_noise_about_a_healthy_round_is_healthy() -> None:
    drawn = random.Random(0)
    for _ in range(10):
        assert told(updates([drawn.choice(RECORDED) for _ in range(200)])) == []


def test_a_sentinel_that_is_sure_and_acts_rarely_is_healthy() -> None:
    """It waits in 94 of 100 steps and acts twice an episode, so that most heads are hardly used."""
    acts = {f"actions/{op.name.lower()}": 6.0 for op in Op} | {"actions/wait": 465.0, "rollout/ep_len_mean": 31.0}
    rare = {f"train/mattered/{head}": 6 / 495 for head in Head if head is not Head.OP}
    sure = {f"train/entropy/{head}": 0.01 for head in Head}
    assert told_of(changed(range(1, 25), acts | rare | sure)) == []


# Each detector on its own case

NOTHING_BUT_WAIT = {f"actions/{op.name.lower()}": 0.0 for op in Op} | {"actions/wait": 400.0}


def hacked(n: int) -> dict[str, float]:
    return {"rollout/ep_rew_mean": 0.02 * n, "rollout/against_control": 8.0 - 0.3 * n, "reward/terminal": 0.2 - 0.01 * n}


def dominated(n: int) -> dict[str, float]:
    honest = {"reward/terminal": 0.0, "reward/progress": 0.0}
    return {"rollout/ep_rew_mean": 0.5, "rollout/against_control": 8.0 - 0.3 * n, "reward/pbrs": 2.0 + 0.1 * n, **honest}


CASES: dict[str, tuple[str, Iterable[int], Change, int]] = {
    "a head has collapsed": ("entropy_collapse", range(10, 25), {"train/entropy/blueprint": 0.01}, 12),
    "the op is always WAIT": ("entropy_collapse", range(10, 25), {"train/entropy/op": 0.01, **NOTHING_BUT_WAIT}, 12),
    "values do not differ": ("value_collapse", range(10, 25), {"train/value_std": 0.01, "train/explained_variance_ceiling": 0.4}, 12),
    "values are wrong": ("value_collapse", range(10, 25), {"train/explained_variance": -0.2, "train/explained_variance_ceiling": 0.4}, 12),
    "KL": ("ratio_explosion", range(10, 25), {"train/kl": 0.8}, 10),
    "KL is NaN": ("ratio_explosion", range(10, 25), {"train/kl": float("nan")}, 10),
    "ratios are clipped": ("ratio_explosion", range(10, 25), {"train/clip_fraction": 0.8}, 10),
    "drawing and scoring disagree": ("ratio_explosion", range(10, 25), {"train/ratio_error": 0.3}, 10),
    "a gradient explodes": ("gradient_pathology", range(10, 12), {"train/gradient_norm/trunk": 40.0}, 10),
    "a gradient is infinite": ("gradient_pathology", range(1, 3), {"train/gradient_norm/trunk": float("inf")}, 1),
    "a gradient has vanished": ("gradient_pathology", range(10, 25), {"train/gradient_norm/op": 0.0}, 12),
    "a loss is NaN": ("gradient_pathology", range(10, 25), {"train/value_loss": float("nan")}, 10),
    "the reward rises, accuracy falls": ("reward_hacking", range(1, 25), hacked, 12),
    "a component has all of it": ("reward_hacking", range(1, 25), dominated, 12),
}


@pytest.mark.parametrize("case", CASES)
def test_each_learning_detector_fires_once_on_its_case(case: str) -> None:
    detector, rounds, change, place = CASES[case]
    assert told_of(changed(rounds, change)) == [(place, detector)]


@pytest.mark.parametrize("case", CASES)
def test_a_threshold_can_switch_a_detector_off(case: str) -> None:
    _, rounds, change, _ = CASES[case]
    assert told_of(changed(rounds, change), OFF) == []


def test_the_sentence_says_what_was_seen_and_what_would_be_usual() -> None:
    ((_, anomaly),) = told(updates(changed(range(10, 25), {"train/entropy/blueprint": 0.01})))
    assert anomaly.text == "the blueprint head has collapsed: its entropy where it had a choice is 0.01, below 0.05 for 3 rounds"
    assert (anomaly.value, anomaly.threshold) == (0.01, 0.05)


def test_an_anomaly_is_told_again_only_after_it_was_over() -> None:
    low = {"train/entropy/blueprint": 0.01}
    assert told_of(changed([5, 6, 8, 9], low)) == []  # never three in a row
    assert told_of(changed([5, 6, 7, 9, 10, 12, 13, 14], low)) == [(7, "entropy_collapse")]  # never three without
    assert told_of(changed([5, 6, 7, 11, 12, 13], low)) == [(7, "entropy_collapse"), (13, "entropy_collapse")]


def test_a_round_in_which_a_head_is_hardly_used_says_nothing_about_it() -> None:
    low = {"train/entropy/blueprint": 0.01}
    rare = low | {"train/mattered/blueprint": 0.01}
    assert told_of(changed(range(5, 25), rare)) == []
    assert told_of(changed([5, 8, 11], low)) == []
    rounds = changed([6, 7, 9, 10], rare)
    for number in (5, 8, 11):
        rounds[number - 1] |= low
    assert told_of(rounds) == [(11, "entropy_collapse")]


def test_an_op_head_that_is_sure_has_collapsed_only_when_it_no_longer_acts_or_does_nothing_else() -> None:
    sure = {"train/entropy/op": 0.01}
    assert told_of(changed(range(5, 25), sure)) == []
    acts = {f"actions/{op.name.lower()}": 0.0 for op in Op} | {"actions/germinate": 390.0, "actions/wait": 10.0}
    assert told_of(changed(range(5, 25), sure | acts)) == [(7, "entropy_collapse")]


@pytest.mark.parametrize("excuse", [{"train/explained_variance_ceiling": 0.0}, {"train/return_std": 1e-5}])
def test_a_critic_is_not_judged_where_there_is_nothing_to_foresee(excuse: dict[str, float]) -> None:
    wrong = {"train/value_std": 1e-6, "train/explained_variance": -0.5, "train/explained_variance_ceiling": 0.4}
    assert told_of(changed(range(1, 25), wrong | excuse)) == []


def test_a_critic_has_time_to_begin_with() -> None:
    wrong = {"train/value_std": 0.001, "train/explained_variance": -0.5, "train/explained_variance_ceiling": 0.4}
    assert told_of(changed(range(1, 6), wrong)) == []
    assert told_of(changed(range(1, 25), wrong)) == [(8, "value_collapse")]


def test_a_head_without_a_choice_may_have_no_gradient() -> None:
    rounds = changed(range(1, 25), {"train/gradient_norm/tempo": 0.0})
    for metrics in rounds:
        del metrics["train/entropy/tempo"]
    assert told_of(rounds) == []


def test_a_gradient_that_comes_back_to_a_head_is_no_explosion() -> None:
    rounds = changed(range(1, 20), {"train/gradient_norm/tempo": 1e-5})
    assert told_of(rounds) == []


def test_networks_that_get_smaller_and_are_worth_more_are_no_hack() -> None:
    def smaller(n: int) -> dict[str, float]:
        return {"rollout/ep_rew_mean": 0.02 * n, "rollout/against_control": 8.0 - 0.3 * n, "reward/terminal": 0.01 * n}

    assert told_of(changed(range(1, 25), smaller)) == []


def test_without_a_control_accuracy_itself_is_what_the_reward_stands_for() -> None:
    rounds = changed(range(1, 25), hacked)
    for number, metrics in enumerate(rounds):
        del metrics["rollout/against_control"]
        metrics["rollout/accuracy"] = 70.0 - number
    ((place, anomaly),) = told(updates(rounds))
    assert place == 12
    assert "while the accuracy fell from 68.5 to 60.5 points in 12 rounds" in anomaly.text


def test_an_update_that_is_told_again_is_passed_over() -> None:
    events = updates(changed(range(10, 25), {"train/kl": 0.8}))
    assert [place for place, _ in told([*events[:9], *events[:9], *events])] == [28]


# Rollbacks


def test_a_host_that_is_rolled_back_again_and_again_is_told_once() -> None:
    found = told([envelope(started(), 7, 0), *rolled_back(7, 3, 4, 5, 6, 7)])
    assert [(place, anomaly.detector) for place, anomaly in found] == [(4, "rollbacks")]
    assert found[0][1].text == "host 7 was rolled back 3 times in a row, the last time because the val loss is nan"
    assert [place for place, _ in told(rolled_back(7, 3, 6, 9, 20, 21, 22))] == [3, 6]
    assert told(rolled_back(7, 3, 4, 10, 11, 17, 18)) == []
    assert told([event for epoch in range(3) for host in (3 * epoch, 3 * epoch + 1) for event in rolled_back(host, epoch)]) == []


def test_of_many_hosts_only_some_are_told_by_themselves_and_their_share_at_the_end() -> None:
    begun = [envelope(started(), host, 0) for host in range(1000)]
    falls = [event for epoch in (3, 4, 5) for host in range(200) for event in rolled_back(host, epoch)]
    ends = [envelope(finished(3), host, 20) for host in range(1000)]
    found = [anomaly.text for _, anomaly in told([*begun, *falls, *ends])]
    assert len(found) == 11
    assert found[-1] == "the governor rolled back at least 201 of 1000 hosts of round 1, 20%, above 20%"


def test_the_share_of_a_round_is_told_once_for_rounds_that_follow_each_other() -> None:
    bad, good = [1, 1, 1, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]

    def texts(*rounds: Sequence[int]) -> list[str]:
        events = [event for number, row in enumerate(rounds, start=1) for event in played(8 * number, row, number)]
        return [anomaly.text for _, anomaly in told(events)]

    assert texts(good, good, good) == []
    assert texts(bad, bad, good, bad) == ["the governor rolled back at least 2 of 8 hosts of round 1, 25%, above 20%"]
    assert len(texts(bad, good, good, good, bad)) == 2
    (text,) = (anomaly.text for _, anomaly in told(played(0, bad, 3, arm="random")))
    assert "of the arm random" in text
    assert told(played(0, bad, 3), OFF) == []


# Whatever comes

NUMBERS = st.floats(width=64) | st.sampled_from([0.0, 0.01, 0.5, 1.0, 1e308, -1e308, float("nan"), float("inf")])
NAMES = st.sampled_from([*sorted(RECORDED[0]), "train/approx_kl", "train/gradient_norm/mine", "reward/mine", "train/my_loss"])
METRICS = st.dictionaries(NAMES, NUMBERS, max_size=8)
SMALL = st.integers(0, 4)
HOSTS = st.one_of(
    st.builds(lambda host, round, arm: envelope(started(round, arm), host, 0), st.integers(0, 40), SMALL, st.sampled_from(["", "wait"])),
    st.builds(lambda host, epoch: rolled_back(host, epoch)[0], SMALL, st.integers(0, 12)),
    st.builds(lambda host, count: envelope(finished(count), host, 20), SMALL, SMALL),
    st.builds(lambda host: envelope(RolledBack(reason="", to_epoch=0, pruned=()), host), st.none() | SMALL),
    st.builds(lambda: envelope(Note(text="hello"))),
)


@st.composite
def spells(draw: st.DrawFn) -> Rounds:
    """Some rounds of a case, with figures of any kind among them."""
    _, _, change, _ = CASES[draw(st.sampled_from(sorted(CASES)))]
    first, length = draw(st.integers(1, 24)), draw(st.integers(1, 8))
    return [changed([number], change)[number - 1] | draw(METRICS) for number in range(first, min(first + length, 25))]


PARTS = st.one_of(spells(), st.builds(lambda metrics: [metrics], METRICS), HOSTS)
EAGER = AnomalyConfig(patience=2, entropy_uses=0, value_warmup=0, hacking_window=6, hacking_trend=0.2, hacking_fall=0, rollbacks_in_row=2)


def in_order(parts: Sequence[Rounds | Envelope]) -> list[Envelope]:
    """The parts as events; updates are numbered."""
    events: list[Envelope] = []
    update = 0
    for part in parts:
        if isinstance(part, Envelope):
            events.append(part)
        else:
            events += [envelope(PolicyUpdated(update=update + place, metrics=metrics)) for place, metrics in enumerate(part, start=1)]
            update += len(part)
    return events


@settings(max_examples=150)
@given(parts=st.lists(PARTS, max_size=16), cut=st.integers(0, 60))
def test_detectors_that_are_saved_anywhere_say_the_same_afterwards(parts: list[Rounds | Envelope], cut: int) -> None:
    events = in_order(parts)
    straight, before, resumed = Detectors(EAGER), Detectors(EAGER), Detectors(EAGER)
    whole = [repr(straight.see(event)) for event in events]
    first = [repr(before.see(event)) for event in events[:cut]]
    resumed.load_state(json.loads(json.dumps(before.state(), allow_nan=False)))
    assert first + [repr(resumed.see(event)) for event in events[cut:]] == whole
    assert resumed.state() == straight.state()


def test_the_state_stays_small_however_long_the_run_and_however_many_its_hosts() -> None:
    detectors = Detectors(AnomalyConfig())

    def size() -> int:
        return len(json.dumps(detectors.state()))

    bad = {"train/entropy/blueprint": 0.01, "train/kl": 9.0, "train/gradient_norm/op": 0.0}
    sizes = []
    for number in range(1, 300):
        strange = {f"train/gradient_norm/part{number}": float("inf"), f"train/loss{number}_loss": float("nan"), f"reward/r{number}": 1.0}
        detectors.see(envelope(PolicyUpdated(update=number, metrics=RECORDED[number % 24] | bad | strange)))
        for host in range(number * 10, number * 10 + 10):
            for event in (envelope(started(number), host, 0), *rolled_back(host, 1, 2, 3)):
                detectors.see(event)
        sizes.append(size())
    assert max(sizes) < 60_000
    assert sizes[-1] <= max(sizes[:280])


# The config


def test_every_threshold_is_described_with_its_detector() -> None:
    described = {name for _, _, thresholds in describe() for name in thresholds}
    assert described == {field.name for field in fields(AnomalyConfig)}
    assert [name for name, _, _ in describe()] == [*dict.fromkeys(detector for detector, *_ in CASES.values()), "rollbacks"]


def test_a_threshold_out_of_its_range_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"'entropy_floor' must be a number, from 0 to 1; found 1.5"):
        AnomalyConfig(entropy_floor=1.5)
    with pytest.raises(ConfigError, match="hacking_window"):
        replace(AnomalyConfig(), hacking_window=1)
    with pytest.raises(ConfigError, match="did you mean 'ratio_kl'"):
        from_mapping(AnomalyConfig, {"ratio_k": 1.0})
    assert from_mapping(AnomalyConfig, to_mapping(OFF)) == OFF
