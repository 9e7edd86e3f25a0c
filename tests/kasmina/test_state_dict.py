"""A network's state at any moment of its growth: saved without pickle, loaded whole into any other moment, or refused whole."""

from __future__ import annotations

import copy
import io
import json
import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from esper.kasmina import Growable
from esper.leyline.errors import EsperError, StateError
from esper.leyline.stages import Stage
from tests.kasmina.garden import IMAGES, SLOTS, STAGES, everything, grow, lead, mix, same, seed_of, sgd, slot_of, step, tiny_host, values

RECORD = "slots.mix._extra_state"
State = dict[str, Any]


def grown(stage: Stage, **germination: Any) -> Growable:
    """A network with "mix" at this stage, a ramp under way in "late", and a few trained steps behind it."""
    net = grow()
    optimizer = sgd(net)
    lead(net, "mix", stage, optimizer, **germination)
    lead(net, "late", Stage.BLENDING, optimizer, tempo=5, style="gated")
    net.tick()
    step(net, optimizer)
    return net


def outputs(net: Growable) -> Tensor:
    """What the network computes in either mode, without leaving a trace."""
    copied = copy.deepcopy(net)
    return torch.cat([copied.eval()(IMAGES), copied.train()(IMAGES)]).detach()


def equal(a: State, b: State) -> bool:
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


def saved(net: Growable) -> State:
    return {name: value.clone() for name, value in net.state_dict().items()}


def record(state: State, name: str = RECORD) -> State:
    content: State = json.loads(bytes(state[name].tolist()))
    return content


def written(content: object) -> Tensor:
    return torch.tensor(list(json.dumps(content).encode()), dtype=torch.uint8)


def assert_refused(net: Growable, state: object, message: str, error: type[EsperError] = StateError, **settings: bool) -> None:
    """Loading raises, and not a bit of the network, its optimiser or the random stream is another."""
    optimizer = sgd(net)
    before = everything(net, optimizer)
    with pytest.raises(error, match=message):
        net.load_state_dict(state, **settings)  # type: ignore[arg-type]
    assert everything(net, optimizer) == before


# Round trips


@pytest.mark.parametrize("after", STAGES)
@pytest.mark.parametrize("before", STAGES)
def test_a_state_of_any_stage_loads_into_a_network_at_any_stage(before: Stage, after: Stage) -> None:
    source, target = grown(before), grow()
    optimizer = sgd(target)
    lead(target, "mix", after, optimizer, blueprint="lora32", style="gated")
    target.load_state_dict(source.state_dict())
    assert equal(saved(target), saved(source))
    assert torch.equal(outputs(target), outputs(source))
    assert target.reports() == source.reports()
    for slot in SLOTS:
        groups = [group for group in optimizer.param_groups if "slot" in group and group["slot"] == slot]
        assert [id(p) for p in groups[0]["params"]] == [id(p) for p in slot_of(target, slot).seed_parameters()]


@pytest.mark.parametrize("style", ["linear_add", "sigmoid_add", "linear_multiply", "gated"])
def test_a_loaded_network_lives_on_as_the_saved_one(style: str) -> None:
    first = grown(Stage.BLENDING, style=style)
    second = grow()
    second.load_state_dict(first.state_dict())
    for net in (first, second):
        optimizer = sgd(net)
        for _ in range(3):
            net.tick()
            step(net, optimizer)
        net.record("mix", contribution=3.0)
        net.fossilize("mix")
        net.prune("late", speed=2)
        for _ in range(9):
            net.tick()
        step(net, optimizer)
        net.germinate("late", "mlp_small")
    assert mix(second).stage is Stage.FOSSILIZED
    assert equal(saved(first), saved(second))
    assert first.journal[-6:] == second.journal[-6:]


def test_a_loaded_state_is_a_copy() -> None:
    source, target = grown(Stage.HOLDING), grow()
    state = source.state_dict()
    target.load_state_dict(state)
    before = {name: value.clone() for name, value in state.items()}
    optimizer = sgd(target)
    step(target, optimizer)
    target.tick()
    assert equal(dict(state), before)


