"""Operations: what a seed adds is the same whether it is counted in its host or by itself."""

from __future__ import annotations

from functools import partial
from typing import get_args

import pytest
import torch
from torch import nn

from esper.kasmina.blueprints import names
from esper.kasmina.slot import Form
from esper.leyline.actions import Style
from esper.leyline.reports import Isolation
from esper.tolaria.training.flops import Known, count, per_sample
from esper.tolaria.training.host import Host
from tests.tolaria.doubles import double_host, double_text_host
from tests.tolaria.small import EASY


def hosts() -> list[Host]:
    """One that sees images and one that reads."""
    return [double_host(0), double_text_host(0)]


@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize("isolation", get_args(Isolation))
def test_a_seed_counts_as_much_by_itself_as_in_its_host(isolation: Isolation, backward: bool) -> None:
    for host in hosts():
        model, slot = host.model, next(iter(host.model.slots.values()))
        bare: Known = {}
        for blueprint in names(slot.place.shape.topology):
            for style in (Style.LINEAR_ADD, Style.GATED):
                model.germinate(slot.id, blueprint, style=style)
                slot.isolation = isolation
                for form in (Form.ISOLATED, Form.BLENDED, Form.TRIAL, Form.FOSSIL):
                    count = partial(host._count, backward)
                    alone, inside = ({}, None)
                    found = [per_sample(bare, seeds, model, {slot.id: form}, count, backward) for seeds in (alone, inside)]
                    assert found[0] == found[1], (blueprint, style, form)
                    bare = {backward: bare[backward]}
                model.prune(slot.id)
                while slot.seed is not None or slot.state.stage != type(slot.state)().stage:
                    model.tick()


def test_counting_leaves_a_host_as_it_was() -> None:
    host = double_host(0, EASY)
    model, (id, *_) = host.model, host.model.slot_ids
    model.germinate(id, names(model.slots[id].place.shape.topology)[0])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    form = model.slots[id].form
    per_sample({}, {}, model, {id: Form.TRIAL}, partial(host._count, True), True)
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert model.slots[id].form is form


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d])
def test_each_gradient_of_a_convolution_takes_as_many_operations_as_it_does(kind: type[nn.Conv2d], groups: int) -> None:
    layer, space = kind(8, 16, 3, padding=1, groups=groups, bias=False), (5,) if kind is nn.Conv1d else (5, 4)
    x = torch.randn(2, 8, *space, requires_grad=True)
    forward, backward = count(layer, 2, lambda: layer(x.clone()).sum(), True, x)
    # A multiplication and an addition for each of the positions, channels in a group, channels and places of the kernel.
    assert forward == 2 * (5 if kind is nn.Conv1d else 20) * 8 // groups * 16 * (3 if kind is nn.Conv1d else 9)
    assert backward == 2 * forward
    assert count(layer, 2, lambda: layer(x.detach()).sum(), True)[1] == forward
