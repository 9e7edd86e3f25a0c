"""Readers of published formats: true files are read, damaged, foreign and hostile ones are refused by name, and nothing in them is run."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.leyline.errors import DataError
from esper.tolaria.data.formats import (
    CIFAR10_SHA256,
    CIFAR_BATCHES,
    IDX_FILES,
    Images,
    read_cifar,
    read_idx,
    read_idx_set,
    read_npz,
)
from esper.tolaria.data.pickles import read_pickled_batch

Files = dict[str, bytes]


def records(count: int, seed: int) -> bytes:
    """Labels and pixels as CIFAR-10's binary version stores them."""
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)
    labels = (np.arange(count) % 10).astype(np.uint8)
    return np.concatenate([labels[:, None], pixels], axis=1).tobytes()


def python2_pickle(raw: bytes) -> bytes:
    """The records as Python 2 pickled them: protocol 2, str for bytes, numpy arrays by their old module."""
    table = np.frombuffer(raw, dtype=np.uint8).reshape(-1, 3073)
    labels = b"".join(b"K" + bytes([label]) for label in table[:, 0])
    pixels = table[:, 1:].tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x05cnumpy\nndarray\nq\x06K\x00\x85q\x07U\x01bq\x08\x87q\x09Rq\x0a(K\x01"
        + b"J" + struct.pack("<i", len(table)) + b"M\x00\x0c\x86q\x0bcnumpy\ndtype\nq\x0cU\x02u1q\x0dK\x00K\x01\x87q\x0eRq\x0f"
        + b"(K\x03U\x01|q\x10NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x11b\x89T" + struct.pack("<i", len(pixels)) + pixels + b"tq\x12b"
    )  # fmt: skip
    return b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x05batchU\x06labelsq\x03]q\x04(" + labels + b"eU\x04data" + array + b"u."


def modern_pickle(raw: bytes) -> bytes:
    """The records as a program of today would pickle them again."""
    table = np.frombuffer(raw, dtype=np.uint8).reshape(-1, 3073)
    return pickle.dumps({b"labels": table[:, 0].tolist(), b"data": table[:, 1:].copy()}, protocol=2)


def cifar_files(pack: Callable[[bytes], bytes] | None = None) -> tuple[Files, dict[str, str]]:
    """Six small batches, and the sums that stand for the published ones."""
    raw = {name: records(7 if name == "test_batch" else 5, seed) for seed, name in enumerate(CIFAR_BATCHES)}
    sums = {name: hashlib.sha256(contents).hexdigest() for name, contents in raw.items()}
    return ({f"{name}.bin": contents for name, contents in raw.items()} if pack is None else {n: pack(c) for n, c in raw.items()}), sums


def write(folder: Path, files: Files) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, contents in files.items():
        (folder / name).write_bytes(contents)
    return folder


def write_tar(path: Path, files: Files) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, contents in files.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(contents)
            tar.addfile(member, io.BytesIO(contents))
    return path


def check_small_cifar(images: Images) -> None:
    assert images.x_train.shape == (25, 3, 32, 32)
    assert images.x_test.shape == (7, 3, 32, 32)
    expected = np.frombuffer(records(5, 1), dtype=np.uint8).reshape(5, 3073)
    assert np.array_equal(images.x_train[5:10].reshape(5, 3072), expected[:, 1:])
    assert images.y_train[5:10].tolist() == [0, 1, 2, 3, 4]
    assert images.y_test.tolist() == list(range(7))
    images.check((3, 32, 32), 10)


@pytest.mark.parametrize("pack", [None, python2_pickle, modern_pickle])
def test_batches_in_a_folder_are_read(pack: Callable[[bytes], bytes] | None, tmp_path: Path) -> None:
    files, sums = cifar_files(pack)
    check_small_cifar(read_cifar(write(tmp_path / "cifar", files), sums))


@pytest.mark.parametrize("pack", [None, python2_pickle])
def test_batches_in_an_archive_are_read_without_extracting_it(pack: Callable[[bytes], bytes] | None, tmp_path: Path) -> None:
    files, sums = cifar_files(pack)
    archive = write_tar(tmp_path / "cifar.tar.gz", {"batches.meta": b"x", **files})
    check_small_cifar(read_cifar(archive, sums))
    assert os.listdir(tmp_path) == ["cifar.tar.gz"]


def test_both_versions_of_the_batches_have_one_fingerprint(tmp_path: Path) -> None:
    prints = set()
    for pack in (None, python2_pickle):
        files, sums = cifar_files(pack)
        prints.add(read_cifar(write(tmp_path / str(pack is None), files), sums).fingerprint())
    assert len(prints) == 1


@pytest.mark.parametrize("pack", [None, python2_pickle])
def test_batches_that_are_not_the_published_ones_are_refused(pack: Callable[[bytes], bytes] | None, tmp_path: Path) -> None:
    folder = write(tmp_path, cifar_files(pack)[0])
    with pytest.raises(DataError, match=r"data_batch_1.*not the published ones.*\.npz"):
        read_cifar(folder, CIFAR10_SHA256)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (records(5, 0)[:-1], r"data_batch_1\.bin: 15,364 bytes; expected whole records of 3,073 bytes"),
        (b"", r"data_batch_1\.bin: 0 bytes"),
        (b"\x0a" + records(5, 0)[1:], r"data_batch_1\.bin: its contents are not the published ones"),
        (records(4, 0), r"data_batch_1\.bin: its contents are not the published ones"),
    ],
)
def test_a_damaged_binary_batch_is_refused_by_name(contents: bytes, message: str, tmp_path: Path) -> None:
    files, sums = cifar_files()
    with pytest.raises(DataError, match=message):
        read_cifar(write(tmp_path, files | {"data_batch_1.bin": contents}), sums)