def test_loading_keeps_the_mode_of_the_network() -> None:
    target = grow().eval()
    target.load_state_dict(grown(Stage.TRAINING).state_dict())
    assert not any(module.training for module in target.modules())


def test_a_state_of_another_precision_loads_into_this_one() -> None:
    source = grown(Stage.HOLDING)
    target = grow()
    state = {name: value.double() if value.is_floating_point() else value for name, value in source.state_dict().items()}
    target.load_state_dict(state)
    assert equal(saved(target), saved(source))


def test_a_state_can_be_assigned() -> None:
    source, target = grown(Stage.HOLDING), grow()
    state = saved(source)
    target.load_state_dict(state, assign=True)
    assert equal(saved(target), saved(source))
    assert seed_of(target, "mix").gamma.data_ptr() == state["slots.mix.seed.gamma"].data_ptr()
    assert torch.equal(outputs(target), outputs(source))


def test_a_network_of_half_precision_keeps_its_state() -> None:
    source, target = grown(Stage.HOLDING).to(torch.bfloat16), grow().to(torch.bfloat16)
    target.load_state_dict(source.state_dict())
    assert equal(saved(target), saved(source))
    assert seed_of(target, "mix").gamma.dtype is torch.bfloat16


# Files


@pytest.mark.parametrize("stage", STAGES)
def test_a_state_holds_tensors_alone_and_torch_loads_it_without_pickle(stage: Stage) -> None:
    net, file = grown(stage), io.BytesIO()
    assert all(type(value) is Tensor for value in net.state_dict().values())
    torch.save(net.state_dict(), file)
    file.seek(0)
    target = grow()
    target.load_state_dict(torch.load(file, weights_only=True))
    assert equal(saved(target), saved(net))


@pytest.mark.parametrize("stage", STAGES)
def test_a_state_goes_through_safetensors(stage: Stage, tmp_path: Path) -> None:
    net, target = grown(stage), grow()
    save_file(net.state_dict(), tmp_path / "net.safetensors")
    target.load_state_dict(load_file(tmp_path / "net.safetensors"))
    assert all(torch.equal(target.state_dict()[name], value) for name, value in net.state_dict().items())
    assert torch.equal(outputs(target), outputs(net))


def test_the_hosts_own_names_are_unchanged_so_that_its_checkpoints_load() -> None:
    net, bare = grown(Stage.FOSSILIZED), tiny_host()
    assert list(net.host.state_dict()) == list(bare.state_dict())
    net.host.load_state_dict(bare.state_dict())
    assert same(values(net.host), values(bare))


# Inside another module


class Parent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.body = nn.ModuleList([grow()])


def inner(parent: Parent) -> Growable:
    net = parent.body[0]
    assert isinstance(net, Growable)
    return net


def test_a_parent_module_saves_and_loads_what_has_grown_in_it() -> None:
    source, target = Parent(), Parent()
    lead(inner(source), "mix", Stage.FOSSILIZED, sgd(inner(source)), style="gated")
    lead(inner(source), "late", Stage.TRAINING, sgd(inner(source)))
    optimizer = sgd(inner(target))
    lead(inner(target), "stem.0", Stage.TRAINING, optimizer)
    inner(target)(IMAGES)
    target.load_state_dict(source.state_dict())
    assert equal(saved(inner(target)), saved(inner(source)))
    assert torch.equal(outputs(inner(target)), outputs(inner(source)))
    followed = [id(p) for group in optimizer.param_groups[1:] for p in group["params"]]
    assert followed == [id(p) for slot in SLOTS for p in slot_of(inner(target), slot).seed_parameters()], "the optimiser follows this too"


