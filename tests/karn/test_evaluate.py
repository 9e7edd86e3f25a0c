"""Evaluations of real policies on real hosts: every red flag where it belongs and none on a healthy policy, the same twice over, and the
untouched split left alone."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from esper.karn import evaluate
from esper.karn.evaluate_config import EvaluateConfig
from esper.karn.evaluate_page import evaluation_page
from esper.karn.red_flags import red_flags
from esper.karn.report import Diagnosis, Report
from esper.karn.subjects import find_subjects
from esper.kasmina.blueprints import blueprint, unregister
from esper.leyline.actions import Head, Style
from esper.leyline.errors import ConfigError, EsperError
from esper.leyline.reports import Topology
from esper.tamiyo.controllers.prior import Prior
from esper.tamiyo.policy.policy_file import save_policy
from esper.tolaria.data import Data, FinalEvaluation
from esper.tolaria.tasks import get
from tests.karn.hand_made import Exploding, biased, sentinel, tiny

DRAWN = tiny(stochastic=True, draws=2, hosts=4, epochs=16)


def names(found: Diagnosis) -> set[str]:
    return {flag.name for flag in found.flags}


def flags_of(policy: object, **settings: Any) -> set[str]:
    (found,) = evaluate([policy], tiny(**settings)).diagnoses
    return names(found)


@pytest.fixture(scope="module")
def healthy() -> Report:
    """A sentinel, the same with a critic that is wrong throughout, and the heuristic."""
    policy = sentinel(DRAWN)
    wrong = deepcopy(policy)
    wrong.value_head.output.weight.data.neg_()
    return evaluate([policy, wrong, "heuristic"], DRAWN)


def test_a_healthy_policy_raises_no_flag(healthy: Report) -> None:
    policy, _, heuristic = healthy.diagnoses
    assert policy.flags == ()
    assert heuristic.flags == ()
    assert policy.actions.shares["all"]["WAIT"] > 0.6
    assert policy.calibration is not None
    assert policy.chance is not None
    assert policy.chance.draws == 2
    assert set(heuristic.absent) == {"entropy", "values", "chance"}


def test_a_policy_that_only_waits_has_collapsed() -> None:
    assert flags_of(biased(WAIT=50.0)) == {"collapse", "entropy", "no_seeds"}


def test_a_policy_that_waits_only_when_asked_for_the_likeliest_is_told_so() -> None:
    (found,) = evaluate([biased(Prior(wait=0.9))], tiny(hosts=2)).diagnoses
    assert "see --stochastic" in found.flags[0].text
    assert "entropy" not in names(found)


def test_an_op_drawn_by_lot_is_flagged() -> None:
    assert "entropy" in flags_of(biased(), hosts=2)


def test_a_head_that_always_says_the_same_is_flagged() -> None:
    policy = biased(Prior(wait=0.1, wait_when_ready=0.1), choices={Head.TEMPO: 1})
    (found,) = evaluate([policy], replace(DRAWN, epochs=8, hosts=4)).diagnoses
    (flag,) = [flag for flag in found.flags if flag.name == "entropy"]
    assert "the tempo head has collapsed" in flag.text
    assert "it chose 5 in 100%" in flag.text


def test_seeds_that_come_to_nothing_are_flagged() -> None:
    assert "survival" in flags_of(biased(GERMINATE=50.0, ADVANCE=-50.0, FOSSILIZE=-50.0), epochs=6)


def test_a_critic_that_is_wrong_is_flagged(healthy: Report) -> None:
    right, wrong, _ = healthy.diagnoses
    assert names(wrong) == {"values"}
    assert right.actions == wrong.actions
    assert right.calibration is not None
    assert wrong.calibration is not None
    assert wrong.calibration.correlation == pytest.approx(-right.calibration.correlation, abs=1e-4)
    assert healthy.flagged


def test_hosts_that_seeds_break_are_flagged() -> None:
    blueprint("exploding", Topology.MAP2D, purpose="breaks its host")(lambda shape: Exploding())
    try:
        # Added, as the multiplying style bounds what a seed can do to its host, whatever it gives out.
        policy = biased(choices={Head.STYLE: Style.LINEAR_ADD}, GERMINATE=5.0, ADVANCE=9.0)
        policy.heads.choices["blueprint"].bias.data[policy.config.blueprints.index("exploding")] += 30.0
        (found,) = evaluate([policy], tiny(hosts=2, epochs=8)).diagnoses
    finally:
        unregister("exploding", Topology.MAP2D)
    assert "rollbacks" in names(found)
    assert found.outcomes.rolled_back == 1.0


@pytest.mark.parametrize(
    ("change", "flag"),
    [
        (lambda d: replace(d, actions=replace(d.actions, shares={"all": {"WAIT": 0.08, "SET_ALPHA_TARGET": 0.92}})), "collapse"),
        (lambda d: replace(d, audit=replace(d.audit, violations=("host 0: DORMANT to FOSSILIZED is not in the table",))), "gates"),
    ],
)
def test_flags_that_no_policy_can_bring_about_here_follow_from_their_figures(
    healthy: Report, change: Callable[[Diagnosis], Diagnosis], flag: str
) -> None:
    assert [each.name for each in red_flags(change(healthy.diagnoses[0]), DRAWN)] == [flag]


def test_thresholds_decide(healthy: Report) -> None:
    strict = replace(DRAWN, survival_threshold=1.0, value_correlation=1.0, entropy_bounds=(0.0, 0.1), collapse_threshold=0.05)
    found = {flag.name for flag in red_flags(healthy.diagnoses[0], strict)}
    assert {"survival", "values", "entropy", "collapse"} <= found


def test_an_evaluation_is_the_same_twice_over_and_in_any_company() -> None:
    config = tiny(stochastic=True, draws=2, hosts=2, epochs=6)
    policy = biased(Prior(wait=0.3))
    alone, beside = evaluate([policy], config).to_plain(), evaluate(["wait", policy], config).to_plain()
    assert alone["diagnoses"] == beside["diagnoses"][1:]
    assert beside["diagnoses"][0]["outcomes"]["operations"] == 1.0, "who waits spends what hosts without growth do"
    assert beside["diagnoses"][1]["outcomes"]["operations"] > 1.0


def test_the_untouched_split_stays_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> None:
        raise AssertionError("the test split was read")

    monkeypatch.setattr(Data, "test", read)
    report = evaluate(["heuristic", biased()], tiny(hosts=1, epochs=3))
    assert len(report.diagnoses) == 2
    with pytest.raises(AssertionError, match="was read"):  # what is watched here is what reading it goes through
        get("digits").load(None, torch.device("cpu")).test(FinalEvaluation(asked_by="a test"))


def test_every_page_and_report_can_be_written(healthy: Report) -> None:
    page = evaluation_page(healthy, "esper evaluate <policy>")
    assert "esper evaluate &lt;policy&gt;" in page
    assert page.count("<svg") >= 6
    assert "NaN" not in healthy.to_json()
    assert ">nan<" not in page


def test_hosts_for_training_and_examination_are_refused() -> None:
    for seed in (1_000_000, 2_000_000_000):
        with pytest.raises(ConfigError, match="esper evaluate takes development seeds"):
            evaluate(["wait"], tiny(seed=seed))


def test_policies_are_found_by_name_file_and_table(tmp_path: Path) -> None:
    save_policy(biased(), tmp_path / "mine.safetensors")
    (tmp_path / "best.toml").write_text("[fixed]\nfirst = 2\n")
    config = EvaluateConfig()
    found = find_subjects(["wait", tmp_path / "mine.safetensors", str(tmp_path / "mine.safetensors"), tmp_path], config)
    assert [subject.name for subject in found] == ["wait", "mine (1)", "mine (2)", tmp_path.name]
    assert {subject.gamma for subject in found} == {0.995}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("heuristc", "unknown policy 'heuristc'; did you mean 'heuristic'?"),
        ("nothing.safetensors", "no policy at nothing.safetensors"),
        (".", "is not a run"),
        (3, "policy is a name"),
    ],
)
def test_what_is_no_policy_is_told_in_a_sentence(given: object, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EsperError) as error:
        find_subjects([given], EvaluateConfig())
    assert said in str(error.value)


def test_bounds_of_entropy_are_two_numbers_in_order() -> None:
    with pytest.raises(ConfigError, match="the smaller first"):
        EvaluateConfig(entropy_bounds=(0.9, 0.1))


def test_returns_are_what_was_earned(healthy: Report) -> None:
    found = healthy.diagnoses[0].calibration
    assert found is not None
    assert found.steps == 2 * DRAWN.hosts * 16
    assert np.isfinite([found.return_mean, found.return_std, found.explained_variance]).all()
