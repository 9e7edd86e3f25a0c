"""Averages of a growing network's weights: they grow alike, and torch's own, which cannot, is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.optim import swa_utils

from esper.kasmina import AveragedModel
from esper.leyline.errors import OptimizerError
from esper.leyline.stages import Stage
from tests.kasmina.garden import IMAGES, grow, lead, mix, same, seed_of, sgd, step, values, whole_life


def answers(model: nn.Module) -> Tensor:
    """In eval mode, on a copy."""
    with torch.no_grad():
        answer: Tensor = copy.deepcopy(model).eval()(IMAGES)
    return answer


@pytest.mark.parametrize("use_buffers", [False, True])
@pytest.mark.parametrize("inside", [False, True], ids=["the model itself", "inside another module"])
def test_an_average_that_takes_the_newest_weights_is_the_model_at_every_moment_of_its_growth(inside: bool, use_buffers: bool) -> None:
    net = grow()
    model = nn.Sequential(net, nn.Flatten()) if inside else net
    average = AveragedModel(model, avg_fn=lambda old, new, count: new, use_buffers=use_buffers)

    def between() -> None:
        average.update_parameters(model)
        assert torch.equal(answers(average), answers(model))
        assert [type(module) for module in average.module.modules()] == [type(module) for module in model.modules()]

    whole_life(net, sgd(net), between)


def test_the_average_of_a_new_seed_starts_from_the_seed() -> None:
    net = grow()
    optimizer = sgd(net)
    average = AveragedModel(net, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.75))
    average.update_parameters(net)
    host = values(net.host)
    net.germinate("mix", "mlp_small", tempo=1)
    net.advance("mix")
    average.update_parameters(net)
    born = values(seed_of(net, "mix"))
    assert same(values(seed_of(average.module, "mix")), born)
    step(net, optimizer)
    average.update_parameters(net)
    for first, now, mean in zip([*host, *born], net.parameters(), average.module.parameters(), strict=True):
        torch.testing.assert_close(mean, 0.75 * first + 0.25 * now)
    assert not same(values(seed_of(net, "mix")), born)


def test_a_seed_that_takes_the_place_of_another_is_averaged_anew() -> None:
    net = grow()
    optimizer = sgd(net)
    average = AveragedModel(net, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.75))
    lead(net, "mix", Stage.TRAINING, optimizer)
    average.update_parameters(net)
    lead_again = copy.deepcopy(seed_of(average.module, "mix"))
    net.prune("mix")
    while mix(net).stage is not Stage.DORMANT:
        net.tick()
    net.germinate("mix", "mlp_small")
    average.update_parameters(net)
    assert same(values(seed_of(average.module, "mix")), values(seed_of(net, "mix")))
    assert not same(values(seed_of(average.module, "mix")), values(lead_again))


def test_the_average_is_saved_and_loaded_as_it_has_grown() -> None:
    net = grow()
    optimizer = sgd(net)
    average = AveragedModel(net)
    lead(net, "mix", Stage.FOSSILIZED, optimizer)
    average.update_parameters(net)
    other = AveragedModel(grow())
    other.load_state_dict(average.state_dict())
    assert torch.equal(answers(other), answers(average))
    assert torch.equal(answers(average.module.harvest()), answers(average))


@pytest.mark.parametrize("wrap", [lambda net: net, nn.Sequential], ids=["the model itself", "inside another module"])
def test_torchs_own_average_is_refused_in_a_sentence(wrap: type[nn.Sequential]) -> None:
    with pytest.raises(OptimizerError, match=r"does not see what grows in a Growable; use esper\.AveragedModel, which grows alike"):
        swa_utils.AveragedModel(wrap(grow()))


def test_torchs_own_average_takes_what_is_harvested() -> None:
    net = grow()
    lead(net, "mix", Stage.FOSSILIZED, sgd(net))
    plain = net.harvest()
    average = swa_utils.AveragedModel(plain)
    average.update_parameters(plain)
    assert same(values(average.module), values(plain))
