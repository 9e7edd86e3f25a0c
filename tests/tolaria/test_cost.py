"""The estimate of what an epoch costs: it knows what makes one host more expensive than another, and leaves no trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from esper.tolaria.data import Data
from esper.tolaria.tasks import get
from esper.tolaria.training.config import TrainingConfig
from esper.tolaria.training.cost import _counted, epoch_cost


@pytest.fixture(scope="module")
def data() -> Data:
    return get("digits").load(None, torch.device("cpu"))


def cost(data: Data, **member: Any) -> float:
    task = get("digits")
    standard = task.family.with_fixed(**member).standard
    return epoch_cost(task.prepare(data, standard, 0), data, standard, TrainingConfig())


def test_more_samples_smaller_batches_wider_and_deeper_hosts_cost_more(data: Data) -> None:
    usual = cost(data)
    assert cost(data, train_size=150) < cost(data, train_size=400) < usual
    assert cost(data, batch=16) > usual
    assert cost(data, widths=(64, 64, 64)) > usual
    assert cost(data, kernel=5) > usual
    assert cost(data, depth=2) > usual


def test_budget_noise_and_learning_rate_cost_nothing(data: Data) -> None:
    assert cost(data, epochs=3, label_noise=0.5, learning_rate=0.01) == cost(data)


def test_what_is_counted_is_computed_not_looked_at_anew() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Unflatten(1, (2, 2)), nn.Flatten(), nn.ReLU())
    assert _counted(net, torch.zeros(2, 3)) == (2, 8.0, 24.0)


def test_counting_leaves_the_network_and_the_random_streams_alone() -> None:
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5))
    before, streams = net[0].running_mean.clone(), torch.get_rng_state()
    _counted(net, torch.ones(2, 3))
    assert torch.equal(net[0].running_mean, before)
    assert torch.equal(torch.get_rng_state(), streams)
