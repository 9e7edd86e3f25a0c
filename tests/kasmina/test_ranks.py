"""Two processes train one model that grows: whatever happens they have the same model, or say in a sentence why not."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from esper.kasmina.fingerprint import sum_of_bits
from esper.leyline.stages import Stage
from tests.kasmina.garden import grow, same
from tests.kasmina.rank_scenarios import PATIENCE, grow_by_plan
from tests.ranks import launch


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank has found; rank 1 dies at the end."""
    return launch("tests.kasmina.rank_scenarios", tmp_path_factory.mktemp("ranks"), killed=(1,))


def close(a: list[Tensor], b: list[Tensor], tolerance: float) -> None:
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


def test_parameters_are_equal_after_thirty_events_of_growth(found: list[dict[str, Any]]) -> None:
    first, second = (each["thirty"] for each in found)
    assert same(first["parameters"], second["parameters"])
    assert first["stages"] == second["stages"]
    assert first["live"], "seeds are among what is compared"
    assert first["refusals"] == second["refusals"] > 0, "a refusal is the same everywhere too"


@pytest.mark.parametrize(
    ("how", "isolation", "tolerance"),
    [
        ("ste", "ste", 1e-5),
        ("shadow", "shadow", 1e-5),
        ("accumulated", "ste", 1e-5),
        ("accumulated shadow", "shadow", 1e-5),
        ("outer", "ste", 1e-5),
        ("boost", "boost", 2e-2),  # its pull is by the sizes of a batch's features and gradients, which halves of it have others of
    ],
)
def test_two_ranks_with_half_a_batch_each_train_as_one_process_with_the_whole(
    found: list[dict[str, Any]], how: str, isolation: str, tolerance: float
) -> None:
    assert same(found[0][how], found[1][how])
    close(found[0][how], grow_by_plan(isolation), tolerance)


def test_a_hook_that_sends_more_than_once_is_done_before_the_seeds_are_reduced(found: list[dict[str, Any]]) -> None:
    assert same(found[0]["hooked"], found[1]["hooked"])


def test_a_gradient_that_one_rank_lacks_counts_as_zero_and_one_that_all_lack_stays_missing(found: list[dict[str, Any]]) -> None:
    first, second = (each["missing"] for each in found)
    assert same(first["one"], second["one"])
    close(first["one"], [0.5 * grad for grad in first["alone"]], 1e-6)
    assert any(grad.any() for grad in first["one"])
    assert {*first["none"], *second["none"]} == {None}


def test_buffers_of_seeds_become_those_of_rank_0_at_the_end_of_an_epoch(found: list[dict[str, Any]]) -> None:
    first, second = (each["buffers"] for each in found)
    before = len(first) // 2
    assert not same(first[:before], second[:before])
    assert same(first[:before], first[before:])
    assert same(first[before:], second[before:])


def test_what_grew_before_the_model_was_wrapped_gets_the_values_of_rank_0(found: list[dict[str, Any]]) -> None:
    first, second = (each["grown before"] for each in found)
    assert same(first["parameters"], second["parameters"])
    assert not same(first["mine"], second["mine"])
    assert 'of slot \'1\', stage is "DORMANT" on rank 0 and "TRAINING" on rank 1' in first["refused"]
    assert second["refused"].startswith("RankError: the ranks are not equal when it was wrapped: ")


def test_an_output_without_tensors_to_be_found_is_told_before_the_optimiser_steps(found: list[dict[str, Any]]) -> None:
    first, second = (each["outputs"] for each in found)
    assert same(first["Answer"], second["Answer"])
    for each in (first, second):
        assert each["Opaque"].startswith("RankError: the gradients of the seeds were not reduced over the ranks: no tensor was found")


MISTAKES = {
    "other command": r"at germinate\('1', 'lora8', style=LINEAR_ADD, tempo=5, .*\) and rank 1 at germinate\('3', 'norm', .*\); every",
    "other settings": r"tempo=2, .* and rank 1 at germinate\('1', 'lora8', style=LINEAR_ADD, tempo=3",
    "command against tick": r"rank 0 is at germinate\('1', .*\) and rank 1 at tick\(\); every rank gives the same commands in order",
    "parameter": r"the ranks are not equal at the end of an epoch: parameter 'slots\.1\.seed\.\w+' differs, 1 of \d+ do;",
    "record": r"at the end of an epoch: of slot '1', trial_contribution is 1\.0 on rank 0 and 2\.0 on rank 1",
    "FSDP around": r"FullyShardedDataParallel shards parameters, and seeds that grow later cannot be; wrap the Growable in Distributed",
    "FSDP inside": r"the model is sharded by FullyShardedDataParallel, and seeds are not; grow it first",
    "join": r"a rank that has come to its end cannot stand in .*; give every rank the same number of steps, without join\(\)",
    "DDP inside": r"DistributedDataParallel goes around the Growable, not inside",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_would_make_the_ranks_differ_is_told_to_each(found: list[dict[str, Any]], mistake: str) -> None:
    told = [each["mistakes"][mistake] for each in found]
    assert re.search(MISTAKES[mistake], told[0]), told[0]
    assert all(each.startswith("RankError: ") for each in told)


def test_a_command_that_not_all_give_changes_nothing(found: list[dict[str, Any]]) -> None:
    assert {each["mistakes"]["still empty"] for each in found} == {"{'DORMANT'}"}


def test_a_copy_belongs_to_its_process_alone(found: list[dict[str, Any]]) -> None:
    assert found[0]["mistakes"]["alone"] == ""
    assert found[0]["afterwards"] == (None, Stage.GERMINATED), "so does the model, once the ranks have parted"


def test_a_command_of_one_rank_alone_ends_in_a_sentence_within_the_time_out(found: list[dict[str, Any]]) -> None:
    assert re.match(r"RankError: rank 0 is at germinate\('1', 'lora8', .*\), where every rank has to come within 3 s", found[0]["alone"])
    assert "Ranks 1 failed" in found[0]["alone"]


def test_a_lost_rank_ends_in_an_error_within_the_time_out(found: list[dict[str, Any]]) -> None:
    lost = found[0]["lost"]
    assert lost["tick"].startswith("RankError: rank 0 is at tick(), where every rank has to come within 3 s, and not all did: one was lost")
    assert lost["backward"].startswith(("RuntimeError", "RankError"))
    assert lost["seconds"] < 4 * PATIENCE


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.float8_e4m3fn, torch.int32])
def test_a_sum_of_bits_sees_any_change_of_an_element(dtype: torch.dtype) -> None:
    tensor = torch.arange(24.0).reshape(2, 3, 4).to(dtype).transpose(0, 2)
    before = sum_of_bits(tensor)
    assert torch.equal(before, sum_of_bits(tensor.contiguous()))
    changed = tensor.clone()
    changed[1, 1, 1] = 3.0
    assert not torch.equal(before, sum_of_bits(changed))
    assert torch.equal(before, sum_of_bits(changed.copy_(tensor)))
    zeros = torch.zeros(3)
    assert not torch.equal(sum_of_bits(zeros), sum_of_bits(-zeros)), "bits, not values"


def test_with_the_process_group_the_ranks_end_and_the_model_goes_on_alone() -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    model = grow()
    wrapped = DistributedDataParallel(model)
    ranks = model.ranks
    assert ranks is not None
    assert ranks.are_there
    torch.distributed.destroy_process_group()
    assert not ranks.are_there, "nothing of ours keeps the group, or its threads, alive"
    assert model.ranks is None
    assert wrapped.module is model
    model.germinate("mix", "mlp_small")
    model.tick()
    assert model.at(Stage.TRAINING) == ["mix"]