def test_a_missing_batch_is_named(tmp_path: Path) -> None:
    files, sums = cifar_files()
    del files["data_batch_4.bin"]
    with pytest.raises(DataError, match=r"a file is missing; expected data_batch_4\.bin or data_batch_4"):
        read_cifar(write(tmp_path / "folder", files), sums)
    with pytest.raises(DataError, match="the batch data_batch_4 is missing; expected a member"):
        read_cifar(write_tar(tmp_path / "cifar.tar.gz", files), sums)


@pytest.mark.parametrize("keep", [0, 10, 5000])
def test_an_archive_that_is_cut_short_is_refused_by_name(keep: int, tmp_path: Path) -> None:
    files, sums = cifar_files()
    archive = write_tar(tmp_path / "cifar.tar.gz", files)
    archive.write_bytes(archive.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"cifar\.tar\.gz.*cut short"):
        read_cifar(archive, sums)


class Hostile:
    """Pickles into a call."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_hostile_pickle_is_refused_and_nothing_is_run(protocol: int, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    raw = pickle.dumps({b"data": Hostile(os.mkdir, str(proof)), b"labels": [1]}, protocol)
    pickle.loads(raw)
    assert proof.exists(), "the pickle is hostile indeed"
    proof.rmdir()
    with pytest.raises(DataError, match=r"batch\.bad: not a batch of CIFAR-10 that can be read safely"):
        read_pickled_batch(raw, "batch.bad")
    assert not proof.exists()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (pickle.dumps({b"data": Hostile(eval, "1"), b"labels": []}, 2), r"it asks for (__builtin__|builtins)\.eval"),
        (pickle.dumps({b"data": np.zeros((1, 2)), b"labels": [0]}, 2), "unsigned bytes"),
        (pickle.dumps({b"data": np.asfortranarray(np.zeros((3, 2), np.uint8)), b"labels": [0]}, 2), "memory layout"),
        (pickle.dumps({b"data": np.array([None]), b"labels": [0]}, 2), "unsigned bytes"),
        (pickle.dumps({b"labels": [0]}, 2), "it has no 'data'"),
        (pickle.dumps([1, 2], 2), "read safely"),
        (pickle.dumps({b"data": b"pixels", b"labels": [0]}, 2), "read safely"),
        (b"", "read safely"),
        (b"\x80\x02}q\x00", "read safely"),
        (b"\x80\x02}r\xff\xff\xff\xff.", "more memory than its size explains"),
        (b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.", "read safely"),
        (b"\x80\x02\x82\x01.", "instruction EXT1"),
        (b"\x80\x02Pname\n.", "instruction PERSID"),
        (b"\x80\x02cos\nsystem\nq\x00.", r"it asks for os\.system"),
    ],
)
def test_a_foreign_pickle_is_refused_with_the_reason(raw: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"(?s)the file.*{message}"):
        read_pickled_batch(raw, "the file")


def test_pixels_that_do_not_fit_the_labels_are_refused(tmp_path: Path) -> None:
    files, sums = cifar_files(modern_pickle)
    files["data_batch_1"] = pickle.dumps({b"labels": [1, 2], b"data": np.zeros((3, 3072), np.uint8)}, 2)
    with pytest.raises(DataError, match=r"data_batch_1: pixels of shape 3 x 3072 for 2 labels; expected 2 x 3072"):
        read_cifar(write(tmp_path, files), sums)


@settings(max_examples=200)
@given(st.integers(0, 400), st.integers(0, 255), st.booleans())
def test_no_damage_to_a_pickle_escapes_as_another_error(position: int, value: int, cut: bool) -> None:
    raw = bytearray(python2_pickle(records(1, 0)))
    position %= len(raw)
    raw[position] = value
    damaged = bytes(raw[:position] if cut else raw)
    with contextlib.suppress(DataError):
        pixels, labels = read_pickled_batch(damaged, "the file")
        assert pixels.dtype == labels.dtype == np.uint8


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def idx_files(compress: bool) -> tuple[Files, dict[str, str]]:
    random = np.random.default_rng(0)
    arrays = [random.integers(0, 256, shape, dtype=np.uint8) for shape in ((6, 4, 3), (6,), (2, 4, 3), (2,))]
    raw = dict(zip(IDX_FILES, map(idx, arrays), strict=True))
    sums = {name: hashlib.sha256(contents).hexdigest() for name, contents in raw.items()}
    return ({f"{name}.gz": gzip.compress(contents) for name, contents in raw.items()} if compress else raw), sums


@pytest.mark.parametrize("compress", [True, False])
def test_idx_files_are_read_with_and_without_compression(compress: bool, tmp_path: Path) -> None:
    files, sums = idx_files(compress)
    images = read_idx_set(write(tmp_path, files), sums)
    plain, _ = idx_files(compress=False)
    assert images.x_train.shape == (6, 1, 4, 3)
    assert images.x_train.tobytes() == plain["train-images-idx3-ubyte"][16:]
    assert images.y_test.tobytes() == plain["t10k-labels-idx1-ubyte"][8:]


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "starts with the bytes none"),
        (idx(np.zeros((2, 2), np.uint8)), "starts with the bytes 00 00 08 02; expected 00 00 08 03"),
        (b"\x00\x00\x0d\x03" + bytes(20), "expected 00 00 08 03"),
        (b"\x00\x00\x08\x03\x00\x00", "cut short"),
        (idx(np.zeros((6, 4, 3), np.uint8))[:-1], "87 bytes for an array of 6 x 4 x 3; expected 88"),
        (idx(np.zeros((6, 4, 3), np.uint8)) + b"x", "89 bytes for an array"),
        (idx(np.zeros((0, 4, 3), np.uint8)), "empty"),
        (b"\x00\x00\x08\x03" + b"\xff" * 12, "cut short"),
        (idx(np.zeros((6, 4, 3), np.uint8)), "not the published ones"),
    ],
)
def test_a_damaged_idx_file_is_refused_by_name(contents: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(contents)
    with pytest.raises(DataError, match=f"train-images-idx3-ubyte: .*{message}"):
        read_idx(path, dimensions=3, published=idx_files(compress=False)[1])


@pytest.mark.parametrize("damage", [lambda raw: raw[:-6], lambda raw: b"\x00" + raw[1:], lambda raw: raw[:20] + b"\xff\xff" + raw[22:]])
def test_a_damaged_compressed_file_is_refused_by_name(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    files, sums = idx_files(compress=True)
    files["train-images-idx3-ubyte.gz"] = damage(files["train-images-idx3-ubyte.gz"])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz: "):
        read_idx_set(write(tmp_path, files), sums)


def test_a_missing_idx_file_is_named(tmp_path: Path) -> None:
    files, sums = idx_files(compress=True)
    del files["t10k-labels-idx1-ubyte.gz"]
    with pytest.raises(DataError, match=r"a file is missing; expected t10k-labels-idx1-ubyte\.gz or"):
        read_idx_set(write(tmp_path, files), sums)


def arrays(shape: tuple[int, ...] = (32, 32, 3)) -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {
        "x_train": random.integers(0, 256, (20, *shape), dtype=np.uint8),
        "y_train": np.arange(20) % 10,
        "x_test": random.integers(0, 256, (10, *shape), dtype=np.uint8),
        "y_test": np.arange(10)[:, None],
    }


@pytest.mark.parametrize("compressed", [True, False])
def test_npz_images_are_read_with_channels_last_or_first(compressed: bool, tmp_path: Path) -> None:
    last = arrays()
    first = last | {name: last[name].transpose(0, 3, 1, 2) for name in ("x_train", "x_test")}
    for name, contents in (("last", last), ("first", first)):
        (np.savez_compressed if compressed else np.savez)(tmp_path / f"{name}.npz", **contents)
    images = [read_npz(tmp_path / f"{name}.npz") for name in ("last", "first")]
    assert images[0].fingerprint() == images[1].fingerprint()
    assert np.array_equal(images[0].x_train, first["x_train"])
    assert images[0].y_test.tolist() == list(range(10))
    images[0].check((3, 32, 32), 10)


def test_npz_images_without_channels_have_one(tmp_path: Path) -> None:
    np.savez(tmp_path / "grey.npz", **arrays((8, 8)))
    assert read_npz(tmp_path / "grey.npz").x_train.shape == (20, 1, 8, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_train": np.zeros((20, 32, 32, 3))}, "x_train: values of type float64; expected integers"),
        ({"x_train": np.zeros((20, 32, 32, 3), np.int64)}, "x_train: int64 of shape 20 x 32 x 32 x 3; expected uint8 images"),
        ({"x_test": np.zeros((10, 3072), np.uint8)}, "x_test: uint8 of shape 10 x 3072"),
        ({"y_train": np.arange(20) - 1}, "y_train: labels from -1 to 18; expected 0 to 255"),
        ({"y_train": np.zeros((20, 10), np.int64)}, "y_train: labels of shape 20 x 10; expected one number for each image"),
        ({"y_train": np.array([None] * 20)}, "y_train: values of type object"),
        ({"y_train": np.float64(1)}, "y_train: values of type float64"),
    ],
)
def test_npz_arrays_of_the_wrong_kind_are_refused_by_name(change: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", **(arrays() | change))
    with pytest.raises(DataError, match=rf"set\.npz: {message}"):
        read_npz(tmp_path / "set.npz")


def test_a_missing_npz_array_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", x_train=arrays()["x_train"])
    with pytest.raises(DataError, match="no array y_train; expected x_train, y_train, x_test, y_test"):
        read_npz(tmp_path / "set.npz")


@pytest.mark.parametrize("damage", [lambda raw: b"", lambda raw: raw[:300], lambda raw: raw[:200] + bytes(90) + raw[290:]])
def test_a_damaged_npz_is_refused_by_name(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    np.savez_compressed(path, **arrays())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"set\.npz: "):
        read_npz(path)


def test_an_npz_array_that_announces_more_than_it_holds_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (10**9, 32, 32, 3)})
    with zipfile.ZipFile(tmp_path / "set.npz", "w") as archive:
        archive.writestr("x_train.npy", header.getvalue())
        for name in ("y_train", "x_test", "y_test"):
            archive.writestr(f"{name}.npy", b"")
    with pytest.raises(DataError, match="x_train: 3,072,000,000,000 bytes; expected 1,073,741,824 at most"):
        read_npz(tmp_path / "set.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_train": np.zeros((0, 3, 4, 4), np.uint8), "y_train": np.zeros(0, np.uint8)}, "no train images"),
        ({"x_test": np.zeros((2, 3, 5, 4), np.uint8)}, "test images are 3 x 5 x 4; expected 3 x 4 x 4"),
        ({"y_train": np.zeros(5, np.uint8)}, "6 train images, labels of shape 5; expected one label for each image"),
        ({"y_test": np.array([0, 9], np.uint8)}, "test labels are 0 to 9; expected 0 to 8"),
    ],
)
def test_images_that_do_not_fit_the_task_are_refused(change: dict[str, np.ndarray], message: str) -> None:
    right = {
        "x_train": np.zeros((6, 3, 4, 4), np.uint8),
        "y_train": np.arange(6).astype(np.uint8),
        "x_test": np.zeros((2, 3, 4, 4), np.uint8),
        "y_test": np.array([0, 8], np.uint8),
    }
    Images(**right, origin="here").check((3, 4, 4), 9)
    with pytest.raises(DataError, match=f"here: {message}"):
        Images(**(right | change), origin="here").check((3, 4, 4), 9)


def test_the_fingerprint_sees_a_single_pixel_and_the_shape() -> None:
    x, y = np.zeros((2, 1, 2, 2), np.uint8), np.zeros(2, np.uint8)
    other = x.copy()
    other[1, 0, 1, 1] = 1
    variants = [(x, y), (other, y), (x.reshape(2, 2, 2, 1), y), (x, y + 1)]
    prints = [Images(x_train=a, y_train=b, x_test=x, y_test=y, origin="here").fingerprint() for a, b in variants]
    assert len(set(prints)) == len(variants)
