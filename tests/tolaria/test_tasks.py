"""Tasks: hosts of the exact size, members by seed, data as the member wants it, and a register that users extend with a file."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from esper.kasmina import Growable
from esper.leyline.errors import ConfigError, DataError, EsperError, UnknownNameError
from esper.tolaria.data import Data, FinalEvaluation, Split
from esper.tolaria.data.streams import draws
from esper.tolaria.tasks import (
    TASKS,
    Family,
    Images,
    LanguageTask,
    Member,
    Task,
    Texts,
    VisionTask,
    get,
    register,
)
from esper.tolaria.tasks.registry import augment_stream
from tests.tolaria.small import make_host

CPU = torch.device("cpu")
BUILT_IN = ("digits", "stdlib", "cifar10", "cifar10-impaired", "cifar10-deep", "fashion", "tinystories")


@pytest.fixture(autouse=True)
def only_built_in_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks_as_they_were: None) -> None:
    """Each test has the register and an empty cache to itself."""
    monkeypatch.setenv("ESPER_DATA", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def digits() -> Data:
    return get("digits").load(None, CPU)


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# Hosts


def test_the_built_in_tasks_are_registered() -> None:
    assert tuple(TASKS) == BUILT_IN


@pytest.mark.parametrize(
    ("name", "count", "slots"),
    [
        ("digits", 274, 3),
        ("stdlib", 30_656, 2),
        ("cifar10", 6_418, 3),
        ("cifar10-impaired", 77, 3),
        ("cifar10-deep", 99_922, 5),
        ("fashion", 6_274, 3),
        ("tinystories", 10_783_488, 6),
    ],
)
def test_the_standard_host_has_its_exact_size_and_slots(name: str, count: int, slots: int) -> None:
    task = get(name)
    host, paths, example = task.build_host(task.family.standard, task.classes, seed=0)
    assert parameters(host) == count
    assert len(paths) == slots
    with torch.no_grad():
        logits = host.eval()(example)
    assert logits.shape == (*(example.shape[:1] if task.kind == "classification" else example.shape), task.classes)


@pytest.mark.parametrize(("layout", "ids"), [("before", "r0"), ("after", "r1"), ("both", "r0 r1")])
def test_slots_lie_before_the_pools_after_them_or_both(layout: str, ids: str) -> None:
    task = get("cifar10")
    host, slots, example = task.build_host(task.family.with_fixed(slots=layout).standard, 10, seed=0)
    assert set(slots) == {f"{row}c{column}" for row in ids.split() for column in range(3)}
    assert Growable(host, slots, example).slot_ids == tuple(slots)


@pytest.mark.parametrize("name", ["digits", "stdlib"])
def test_a_host_depends_on_its_seed_alone_and_disturbs_no_other_stream(name: str) -> None:
    task = get(name)
    first = task.build_host(task.family.standard, task.classes, seed=5)[0].state_dict()
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    second = task.build_host(task.family.standard, task.classes, seed=5)[0].state_dict()
    assert torch.equal(torch.random.get_rng_state(), before)
    other = task.build_host(task.family.standard, task.classes, seed=6)[0].state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "tinystories"])
def test_every_member_of_a_family_has_a_host_that_can_grow(name: str) -> None:
    task = get(name)
    for seed in range(12):
        host, slots, example = task.build_host(task.family.draw(seed), task.classes, seed)
        assert Growable(host, slots, example).slot_ids == tuple(slots)


# Training sets


def test_a_member_without_limits_trains_on_the_split_itself(digits: Data) -> None:
    assert get("digits").training_set(digits, get("digits").family.standard, seed=0) is digits.train


def test_a_smaller_training_set_keeps_the_classes_in_proportion(digits: Data) -> None:
    task = get("digits")
    member = replace(task.family.standard, train_size=150)
    chosen = task.training_set(digits, member, seed=3)
    assert len(chosen) == 150
    counts = torch.bincount(chosen.y, minlength=10)
    assert int(counts.max() - counts.min()) <= 2
    rows = {(row.numpy().tobytes(), int(label)) for row, label in zip(digits.train.x, digits.train.y, strict=True)}
    assert {(row.numpy().tobytes(), int(label)) for row, label in zip(chosen.x, chosen.y, strict=True)} <= rows
    assert torch.equal(task.training_set(digits, member, seed=3).x, chosen.x)
    assert not torch.equal(task.training_set(digits, member, seed=4).x, chosen.x)


def test_label_noise_replaces_its_share_of_training_labels_and_nothing_else(digits: Data) -> None:
    task = get("digits")
    before = digits.train.y.clone()
    noisy = task.training_set(digits, replace(task.family.standard, label_noise=0.5), seed=1)
    changed = int((noisy.y != digits.train.y).sum())
    # A tenth of the replaced labels is right by chance.
    assert abs(changed - 0.5 * 0.9 * 1077) < 30
    assert noisy.x is digits.train.x
    assert torch.equal(digits.train.y, before)
    assert torch.bincount(noisy.y[noisy.y != digits.train.y], minlength=10).min() > 20
    assert torch.equal(task.training_set(digits, replace(task.family.standard, label_noise=0.5), seed=1).y, noisy.y)
    assert not torch.equal(task.training_set(digits, replace(task.family.standard, label_noise=0.5), seed=2).y, noisy.y)


def test_more_samples_than_there_are_is_an_error(digits: Data) -> None:
    task = get("digits")
    with pytest.raises(DataError, match="asks for 2,000 training images; there are 1,077"):
        task.training_set(digits, replace(task.family.standard, train_size=2000), seed=0)


def story_task() -> LanguageTask:
    words = ["the cat sat on the mat and looked at the moon " * 20]
    member = Member(width=8, heads=2, layers=1, block=16, epochs=2, batch=4, learning_rate=0.1)
    return LanguageTask(
        name="stories",
        summary="a test",
        family=Family(standard=member),
        read=lambda place: Texts(train=words * 3, val=words, test=words, origin="here"),
    )


def test_a_language_member_trains_on_whole_blocks_chosen_by_its_seed() -> None:
    task = story_task()
    data = task.load(None, CPU)
    member = task.family.standard
    assert task.training_set(data, member, seed=0) is data.train
    chosen = task.training_set(data, replace(member, train_size=20), seed=0)
    assert chosen.x.shape == chosen.y.shape == (20, 16)
    assert torch.equal(chosen.x[:, 1:], chosen.y[:, :-1])
    assert not torch.equal(task.training_set(data, replace(member, train_size=20), seed=1).x, chosen.x)


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"label_noise": 0.1}, ConfigError, "text has no labels"),
        ({"block": 32}, DataError, "blocks of 16 tokens; the member's 'block' is 32"),
        ({"train_size": 9999}, DataError, "asks for 9,999 blocks of text; there are"),
    ],
)
def test_a_language_member_that_does_not_fit_the_data_is_refused(values: dict[str, Any], error: type[Exception], message: str) -> None:
    task = story_task()
    with pytest.raises(error, match=message):
        task.training_set(task.load(None, CPU), replace(task.family.standard, **values), seed=0)


def test_a_family_with_several_block_lengths_is_refused() -> None:
    family = Family(standard=story_task().family.standard, ranges={"block": (16, 32)})
    with pytest.raises(ConfigError, match="'block' varies in its family"):
        replace(story_task(), family=family)


# Augmentation and score


def augmented(index: torch.Tensor, seed: int = 1, epoch: int = 2, **values: Any) -> torch.Tensor:
    images = torch.randn(500, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    task = replace(get("cifar10"), **values)
    return task.augment(images[index], draws(index, *augment_stream(seed, epoch)))


def test_augmentation_is_off_where_the_member_says_so() -> None:
    index = torch.arange(20)
    plain, moved = (make_host(0, augment=augment) for augment in (False, True))
    assert torch.equal(plain.batch(index, 0)[0], plain.split.x[index])
    assert not torch.equal(moved.batch(index, 0)[0], moved.split.x[index])
    tokens = torch.zeros(2, 16, dtype=torch.int64)
    assert story_task().augment(tokens, torch.arange(2)) is tokens


def test_augmentation_depends_on_seed_epoch_and_position_alone() -> None:
    every = augmented(torch.arange(500))
    torch.rand(7)
    picked = torch.tensor([499, 3, 250])
    assert torch.equal(augmented(picked), every[picked])
    assert not torch.equal(augmented(picked, epoch=3), every[picked])
    assert not torch.equal(augmented(picked, seed=2), every[picked])


def test_augmentation_touches_no_other_random_stream() -> None:
    before = torch.random.get_rng_state()
    augmented(torch.arange(10))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_an_augmented_image_is_the_image_shifted_and_perhaps_mirrored_in_a_frame_of_zeros() -> None:
    images = torch.randn(500, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    seen = set()
    for image, result in zip(images, augmented(torch.arange(500), shift=1), strict=True):
        matches = []
        for mirrored in (False, True):
            frame = torch.zeros(3, 10, 10)
            frame[:, 1:9, 1:9] = image.flip(2) if mirrored else image
            matches += [(d, r, mirrored) for d in range(3) for r in range(3) if torch.equal(frame[:, d : d + 8, r : r + 8], result)]
        assert len(matches) == 1
        seen.add(matches[0])
    assert len(seen) == 18


def test_a_task_that_must_not_mirror_does_not() -> None:
    images = torch.randn(500, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(augmented(torch.arange(500), shift=0, mirror=False), images)


def test_classification_is_scored_by_label_and_language_by_token() -> None:
    logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.0, 3.0], [0.0, 1.0, 0.0]], requires_grad=True)
    y = torch.tensor([0, 2, 0])
    task = get("digits")
    correct = task.correct(logits, y)
    assert correct.tolist() == [1, 1, 0]
    loss = task.loss(logits, y)
    expected = -torch.log_softmax(logits, 1)[torch.arange(3), y].mean()
    assert torch.allclose(loss, expected)
    loss.backward()
    assert logits.grad is not None
    tokens = torch.stack([logits.detach(), logits.detach()])
    assert torch.allclose(story_task().loss(tokens, torch.stack([y, y])), expected)
    assert story_task().correct(tokens, torch.stack([y, y])).tolist() == [2, 2]


# Data of the tasks that need a published set


def write_npz(path: Path, shape: tuple[int, ...], count: int = 100) -> Path:
    random = np.random.default_rng(0)
    x, y = random.integers(0, 256, (count, *shape), dtype=np.uint8), np.arange(count) % 10
    np.savez(path, x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
    return path


@pytest.mark.parametrize(("name", "file", "shape"), [("cifar10", "cifar10.npz", (32, 32, 3)), ("fashion", "fashion-mnist.npz", (28, 28))])
def test_an_image_task_reads_the_users_own_npz(name: str, file: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    task = get(name)
    path = write_npz(tmp_path / file, shape)
    for place in (path, tmp_path):
        data = task.load(place, CPU)
        assert (len(data.train), len(data.val), data.classes) == (90, 10, 10)
        assert torch.bincount(data.val.y).tolist() == [1] * 10
        assert data.train.x.shape[1:] == task.example(task.family.standard).shape[1:]
        assert len(data.test(FinalEvaluation(asked_by="a test"))) == 20


def test_an_npz_of_another_shape_is_refused_by_name(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "cifar10.npz", (28, 28, 3))
    with pytest.raises(DataError, match=r"cifar10\.npz: train images are 3 x 28 x 28; expected 3 x 32 x 32"):
        get("cifar10").load(path, CPU)


@pytest.mark.parametrize("name", ["cifar10", "cifar10-impaired", "cifar10-deep", "fashion", "tinystories"])
def test_data_that_is_not_there_is_an_error_and_never_noise(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"--data DIR, or get it with `esper tasks --download"):
        get(name).load(tmp_path, CPU)


def test_tinystories_are_read_from_a_folder(tmp_path: Path) -> None:
    story = "Once upon a time there was a small dog who liked to dig. " * 8
    (tmp_path / "TinyStories-train.txt").write_text("".join(f"{i} {story}\n<|endoftext|>\n" for i in range(100)))
    (tmp_path / "TinyStories-valid.txt").write_text("".join(f"{i} {story}\n<|endoftext|>\n" for i in range(10)))
    data = get("tinystories").load(tmp_path, CPU)
    assert data.train.x.shape[1] == 256
    assert data.classes == get("tinystories").classes == 98


def test_the_standard_library_feeds_every_member_of_its_family() -> None:
    task = get("stdlib")
    data = task.load(None, CPU)
    assert len(data.train) >= max(task.family.ranges["train_size"])


# The register


def test_an_unknown_task_gets_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="unknown task 'cifar'; did you mean 'cifar10'"):
        get("cifar")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "digits"}, "there is one of that name, registered in .*builtin.py"),
        ({"name": "My Task"}, "expected a name in lower case"),
        ({"summary": " "}, "summary must be one line"),
        ({"summary": "a\nb"}, "summary must be one line"),
    ],
)
def test_a_task_that_cannot_be_listed_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        register(replace(story_task(), **changes))
    assert tuple(TASKS) == BUILT_IN


def test_a_task_can_be_registered_and_taken_out_again() -> None:
    task = register(story_task())
    assert get("stories") is task
    del TASKS["stories"]
    assert tuple(TASKS) == BUILT_IN


def test_a_vision_task_without_widths_is_refused() -> None:
    with pytest.raises(ConfigError, match="the standard member has no 'widths'"):
        replace(get("digits"), family=story_task().family)


# Tasks that misbehave


class Wrong(VisionTask):
    """The digits, but for what a test puts in the place of one of its functions."""

    faults: ClassVar[dict[str, Callable[..., Any]]] = {}

    def _of(self, function: str, *arguments: Any) -> Any:
        usual = getattr(VisionTask, function)
        return self.faults.get(function, usual)(*(arguments if function in self.faults else (self, *arguments)))

    def load(self, *arguments: Any) -> Any:
        return self._of("load", *arguments)

    def make_host(self, *arguments: Any) -> Any:
        return self._of("make_host", *arguments)

    def example(self, *arguments: Any) -> Any:
        return self._of("example", *arguments)

    def training_set(self, *arguments: Any) -> Any:
        return self._of("training_set", *arguments)

    def augment(self, *arguments: Any) -> Any:
        return self._of("augment", *arguments)

    def loss(self, *arguments: Any) -> Any:
        return self._of("loss", *arguments)

    def correct(self, *arguments: Any) -> Any:
        return self._of("correct", *arguments)


def misuse(monkeypatch: pytest.MonkeyPatch, **faults: Callable[..., Any]) -> nn.Module:
    """Load the data of a task with these functions in the place of its own, and make a host."""
    good = get("digits")
    assert isinstance(good, VisionTask)
    values = {name: getattr(good, name) for name in ("summary", "shape", "classes", "val_share", "shift", "mirror")}
    family = good.family.with_fixed(augment=True)
    monkeypatch.setattr(Wrong, "faults", faults)
    task = Wrong(name="wrong", family=family, read=faults.pop("read", good.read), **values)
    return task.prepare(task.open_data(None, CPU), family.standard, seed=0)[0]


def changed(images: Images, **values: Any) -> Images:
    return replace(images, **values)


def split_of(x: torch.Tensor, y: torch.Tensor, *, classes: int = 10) -> Data:
    return Data(classes=classes, train=Split(x, y), val=Split(x, y), test=lambda: Split(x, y), fingerprint="", origin="here")


def linear(classes: int, *, features: int = 64) -> tuple[nn.Module, dict[str, str]]:
    return nn.Sequential(nn.Flatten(), nn.Linear(features, 8), nn.ReLU(), nn.Linear(8, classes)), {"r0c0": "2"}


X, Y = torch.zeros(40, 1, 8, 8), torch.arange(40) % 10
SIZES = iter(range(8, 1000))


def boom(*arguments: Any) -> Any:
    raise ValueError("boom")


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ({"read": boom}, "load failed: ValueError: boom"),
        ({"read": lambda place: None}, "read returned None; expected an object of Images"),
        (
            {"read": lambda place: changed(get("digits").read(None), x_train=np.zeros((1437, 1, 8, 8)))},  # type: ignore[attr-defined]
            "train images of float64 and labels of uint8; expected uint8 pixels and integers",
        ),
        (
            {"read": lambda place: changed(get("digits").read(None), y_test=np.full(360, -1))},  # type: ignore[attr-defined]
            "test labels are -1 to -1; expected 0 to 9",
        ),
        ({"load": lambda *_: None}, "load returned None; expected an object of Data"),
        ({"load": lambda *_: split_of(X, Y, classes=3)}, "load returned data of 3 classes; the task says 10"),
        ({"load": lambda *_: split_of(X, Y[:39])}, "a split of 40 inputs and 39 targets"),
        ({"load": lambda *_: split_of(X.numpy(), Y)}, "a split of ndarray and Tensor; expected two tensors"),  # type: ignore[arg-type]
        ({"load": lambda *_: split_of(X.log() - X.log(), Y)}, r"load \(train\) returned inputs that are NaN or infinite"),
        ({"load": lambda *_: split_of(X, Y.int())}, r"load \(train\) returned targets of torch.int32; expected torch.int64"),
        ({"load": lambda *_: split_of(X, Y + 1)}, r"load \(train\) returned targets from 1 to 10; expected 0 to 9"),
        ({"load": lambda *_: split_of(X[:, :, :4], Y)}, "example returned torch.float32 of 2 x 1 x 8 x 8; the inputs that"),
        ({"make_host": boom}, "make_host failed: ValueError: boom"),
        ({"make_host": lambda *_: None}, "make_host returned None; expected a module and a dict of its slots"),
        ({"make_host": lambda *_: (linear(10)[0], {})}, "make_host returned a tuple of Sequential, dict; expected a module and"),
        ({"make_host": lambda *_: linear(10, features=9)}, "the host that make_host gives failed: RuntimeError: mat1 and mat2"),
        ({"make_host": lambda *_: linear(7)}, "make_host gives returned torch.float32 of 2 x 7; expected logits of 2 x 10"),
        ({"make_host": lambda *_: linear(next(SIZES))}, r"make_host made two different hosts .*: '3\.weight' differs"),
        ({"example": lambda *_: None}, "example returned None; expected a tensor of two inputs"),
        ({"example": lambda *_: torch.zeros(1, 1, 8, 8)}, "example returned torch.float32 of 1 x 1 x 8 x 8; expected a tensor of two"),
        ({"training_set": lambda *_: None}, "training_set returned None; expected an object of Split"),
        ({"training_set": lambda *_: Split(X[:0], Y[:0])}, "training_set returned no samples"),
        ({"training_set": lambda *_: Split(X, Y - 1)}, "training_set returned targets from -1 to 8; expected 0 to 9"),
        ({"augment": boom}, "augment failed: ValueError: boom"),
        ({"augment": lambda x, *_: x[:1]}, "augment returned torch.float32 of 1 x 1 x 8 x 8; expected torch.float32 of 2 x 1 x 8 x 8"),
        ({"loss": boom}, "loss failed: ValueError: boom"),
        ({"loss": lambda logits, y: logits.mean(1)}, "loss returned torch.float32 of 2; expected a single value with a gradient"),
        ({"loss": lambda logits, y: logits.mean().detach()}, "loss returned torch.float32 of a single value without a gradient"),
        ({"loss": lambda logits, y: logits.mean() * math.nan}, "loss is nan for two samples and a new host"),
        ({"correct": boom}, "correct failed: ValueError: boom"),
        ({"correct": lambda logits, y: logits.argmax(-1).sum()}, "correct returned torch.int64 of a single value.*; expected a whole"),
        ({"correct": lambda logits, y: (logits.argmax(-1) == y).float()}, "correct returned torch.float32 of 2; expected a whole number"),
        ({"correct": lambda logits, y: y + 7}, r"correct returned \[\d+, \d+\] for samples of 1 targets each; expected 0 to 1"),
    ],
)
def test_a_task_that_misbehaves_is_told_in_a_sentence(faults: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EsperError, match=message) as caught:
        misuse(monkeypatch, **faults)
    assert "\n" not in str(caught.value)


def test_a_sound_task_passes_every_check(monkeypatch: pytest.MonkeyPatch) -> None:
    built = get("digits").build_host(get("digits").family.standard, 10, 0)[0]
    assert [p.shape for p in misuse(monkeypatch).parameters()] == [p.shape for p in built.parameters()]
    own = misuse(monkeypatch, make_host=lambda *_: linear(10), correct=lambda logits, y: logits.argmax(-1) == y)
    assert sum(p.numel() for p in own.parameters()) == sum(p.numel() for p in linear(10)[0].parameters())


def test_texts_that_are_none_are_refused() -> None:
    with pytest.raises(DataError, match="here: the documents for train are no texts; expected a list of str"):
        Texts(train="one long text", val=[], test=[], origin="here")
    with pytest.raises(DataError, match="the documents for val are no texts"):
        Texts(train=["a"], val=[1], test=[], origin="here")  # type: ignore[list-item]


def test_a_test_split_that_cannot_be_made_is_told_in_a_sentence() -> None:
    wrong: list[tuple[Callable[[], Any], str]] = [(boom, "making the test split failed: ValueError: boom"), (lambda: None, "is a NoneType")]
    for make, message in wrong:
        data = Data(classes=10, train=Split(X, Y), val=Split(X, Y), test=make, fingerprint="", origin="here")
        with pytest.raises(EsperError, match=f"here: .*{message}"):
            data.test(FinalEvaluation(asked_by="a test"))


def test_preparing_a_host_changes_nothing_but_what_it_returns(digits: Data) -> None:
    task = get("digits")
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    host, slots, example, split, _ = task.prepare(digits, task.family.standard, seed=5)
    assert torch.equal(torch.random.get_rng_state(), before)
    built, paths, _ = task.build_host(task.family.standard, 10, seed=5)
    assert slots == paths
    assert split is digits.train
    assert len(example) == 2
    assert all(torch.equal(a, b) for a, b in zip(host.state_dict().values(), built.state_dict().values(), strict=True))
    assert all(parameter.grad is None for parameter in host.parameters())


@pytest.mark.parametrize("name", ["digits", "stdlib"])
def test_a_folder_for_data_that_is_always_there_is_a_mistake(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"task '{name}' brings its own data and reads none from .*; leave --data out"):
        get(name).open_data(tmp_path, CPU)


def test_a_task_is_known_again_by_its_member_and_its_file() -> None:
    task = get("digits")
    standard = task.family.standard
    assert task.fingerprint(standard) == task.fingerprint(replace(standard))
    assert task.fingerprint(replace(standard, epochs=26)) != task.fingerprint(standard)
    assert get("cifar10").fingerprint(standard) != task.fingerprint(standard)
    register(story_task())
    file, known = TASKS["stories"].file, story_task().fingerprint(standard)
    assert file == __file__
    TASKS["stories"] = replace(TASKS["stories"], source="of another file")
    assert story_task().fingerprint(standard) != known


def test_every_built_in_task_is_a_vision_or_a_language_task() -> None:
    tasks: list[Task] = [get(name) for name in BUILT_IN]
    assert all(isinstance(task, VisionTask if task.kind == "classification" else LanguageTask) for task in tasks)
    assert all(task.threads >= 0 for task in tasks)
