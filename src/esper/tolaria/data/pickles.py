"""Reads the pickled batches of CIFAR-10 without running anything that stands in the file.

A pickle is a program: unpickling a hostile one runs what its author wants. The batches need a few instructions and four names. Any other
instruction or name is refused, and each of the names is replaced by a stand-in that only keeps what it is given. numpy itself never
sees the file.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any

import numpy as np

from esper.leyline.errors import DataError


class _Dtype:
    """Stands for numpy.dtype: remembers which one the file names."""

    def __init__(self, code: Any, *options: Any) -> None:
        self.code = _text(code)

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like, which single bytes do not have."""


class _Array:
    """Stands for an array under construction: remembers its shape, type and bytes."""

    def __init__(self, kind: Any = None, *empty: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def build(self) -> np.ndarray:
        """The array of unsigned bytes that the file describes; ValueError for anything else."""
        try:
            _, shape, dtype, by_column, raw = self.state
        except (TypeError, ValueError):
            raise ValueError("an array without contents") from None
        if not isinstance(dtype, _Dtype) or dtype.code not in ("u1", "|u1"):
            raise ValueError("an array of something else than unsigned bytes")
        if by_column or not isinstance(raw, bytes) or not isinstance(shape, tuple) or not all(isinstance(size, int) for size in shape):
            raise ValueError("an array in another memory layout")
        return np.frombuffer(raw, dtype=np.uint8).reshape(shape)


def _encode(text: Any, encoding: Any) -> bytes:
    """Stands for _codecs.encode, by which Python 3 writes bytes in old pickles."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("bytes in an unknown encoding")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): None,  # named, and never called
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
}


_INSTRUCTIONS = frozenset(
    {
        "PROTO", "FRAME", "STOP", "MARK", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "APPEND",
        "APPENDS", "SETITEM", "SETITEMS", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "SHORT_BINSTRING", "BINSTRING",
        "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "MEMOIZE",
        "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD",
    }
)  # fmt: skip


class _Reader(pickle.Unpickler):
    """An unpickler that knows the stand-ins above and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch of images needs")
        return _ALLOWED[module, name]


def _check_instructions(raw: bytes) -> None:
    """Refuse instructions that no batch has, and memory slots so far out that making room for them would exhaust the machine."""
    for instruction, argument, _ in pickletools.genops(raw):
        if instruction.name not in _INSTRUCTIONS:
            raise pickle.UnpicklingError(f"it has the instruction {instruction.name}, which no batch of images needs")
        if instruction.name == "LONG_BINPUT" and isinstance(argument, int) and argument > len(raw):
            raise pickle.UnpicklingError("it asks for more memory than its size explains")


def read_pickled_batch(raw: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (N, 3072) and labels (N,), both uint8, of one batch of CIFAR-10's Python version. `where` is the file, for messages."""
    try:
        _check_instructions(raw)
        batch = _Reader(io.BytesIO(raw), encoding="bytes").load()
        fields = {_text(key): value for key, value in batch.items()}
        pixels, labels = fields["data"].build(), fields["labels"]
        # bytes() takes a list of numbers from 0 to 255 and refuses everything else.
        return pixels, np.frombuffer(bytes(labels) if isinstance(labels, list) else b"", dtype=np.uint8)
    except KeyError as error:
        raise DataError(f"{where}: not a batch of CIFAR-10: it has no {error}; expected data and labels") from error
    # A damaged pickle can fail anywhere in the unpickler's machine, with whatever exception that part raises.
    except Exception as error:
        raise DataError(f"{where}: not a batch of CIFAR-10 that can be read safely: {error or type(error).__name__}") from error


def _text(key: Any) -> Any:
    return key.decode("ascii", "replace") if isinstance(key, bytes) else key
