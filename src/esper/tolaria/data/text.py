"""Text as tokens: one token for each character, and documents chopped into blocks of equal length."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from esper.leyline.errors import DataError
from esper.tolaria.data.sources import first_file
from esper.tolaria.data.splits import Data, Split
from esper.tolaria.data.streams import draws

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
"""The characters that have a token of their own: the newline and printable ASCII."""
END, OTHER = 0, 1
"""Tokens for the end of a document and for any character outside the alphabet."""
VOCABULARY = 2 + len(ALPHABET)
"""98 tokens: the two above, then the alphabet in its order."""
PLAIN = str.maketrans(
    {
        "\N{LEFT SINGLE QUOTATION MARK}": "'",
        "\N{RIGHT SINGLE QUOTATION MARK}": "'",
        "\N{LEFT DOUBLE QUOTATION MARK}": '"',
        "\N{RIGHT DOUBLE QUOTATION MARK}": '"',
        "\N{EN DASH}": "-",
        "\N{EM DASH}": "-",
        "\N{HORIZONTAL ELLIPSIS}": "...",
        "\t": "    ",
        "\r": "",
    }
)
"""Typographic signs that stories use now and then, and tabs, as plain characters."""
END_OF_STORY = "<|endoftext|>"
STORIES_LIMIT = 16 << 20
"""Only so many bytes of a file of stories are read; the published one has 1.9 GB."""
VAL_STORIES = 20
"""One story in so many is for val."""
MAX_EVALUATION_TOKENS = 1 << 15
"""Val and test have no more tokens than this, because hosts are evaluated on val, several times, after every epoch."""
MAX_TRAIN_TOKENS = 16 << 20
"""And train no more than this, at eight bytes each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Documents for each split, and where they came from, in words."""

    train: Sequence[str]
    val: Sequence[str]
    test: Sequence[str]
    origin: str

    def __post_init__(self) -> None:
        for part, documents in (("train", self.train), ("val", self.val), ("test", self.test)):
            if isinstance(documents, str) or not all(isinstance(document, str) for document in documents):
                raise DataError(f"{self.origin}: the documents for {part} are no texts; expected a list of str")

    def fingerprint(self) -> str:
        """SHA-256 of every document and of which split it is in."""
        digest = hashlib.sha256()
        for documents in (self.train, self.val, self.test):
            digest.update(repr([hashlib.sha256(text.encode()).hexdigest() for text in documents]).encode())
        return digest.hexdigest()


def encode(text: str) -> np.ndarray:
    """The tokens of a text, one uint8 for each character."""
    table = np.full(128, OTHER, dtype=np.uint8)
    table[[ord(character) for character in ALPHABET]] = np.arange(2, VOCABULARY, dtype=np.uint8)
    points = np.frombuffer(text.translate(PLAIN).encode("utf-32-le"), dtype=np.uint32)
    return np.where(points < 128, table[np.minimum(points, 127)], OTHER).astype(np.uint8)


def read_stories(path: Path, limit: int = STORIES_LIMIT) -> list[str]:
    """The stories of a TinyStories file, from its first `limit` bytes: separated by lines <|endoftext|>, or else by empty lines.

    A story that the limit cuts is left out.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(limit + 1)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    cut = len(raw) > limit
    try:
        text = raw[:limit].decode("utf-8", "ignore" if cut else "strict")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a file of stories: byte {error.start} is not UTF-8") from error
    pieces = text.split(END_OF_STORY) if END_OF_STORY in text else re.split(r"\n\s*\n", text)
    stories = [story for story in map(str.strip, pieces[:-1] if cut else pieces) if story]
    if not stories:
        raise DataError(f"{path}: no story in it; expected stories that are separated by lines {END_OF_STORY}")
    return stories


def read_tinystories(train_file: Path) -> Texts:
    """Train and val, one story in twenty, from the training file; test from the validation file next to it."""
    test_file = first_file(train_file.parent, [train_file.name.replace("train", other) for other in ("valid", "val")])
    stories = read_stories(train_file)
    for_val = (draws(torch.arange(len(stories)), "val") % VAL_STORIES == 0).tolist()
    return Texts(
        train=[story for story, is_val in zip(stories, for_val, strict=True) if not is_val],
        val=[story for story, is_val in zip(stories, for_val, strict=True) if is_val],
        test=read_stories(test_file),
        origin=str(train_file.parent),
    )


def text_data(texts: Texts, *, block: int, device: torch.device) -> Data:
    """Documents as data for a language model with blocks of `block` tokens."""
    held_back = _stream(texts.test, block, MAX_EVALUATION_TOKENS, f"{texts.origin} (test)")
    return Data(
        classes=VOCABULARY,
        train=_blocks(_stream(texts.train, block, MAX_TRAIN_TOKENS, f"{texts.origin} (train)"), block, device),
        val=_blocks(_stream(texts.val, block, MAX_EVALUATION_TOKENS, f"{texts.origin} (val)"), block, device),
        test=lambda: _blocks(held_back, block, device),
        fingerprint=texts.fingerprint(),
        origin=texts.origin,
    )


def _stream(documents: Sequence[str], block: int, limit: int, where: str) -> Tensor:
    """The documents' tokens, each with its end behind it, one after the other: uint8, a whole number of blocks and one token more."""
    parts, length, wanted = [], 0, limit // block * block + 1
    for document in documents:
        if length >= wanted:
            break
        parts.append(np.append(encode(document), np.uint8(END)))
        length += len(parts[-1])
    if length <= block:
        raise DataError(f"{where}: {length} characters; expected more than {block}, the length of one block")
    tokens = np.concatenate(parts)
    return torch.from_numpy(tokens[: min(wanted, (length - 1) // block * block + 1)])


def _blocks(tokens: Tensor, block: int, device: torch.device) -> Split:
    """Blocks of tokens and, for each token, the next one; two views of one stream."""
    stream = tokens.to(device).long()
    return Split(stream[:-1].view(-1, block), stream[1:].view(-1, block))