@pytest.mark.parametrize("key", ["record", "shape"])
def test_a_damaged_state_leaves_a_network_inside_a_parent_as_it_was(key: str) -> None:
    parent = Parent()
    lead(inner(parent), "mix", Stage.TRAINING, sgd(inner(parent)))
    state = {name: value.clone() for name, value in parent.state_dict().items()}
    if key == "record":
        state[f"body.0.{RECORD}"] = state[f"body.0.{RECORD}"][:-1]
    else:
        state["body.0.slots.mix.seed.gamma"] = torch.zeros(7)
    before = everything(inner(parent))
    with pytest.raises(StateError, match="slot 'mix': its record is damaged" if key == "record" else r"has shape \(7,\), expected \(6,\)"):
        parent.load_state_dict(state)
    assert everything(inner(parent)) == before


# Damage


def changed(**fields: Any) -> Callable[[State], State]:
    """A record with other values in the seed's life."""
    return lambda content: {**content, "life": {**content["life"], **fields}}


def without(field: str) -> Callable[[State], State]:
    return lambda content: {**content, "life": {k: v for k, v in content["life"].items() if k != field}}


RAMP = {"start": 0.0, "target": 1.0, "epochs": 2, "curve": "LINEAR", "elapsed": 1}
WRONG_RECORDS: list[tuple[str, Callable[[State], object], str]] = [
    ("another place", lambda c: {**c, "path": "head"}, "slot 'mix' is at 'mix' here and was saved at 'head'"),
    ("no place", lambda c: {"life": c["life"]}, "its record is damaged"),
    ("no life", lambda c: {"path": c["path"]}, "its record is damaged"),
    ("a list", lambda c: [c], "its record is damaged"),
    ("a number", lambda c: 3, "its record is damaged"),
    ("nothing", lambda c: None, "its record is damaged"),
    ("an empty life", lambda c: {**c, "life": {}}, "its record is damaged"),
    ("a life that is text", lambda c: {**c, "life": "long"}, "its record is damaged"),
    ("an unknown stage", changed(stage="SHADOWING"), "its record is damaged .*'SHADOWING'"),
    ("a stage that never lives", changed(stage="UNKNOWN"), "contradicts itself: its stage is UNKNOWN"),
    ("a stage by number", changed(stage=3), "its record is damaged"),
    ("an unknown style", changed(style="ADD"), "its record is damaged"),
    ("an unknown field", changed(mood="good"), "unknown key 'mood'"),
    ("a missing field", without("tempo"), "missing key 'tempo'"),
    ("a count that is text", changed(age="5"), "'age' must be an integer; found '5'"),
    ("a count below zero", changed(age=-1), "contradicts itself: age is -1"),
    ("a truth that is a number", changed(pruning=1), "'pruning' must be true or false"),
    ("a ramp without a curve", changed(ramp={k: v for k, v in RAMP.items() if k != "curve"}), "missing key 'ramp.curve'"),
    ("a ramp before blending", changed(ramp=RAMP), "it is TRAINING with a ramp of alpha"),
    ("blending without a ramp", changed(stage="BLENDING", ramp=None), "it is BLENDING without a ramp of alpha"),
    ("a ramp to elsewhere", changed(stage="BLENDING", ramp={**RAMP, "target": 0.5}), "to 0.5, 1 epochs done, and its target is 1.0"),
    ("a ramp out of bounds", changed(stage="BLENDING", ramp={**RAMP, "start": 2.0}), "its ramp runs from 2.0"),
    ("a target out of bounds", changed(alpha_target=1.5), r"its alpha target is 1\.5"),
    ("pruning before blending", changed(pruning=True), "it is being pruned while TRAINING"),
    ("gradients half told", changed(gradients={"steps": 3}), "its record is damaged"),
]


