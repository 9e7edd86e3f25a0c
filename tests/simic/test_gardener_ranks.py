"""Two processes with a Gardener each: one decision for both, one record, and the same network at every moment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from esper.nissa import read_events
from esper.tolaria.storage.runs import read_summary
from tests.kasmina.garden import as_bytes
from tests.ranks import launch
from tests.simic.rank_scenarios import EPOCHS, Loop

Found = tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gardener_ranks")


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    """What each rank has found."""
    first, second = launch("tests.simic.rank_scenarios", folder)
    return first, second


def equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_network_grows_alike_on_both_ranks_from_end_to_end(found: Found) -> None:
    first, second = (each["whole"] for each in found)
    assert first["history"] == second["history"]
    assert equal(first["values"], second["values"])
    assert any("GERMINATE" in line for line in first["history"])
    assert first["harvested"] == second["harvested"] > 378, "something was kept"


def test_it_does_as_well_as_one_process_with_the_whole_batch(found: Found) -> None:
    alone = Loop(0, size=1).run(EPOCHS)
    assert found[0]["whole"]["history"][0].split(";")[1] == alone.history()[0].split(";")[1], "it begins with the same decision"
    assert abs(found[0]["whole"]["accuracy"] - alone.gardener.history[-1].accuracy) <= 8.0
    assert found[0]["whole"]["accuracy"] >= 60.0


def test_a_run_goes_on_bit_for_bit_from_what_any_rank_has_saved(found: Found) -> None:
    first, second = (each["whole"] for each in found)
    assert as_bytes(first["saved"]) == as_bytes(second["saved"])
    for each in (first, second):
        assert each["again"]["history"] == each["history"]
        assert equal(each["again"]["values"], each["values"])


def test_rank_0_alone_records(found: Found, folder: Path) -> None:
    first, second = (each["whole"] for each in found)
    assert (first["folder"], second["folder"]) == (True, False)
    assert (first["events"] > 0, second["events"]) == (True, 0)
    assert as_bytes(first["record"]) == as_bytes(second["record"])
    events = list(read_events(folder / "run" / "events.jsonl"))
    assert [each.epoch for each in events if each.event.kind() == "epoch_finished"] == list(range(1, EPOCHS + 1))
    assert len(read_summary(folder / "run")["history"]) == EPOCHS


def test_batch_norms_are_made_anew_by_each_rank_and_the_figures_of_rank_0_count(found: Found) -> None:
    first, second = (each["normed"] for each in found)
    assert first["history"] == second["history"]
    assert equal(first["values"], second["values"])


def test_what_rank_0_measures_and_decides_counts_for_all(found: Found) -> None:
    first, second = (each["opinions"] for each in found)
    assert first["history"] == second["history"]
    assert "2 RMSE" in second["history"][0]
    assert as_bytes(first["state"]) == as_bytes(second["state"])
    assert (first["asked"], second["asked"]) == (2, 0)
    assert second["state"]["memory"] == {"asked": 2}


TROUBLES = {
    "evaluate": r"RankError: evaluate failed on rank 1: ValueError: no data here",
    "controller": r"RankError: the decision failed on rank 0: ValueError: no idea",
    "parameter": r"RankError: the ranks are not equal after epoch 2: parameter 'host\.4\.bias' differs, 1 of 6 do;",
    "unwrapped": r"RankError: the ranks are not equal after epoch 1: parameter 'host\.0\.weight' differs, 6 of 6 do; .*the wrapped model",
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_trouble_on_one_rank_is_told_to_both(found: Found, trouble: str) -> None:
    for each in found:
        assert re.match(TROUBLES[trouble], each["troubles"][trouble]), each["troubles"][trouble]


def test_a_step_that_failed_can_be_taken_again(found: Found) -> None:
    assert [(each["troubles"]["epoch"], each["troubles"]["again"]) for each in found] == [(1, 2), (1, 2)]
