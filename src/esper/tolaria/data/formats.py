"""Readers of image sets in the formats they are published in: CIFAR-10 batches, IDX files, and .npz for data of one's own.

Every reader gives uint8 images and checks what it reads: size, magic number, shape, labels and, for published files, the SHA-256 of
their contents. What is wrong is a DataError that names the file.
"""

from __future__ import annotations

import gzip
import hashlib
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from esper.leyline.errors import DataError
from esper.tolaria.data.pickles import read_pickled_batch
from esper.tolaria.data.sources import first_file

MAX_BYTES = 1 << 30
"""No single array may be larger than this: everything lives on the device at once, four times as large."""
CIFAR_PIXELS = 3 * 32 * 32
CIFAR_BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
IDX_UNSIGNED_BYTE = 0x08
NPZ_ARRAYS = ("x_train", "y_train", "x_test", "y_test")

CIFAR10_SHA256: Mapping[str, str] = {
    "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
"""SHA-256 of the published binary batches; the Python version is checked by the same sums, in the same layout."""
FASHION_SHA256: Mapping[str, str] = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
"""SHA-256 of the published files, uncompressed: distributions compress them again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """A set of images as it is published: uint8 pixels (N, C, H, W) and uint8 labels (N,), and where they came from, in words."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    origin: str

    def check(self, shape: tuple[int, int, int], classes: int) -> None:
        """Raise DataError unless the images have the shape (C, H, W) and the labels lie below `classes`."""
        for part, x, y in (("train", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            if len(x) == 0:
                raise DataError(f"{self.origin}: no {part} images")
            if x.dtype != np.uint8 or y.dtype.kind not in "ui":
                raise DataError(f"{self.origin}: {part} images of {x.dtype} and labels of {y.dtype}; expected uint8 pixels and integers")
            if x.shape[1:] != shape:
                raise DataError(f"{self.origin}: {part} images are {_by(x.shape[1:])}; expected {_by(shape)} (channels, height, width)")
            if y.shape != (len(x),):
                raise DataError(f"{self.origin}: {len(x)} {part} images, labels of shape {_by(y.shape)}; expected one label for each image")
            if int(y.min()) < 0 or int(y.max()) >= classes:
                raise DataError(f"{self.origin}: {part} labels are {int(y.min())} to {int(y.max())}; expected 0 to {classes - 1}")

    def fingerprint(self) -> str:
        """SHA-256 of every array with its shape."""
        digest = hashlib.sha256()
        for array in (self.x_train, self.y_train, self.x_test, self.y_test):
            digest.update(repr(array.shape).encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def read_cifar(place: Path, published: Mapping[str, str]) -> Images:
    """CIFAR-10's batches, binary or pickled, in a folder or a .tar.gz as published. `published` has the SHA-256 of each batch."""
    files = _read_tar(place) if place.is_file() else _read_folder(place)
    *train, (x_test, y_test) = [_cifar_batch(name, *files[name], published) for name in CIFAR_BATCHES]
    x_train, y_train = (np.concatenate(parts) for parts in zip(*train, strict=True))
    return Images(x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, origin=str(place))


def _cifar_batch(name: str, where: str, raw: bytes, published: Mapping[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 3, 32, 32) and labels of one batch, once its records are those that were published."""
    if where.endswith(".bin"):
        if not raw or len(raw) % (1 + CIFAR_PIXELS):
            raise DataError(f"{where}: {len(raw):,} bytes; expected whole records of {1 + CIFAR_PIXELS:,} bytes, so the file is cut short")
        records = np.frombuffer(raw, dtype=np.uint8).reshape(-1, 1 + CIFAR_PIXELS)
    else:
        pixels, labels = read_pickled_batch(raw, where)
        if pixels.shape != (len(labels), CIFAR_PIXELS):
            expected = _by((len(labels), CIFAR_PIXELS))
            raise DataError(f"{where}: pixels of shape {_by(pixels.shape)} for {len(labels)} labels; expected {expected}")
        records = np.concatenate([labels[:, None], pixels], axis=1)
    _check_published(where, name, np.ascontiguousarray(records).data, published)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].copy()


def _read_folder(folder: Path) -> dict[str, tuple[str, bytes]]:
    """Of each batch in a folder, the name of its file, for messages, and what is in it."""
    paths = {name: first_file(folder, [f"{name}.bin", name]) for name in CIFAR_BATCHES}
    return {name: (str(path), _read_capped(path)) for name, path in paths.items()}


def _read_tar(archive: Path) -> dict[str, tuple[str, bytes]]:
    """The same of a .tar.gz, without extracting it. Binary batches go before pickled ones."""
    files: dict[str, tuple[str, bytes]] = {}
    try:
        with tarfile.open(archive, "r:*") as tar:
            for member in tar:
                file = Path(member.name).name
                name = file.removesuffix(".bin")
                if member.isfile() and name in CIFAR_BATCHES and (file != name or name not in files):
                    where = f"{archive}:{file}"
                    files[name] = where, _bounded(tar.extractfile(member), member.size, where)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataError(f"{archive}: not an archive that can be read, or cut short: {error}") from error
    for name in CIFAR_BATCHES:
        if name not in files:
            raise DataError(f"{archive}: the batch {name} is missing; expected a member {name}.bin or {name}")
    return files


def read_idx_set(folder: Path, published: Mapping[str, str]) -> Images:
    """The four IDX files of MNIST's relatives, each with or without .gz. `published` has the SHA-256 of each, uncompressed."""
    arrays = []
    for name in IDX_FILES:
        path = first_file(folder, [f"{name}.gz", name])
        arrays.append(read_idx(path, dimensions=3 if "images" in name else 1, published=published))
    x_train, y_train, x_test, y_test = arrays
    return Images(x_train=x_train[:, None], y_train=y_train, x_test=x_test[:, None], y_test=y_test, origin=str(folder))


def read_idx(path: Path, *, dimensions: int, published: Mapping[str, str]) -> np.ndarray:
    """One IDX file of unsigned bytes with that many dimensions, compressed if its name ends in .gz."""
    raw = _read_capped(path)
    if not raw.startswith(bytes([0, 0, IDX_UNSIGNED_BYTE, dimensions])):
        raise DataError(f"{path}: starts with the bytes {raw[:4].hex(' ') or 'none'}; expected 00 00 08 {dimensions:02x}, an IDX file")
    header = 4 + 4 * dimensions
    shape = tuple(int.from_bytes(raw[start : start + 4], "big") for start in range(4, header, 4))
    expected = header + int(np.prod(shape, dtype=object))
    if len(raw) != expected or len(raw) <= header:
        raise DataError(f"{path}: {len(raw):,} bytes for an array of {_by(shape)}; expected {expected:,}: it is empty or cut short")
    _check_published(str(path), path.name.removesuffix(".gz"), raw, published)
    return np.frombuffer(raw, dtype=np.uint8, offset=header).reshape(shape)


def read_npz(path: Path) -> Images:
    """A .npz file with x_train, y_train, x_test and y_test: uint8 images (N, H, W, C), (N, C, H, W) or (N, H, W), integer labels (N,)."""
    arrays: dict[str, np.ndarray] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name in NPZ_ARRAYS:
                if f"{name}.npy" not in archive.namelist():
                    raise DataError(f"{path}: no array {name}; expected {', '.join(NPZ_ARRAYS)}")
                with archive.open(f"{name}.npy") as file:
                    arrays[name] = _read_npy(file, f"{path}: {name}")
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError, NotImplementedError) as error:
        raise DataError(f"{path}: not a .npz file that can be read: {error}") from error
    x_train, x_test = (_channels_first(arrays[name], f"{path}: {name}") for name in ("x_train", "x_test"))
    y_train, y_test = (_labels(arrays[name], f"{path}: {name}") for name in ("y_train", "y_test"))
    return Images(x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, origin=str(path))


def _read_npy(file: IO[bytes], where: str) -> np.ndarray:
    """One array, whose type and size are checked before its contents are read. Pickled objects are never loaded."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise DataError(f"{where}: written in version {version} of numpy's format; expected 1.0 or 2.0")
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_column, dtype = read_header(file)
    if dtype.kind not in "ui":
        raise DataError(f"{where}: values of type {dtype}; expected integers")
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    raw = _bounded(file, size, where)
    return np.frombuffer(raw, dtype=dtype).reshape(shape, order="F" if by_column else "C")


def _channels_first(x: np.ndarray, where: str) -> np.ndarray:
    """The images as (N, C, H, W)."""
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        raise DataError(f"{where}: {x.dtype} of shape {_by(x.shape)}; expected uint8 images N x H x W x C, N x C x H x W or N x H x W")
    if x.ndim == 3:
        return x[:, None]
    # The channels are the side that is 1 or 3 while the others are not.
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if x.shape[3] in (1, 3) and x.shape[1] not in (1, 3) else x


def _labels(y: np.ndarray, where: str) -> np.ndarray:
    """The labels as uint8 (N,); (N, 1) is how some published sets store them."""
    flat = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if flat.ndim != 1:
        raise DataError(f"{where}: labels of shape {_by(y.shape)}; expected one number for each image")
    if flat.size and not 0 <= int(flat.min()) <= int(flat.max()) <= 255:
        raise DataError(f"{where}: labels from {flat.min()} to {flat.max()}; expected 0 to 255")
    return flat.astype(np.uint8)


def _read_capped(path: Path) -> bytes:
    """The contents of a file, uncompressed if its name ends in .gz."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read, or cut short: {error}") from error
    if len(raw) > MAX_BYTES:
        raise DataError(f"{path}: more than {MAX_BYTES:,} bytes, which is more than is ever read")
    return raw


def _bounded(file: IO[bytes] | None, size: int, where: str) -> bytes:
    """Exactly `size` bytes, if that is not too much."""
    if file is None or size > MAX_BYTES:
        raise DataError(f"{where}: {size:,} bytes; expected {MAX_BYTES:,} at most")
    raw = file.read(size + 1)
    if len(raw) != size:
        raise DataError(f"{where}: {'more' if len(raw) > size else 'fewer'} bytes than the {size:,} that it announces")
    return raw


def _check_published(where: str, name: str, contents: bytes | memoryview, published: Mapping[str, str]) -> None:
    found = hashlib.sha256(contents).hexdigest()
    if found != published[name]:
        raise DataError(
            f"{where}: its contents are not the published ones (SHA-256 {found[:12]}, expected {published[name][:12]}); "
            "get it again, or put data of your own into a .npz file"
        )


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a single value"