@pytest.mark.parametrize(("name", "wrong", "message"), WRONG_RECORDS, ids=[name for name, *_ in WRONG_RECORDS])
def test_a_record_that_no_seed_could_have_is_refused(name: str, wrong: Callable[[State], object], message: str) -> None:
    state = saved(grown(Stage.TRAINING))
    assert_refused(grown(Stage.HOLDING), {**state, RECORD: written(wrong(record(state)))}, message)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (changed(blueprint="mlp_smal"), "unknown blueprint 'mlp_smal'; did you mean 'mlp_small'"),
        (changed(blueprint="conv_light"), "'conv_light' is for map2d, map1d; the slot is vector"),
        (changed(blueprint=""), "unknown blueprint ''"),
    ],
)
def test_a_record_of_a_blueprint_that_is_not_known_here_says_so(wrong: Callable[[State], State], message: str) -> None:
    state = saved(grown(Stage.TRAINING))
    assert_refused(grow(), {**state, RECORD: written(wrong(record(state)))}, message, EsperError)


def test_a_record_of_another_blueprint_does_not_fit_the_tensors() -> None:
    state = saved(grown(Stage.TRAINING))
    assert_refused(grow(), {**state, RECORD: written(changed(blueprint="norm")(record(state)))}, "lacks 'slots.mix.seed.branch.weight'")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"{}", "found bytes"),
        (None, "found NoneType"),
        ("{}", "found str"),
        (torch.zeros(5), "its record should be a byte tensor, found Tensor"),
        (torch.zeros(0, dtype=torch.uint8), "its record is damaged"),
        (torch.zeros(2, 2, dtype=torch.uint8), "its record is damaged"),
        (torch.tensor(7, dtype=torch.uint8), "its record is damaged"),
        (torch.full((40,), 255, dtype=torch.uint8), "its record is damaged"),
    ],
)
def test_a_record_that_is_not_text_in_bytes_is_refused(value: object, message: str) -> None:
    assert_refused(grown(Stage.BLENDING), {**saved(grow()), RECORD: value}, message)


SOUND = saved(grown(Stage.HOLDING))


@given(length=st.integers(0, SOUND[RECORD].numel() - 1))
def test_a_record_cut_off_anywhere_is_refused(length: int) -> None:
    assert_refused(grow(), {**SOUND, RECORD: SOUND[RECORD][:length]}, "slot 'mix': its record is damaged")


@given(place=st.integers(0, SOUND[RECORD].numel() - 1), byte=st.integers(0, 255))
@example(place=bytes(SOUND[RECORD].tolist()).index(b'"peak": 0.') + 13, byte=ord("E"))  # digits of a float become its exponent
def test_one_changed_byte_is_refused_whole_or_loads_exactly_what_it_says(place: int, byte: int) -> None:
    state = {**SOUND, RECORD: SOUND[RECORD].clone()}
    state[RECORD][place] = byte
    net = grow()
    before = everything(net)
    try:
        net.load_state_dict(state)
    except EsperError:
        assert everything(net) == before
    else:
        assert record(saved(net)) == record(state)


@given(noise=st.binary(max_size=200))
def test_random_bytes_are_refused(noise: bytes) -> None:
    assert_refused(grow(), {**SOUND, RECORD: torch.tensor(list(noise), dtype=torch.uint8)}, "slot 'mix': its record is damaged")


# Keys, shapes, kinds


@pytest.mark.parametrize("state", [None, 3, [("a", 1)], "state"])
def test_a_state_that_is_no_mapping_is_refused(state: object) -> None:
    assert_refused(grow(), state, f"a state dict is a mapping of names to tensors, found {type(state).__name__}")


@pytest.mark.parametrize("name", sorted(name for name in SOUND if "_extra_state" not in name))
def test_no_tensor_may_be_missing(name: str) -> None:
    assert_refused(grow(), {k: v for k, v in SOUND.items() if k != name}, f"the state dict lacks {re.escape(repr(name))}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("host.stem.0.wieght", "holds 'host.stem.0.wieght', which this model does not have; did you mean 'host.stem.0.weight'"),
        ("slots.mix.seed.more", "holds 'slots.mix.seed.more'"),
        ("slots.other.alpha", "holds 'slots.other.alpha'"),
    ],
)
def test_nothing_may_be_left_over(name: str, message: str) -> None:
    assert_refused(grow(), {**SOUND, name: torch.zeros(1)}, message)
    grow().load_state_dict({**SOUND, name: torch.zeros(1)}, strict=False)


