"""Published data sets: how their files are called, where they are looked for, and where they can be had."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from esper.leyline.errors import DataError

DATA_VARIABLE = "ESPER_DATA"
"""Environment variable that names the folder with data sets, instead of the user's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """A file of a published data set, and how to tell that it came whole."""

    url: str
    size: int
    """How many bytes it has."""
    checksum: str
    """`md5:` or `sha256:` and the sum in hexadecimal, as published."""

    @property
    def file(self) -> str:
        """The name it is kept under."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A published data set: its files, where they are looked for, and where they can be had."""

    name: str
    """Name of its folder in the cache, and of `esper tasks --download NAME`."""
    title: str
    licence: str
    files: tuple[str, ...]
    """Paths that show it is there, in the order they are looked for, relative to a folder that is searched."""
    downloads: tuple[Download, ...]
    elsewhere: tuple[str, ...] = ()
    """Folders where distributions install it, searched last and only when the user named none."""

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(download.size for download in self.downloads)

    def find(self, place: Path | None = None) -> Path | None:
        """The file that shows the set is there, or None: in `place` if one is given, else in the cache and where distributions put it.

        `place` may also be such a file itself, or a .npz file of any name where the set can be one.
        """
        if place is not None and os.path.isfile(place):  # False, too, for a path that is too long
            named = place.name in {Path(file).name for file in self.files}
            own = place.suffix == ".npz" and any(file.endswith(".npz") for file in self.files)
            return place if named or own else None
        folders = [place] if place is not None else [cache_folder(), *map(Path, self.elsewhere)]
        tried = [folder / inner / file for folder in folders for inner in ("", self.name) for file in self.files]
        return next((path for path in tried if os.path.isfile(path)), None)

    def locate(self, place: Path | None = None) -> Path:
        """Like `find`, and a DataError that says what to do where the set is not there."""
        found = self.find(place)
        if found is not None:
            return found
        if place is not None and not os.path.exists(place):
            raise DataError(f"no folder {place}; expected one with {self.title}")
        searched = place if place is not None else cache_folder()
        raise DataError(
            f"no {self.title} in {searched} (looked for {', '.join(self.files)}): name its folder with --data DIR, "
            f"or get it with `esper tasks --download {self.name}` ({self.size / 1e6:,.0f} MB)"
        )


def first_file(folder: Path, names: Sequence[str]) -> Path:
    """The first of these files that is in the folder, or a DataError that names them all."""
    found = next((path for name in names if (path := folder / name).is_file()), None)
    if found is None:
        raise DataError(f"{folder}: a file is missing; expected {' or '.join(names)}")
    return found


def cache_folder() -> Path:
    """Where data sets are kept: $ESPER_DATA, or else `esper` in the user's cache ($XDG_CACHE_HOME or ~/.cache)."""
    named = os.environ.get(DATA_VARIABLE)
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "esper"


_FASHION = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"
_STORIES = "https://huggingface.co/datasets/roneneldan/TinyStories/resolve/f54c09fd23315a6f9c86f9dc80f725de7d8f9c64"

CIFAR10 = Source(
    name="cifar10",
    title="CIFAR-10",
    licence="no explicit licence; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
    files=(
        "cifar-10-batches-bin/data_batch_1.bin",
        "cifar-10-batches-py/data_batch_1",
        "data_batch_1.bin",
        "data_batch_1",
        "cifar-10-binary.tar.gz",
        "cifar-10-python.tar.gz",
        "cifar10.npz",
    ),
    downloads=(
        Download(
            url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", size=170_052_171, checksum="md5:c32a1d4ab5d03f1284b67883e8d87530"
        ),
    ),
)
FASHION_MNIST = Source(
    name="fashion-mnist",
    title="Fashion-MNIST",
    licence="MIT, Zalando SE",
    files=("train-images-idx3-ubyte.gz", "train-images-idx3-ubyte", "FashionMNIST/raw/train-images-idx3-ubyte", "fashion-mnist.npz"),
    downloads=(
        Download(url=f"{_FASHION}/train-images-idx3-ubyte.gz", size=26_421_880, checksum="md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        Download(url=f"{_FASHION}/train-labels-idx1-ubyte.gz", size=29_515, checksum="md5:25c81989df183df01b3e8a0aad5dffbe"),
        Download(url=f"{_FASHION}/t10k-images-idx3-ubyte.gz", size=4_422_102, checksum="md5:bef4ecab320f06d8554ea6380940ec79"),
        Download(url=f"{_FASHION}/t10k-labels-idx1-ubyte.gz", size=5_148, checksum="md5:bb300cfdad3c16e7a12a480ee83cd310"),
    ),
    elsewhere=("/usr/share/datasets",),
)
TINYSTORIES = Source(
    name="tinystories",
    title="TinyStories",
    licence="CDLA-Sharing-1.0, Eldan and Li 2023",
    files=("TinyStories-train.txt", "TinyStoriesV2-GPT4-train.txt", "tinystories_train.txt"),
    downloads=(
        Download(
            url=f"{_STORIES}/TinyStories-train.txt",
            size=1_924_281_556,
            checksum="sha256:c5cf5e22ff13614e830afbe61a99fbcbe8bcb7dd72252b989fa1117a368d401f",
        ),
        Download(
            url=f"{_STORIES}/TinyStories-valid.txt",
            size=19_447_282,
            checksum="sha256:94e431816c4cce81ff71e4408ff8d3bda9a42e8d2663986697c3954288cb38b4",
        ),
    ),
)
SOURCES: dict[str, Source] = {source.name: source for source in (CIFAR10, FASHION_MNIST, TINYSTORIES)}
"""Every published set by its name."""