def test_a_name_that_is_no_text_is_refused() -> None:
    state = {**SOUND}
    state[3] = torch.zeros(1)  # type: ignore[index]
    for strict in (True, False):
        assert_refused(grow(), state, "names of a state dict are strings, found 3", strict=strict)


@pytest.mark.parametrize("name", sorted(name for name in SOUND if "_extra_state" not in name))
@pytest.mark.parametrize("strict", [True, False])
def test_every_tensor_has_its_shape_and_kind(name: str, strict: bool) -> None:
    value, pattern = SOUND[name], re.escape(repr(name))
    assert_refused(grow(), {**SOUND, name: torch.zeros(9, 9, 9)}, rf"{pattern} has shape \(9, 9, 9\), expected", strict=strict)
    assert_refused(grow(), {**SOUND, name: value.to(torch.complex64)}, rf"{pattern} has dtype torch\.complex64, expected", strict=strict)
    assert_refused(grow(), {**SOUND, name: value.tolist()}, f"{pattern} should be a tensor, found", strict=strict)


def test_a_float_is_not_read_from_integers() -> None:
    message = r"has dtype torch\.int64, expected torch\.float32"
    assert_refused(grow(), {**SOUND, "host.mix.bias": torch.zeros(6, dtype=torch.int64)}, message)


def test_tensors_may_be_missing_when_not_strict_and_are_named() -> None:
    net = grow()
    partial = OrderedDict((k, v) for k, v in SOUND.items() if k != "host.mix.bias")
    assert net.load_state_dict(partial, strict=False).missing_keys == ["host.mix.bias"]
    assert mix(net).stage is Stage.HOLDING


def test_a_state_of_other_slots_says_which_it_knows() -> None:
    elsewhere = Growable(tiny_host(), ["mix", "late"], IMAGES).state_dict()
    assert_refused(grow(), dict(elsewhere), r"no record of slot 'stem\.0'; it knows the slots late, mix")
    assert_refused(Growable(tiny_host(), ["mix"], IMAGES), dict(elsewhere), r"holds 'slots\.late\.")


def test_a_bare_hosts_state_is_sent_to_the_host() -> None:
    assert_refused(grow(), tiny_host().state_dict(), r"it holds no slots; load a bare host through model\.host")


class Telling(nn.Module):
    """Puts into its state dict what it was made with and a count, neither of them a tensor, as some libraries' networks do."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.mix, self.head, self.width, self.count = nn.Linear(4, width), nn.Linear(width, 3), width, 0

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        state = super().state_dict(*args, **kwargs)
        state["_made_with"] = {"width": self.width, "act": torch.tanh}
        return state

    def get_extra_state(self) -> dict[str, int]:
        return {"count": self.count}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.count = state["count"]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(x)))


def test_a_host_whose_state_holds_more_than_tensors_is_resumed() -> None:
    def make() -> Growable:
        return Growable(Telling(), ["mix"], torch.zeros(2, 4))

    saved = make()
    saved.germinate("mix", "norm")
    saved.host.count = 5  # type: ignore[assignment]
    state = copy.deepcopy(saved.state_dict())
    assert state["_made_with"]["act"] is torch.tanh
    loaded = make()
    assert str(loaded.load_state_dict(state)) == "<All keys matched successfully>"
    assert loaded.host.count == 5
    assert same(values(loaded), values(saved))
    found = make().load_state_dict({**state, "more": 5}, strict=False)
    assert found.unexpected_keys == ["more"]
    for name in ("_made_with", "host._extra_state"):
        with pytest.raises(StateError, match=f"lacks '{name}'"):
            make().load_state_dict({key: value for key, value in state.items() if key != name})
