"""Text: one token a character, stories apart, blocks whose targets are the next tokens, and the standard library as a stable sample."""

from __future__ import annotations

import string
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.errors import DataError
from esper.tolaria.data import FinalEvaluation
from esper.tolaria.data.stdlib import FILE_LIMIT, TOTAL_LIMIT, read_stdlib
from esper.tolaria.data.text import (
    ALPHABET,
    END,
    MAX_EVALUATION_TOKENS,
    OTHER,
    VOCABULARY,
    Texts,
    encode,
    read_stories,
    read_tinystories,
    text_data,
)

CPU = torch.device("cpu")


def decode(tokens: Iterable[int]) -> str:
    """The text of tokens: a form feed for the end of a document, a replacement character for what is not in the alphabet."""
    signs = "\f\N{REPLACEMENT CHARACTER}" + ALPHABET
    return "".join(signs[token] for token in tokens)


def test_the_vocabulary_is_printable_ascii_newline_end_and_other() -> None:
    assert VOCABULARY == 98
    assert set(ALPHABET) == (set(string.printable) - set("\t\r\x0b\x0c"))
    assert encode("\n ~").tolist() == [2, 3, 97]


@given(st.text(alphabet=ALPHABET))
def test_text_in_the_alphabet_survives_encoding(text: str) -> None:
    assert decode(encode(text)) == text


@given(st.text())
def test_every_text_has_tokens_of_the_vocabulary_and_none_is_the_end(text: str) -> None:
    tokens = encode(text.encode("utf-8", "replace").decode())
    assert all(OTHER <= token < VOCABULARY for token in tokens)


def test_typographic_signs_become_plain_and_the_rest_other() -> None:
    written = "\u201cDon\u2019t\u2026\u201d\t\u2014 \xe9\U0001f600\r\n"
    assert decode(encode(written)) == '"Don\'t..."    - \ufffd\ufffd\n'


@pytest.mark.parametrize(
    ("contents", "stories"),
    [
        ("One.\nTwo.\n\nThree.\n<|endoftext|>\nFour.\n<|endoftext|>\n", ["One.\nTwo.\n\nThree.", "Four."]),
        ("One.\nTwo.\n\nThree.\n \nFour.\n", ["One.\nTwo.", "Three.", "Four."]),
    ],
)
def test_stories_are_separated_by_their_end_or_else_by_empty_lines(contents: str, stories: list[str], tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text(contents)
    assert read_stories(tmp_path / "f.txt") == stories


def test_only_the_start_of_a_large_file_is_read_and_no_story_is_cut(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text("Été 1.\n<|endoftext|>\nÉté 2.\n<|endoftext|>\nÉté 3 and more.\n<|endoftext|>\n")
    for limit in range(60, 70):
        assert read_stories(tmp_path / "f.txt", limit) == ["Été 1.", "Été 2."]


@pytest.mark.parametrize(
    ("contents", "message"), [(b"", "no story"), (b"<|endoftext|>\n\n", "no story"), (b"a\xff\xfeb", "byte 1 is not UTF-8")]
)
def test_a_file_without_stories_is_refused_by_name(contents: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_bytes(contents)
    with pytest.raises(DataError, match=rf"f\.txt: .*{message}"):
        read_stories(tmp_path / "f.txt")


def write_stories(folder: Path, train: str, test: str) -> Path:
    (folder / train).write_text("".join(f"Story {i} of train.\n<|endoftext|>\n" for i in range(400)))
    (folder / test).write_text("".join(f"Story {i} of test.\n\n" for i in range(50)))
    return folder / train


@pytest.mark.parametrize(
    ("train", "test"), [("TinyStories-train.txt", "TinyStories-valid.txt"), ("tinystories_train.txt", "tinystories_val.txt")]
)
def test_val_is_cut_from_the_training_file_and_test_is_the_validation_file(train: str, test: str, tmp_path: Path) -> None:
    texts = read_tinystories(write_stories(tmp_path, train, test))
    assert len(texts.train) + len(texts.val) == 400
    assert 10 < len(texts.val) < 35
    assert not set(texts.train) & set(texts.val)
    assert all("of test" in story for story in texts.test)
    again = read_tinystories(tmp_path / train)
    assert (again, again.fingerprint()) == (texts, texts.fingerprint())


def test_a_missing_validation_file_is_named(tmp_path: Path) -> None:
    path = write_stories(tmp_path, "TinyStories-train.txt", "other.txt")
    with pytest.raises(DataError, match=r"expected TinyStories-valid\.txt or TinyStories-val\.txt"):
        read_tinystories(path)


def some_texts() -> Texts:
    return Texts(train=["abcdef", "ghi" * 20], val=["xyz" * 5], test=["0123456789"], origin="here")


def test_each_target_is_the_token_that_follows() -> None:
    data = text_data(some_texts(), block=4, device=CPU)
    x, y = data.train.x, data.train.y
    assert x.shape == y.shape == (16, 4)
    assert (x.dtype, y.dtype) == (torch.int64, torch.int64)
    assert decode(x[0].tolist()) == "abcd"
    assert decode(y[0].tolist()) == "bcde"
    assert torch.equal(x.flatten()[1:], y.flatten()[:-1])
    assert x[1].tolist() == [*encode("ef").tolist(), END, encode("g")[0]]
    assert decode(data.test(FinalEvaluation(asked_by="a test")).x.flatten().tolist()) == "01234567"


def test_inputs_and_targets_share_their_memory() -> None:
    data = text_data(some_texts(), block=4, device=CPU)
    assert data.train.x.untyped_storage().nbytes() == 8 * 65
    assert data.val.x.untyped_storage().nbytes() == 8 * 13
    assert data.train.x.untyped_storage().data_ptr() == data.train.y.untyped_storage().data_ptr()


def test_val_and_test_are_capped() -> None:
    long = ["word " * 20_000]
    data = text_data(Texts(train=long, val=long, test=long, origin="here"), block=64, device=CPU)
    assert data.val.x.numel() == MAX_EVALUATION_TOKENS
    assert data.test(FinalEvaluation(asked_by="a test")).x.numel() == MAX_EVALUATION_TOKENS
    assert len(data.train) == 100_000 // 64


def test_a_text_shorter_than_a_block_is_refused() -> None:
    with pytest.raises(DataError, match=r"here \(val\): 16 characters; expected more than 64"):
        text_data(Texts(train=["x" * 999], val=["xyz" * 5], test=["x" * 999], origin="here"), block=64, device=CPU)


def test_the_fingerprint_sees_which_split_a_document_is_in() -> None:
    texts = some_texts()
    moved = Texts(train=texts.train[:1], val=[*texts.val, texts.train[1]], test=texts.test, origin="here")
    joined = Texts(train=["".join(texts.train)], val=texts.val, test=texts.test, origin="here")
    assert len({texts.fingerprint(), moved.fingerprint(), joined.fingerprint()}) == 3


def test_the_standard_library_is_a_stable_sample_split_by_file() -> None:
    texts = read_stdlib()
    every = [*texts.train, *texts.val, *texts.test]
    assert TOTAL_LIMIT * 0.9 < sum(map(len, every)) <= TOTAL_LIMIT
    assert max(map(len, every)) <= FILE_LIMIT
    assert len(set(every)) == len(every)
    assert min(map(sum, ([len(text) for text in part] for part in (texts.val, texts.test)))) > MAX_EVALUATION_TOKENS
    assert read_stdlib().fingerprint() == texts.fingerprint()


def test_a_files_split_depends_on_its_path_alone(tmp_path: Path) -> None:
    for i in range(120):
        (tmp_path / f"module{i}.py").write_text(f"# {i}\n" + "x = 1\n" * 200)
    first = read_stdlib(tmp_path)
    (tmp_path / "module7.py").write_text("# 7\n" + "y = 2\n" * 200)
    (tmp_path / "module121.py").write_text("# 121\n" + "x = 1\n" * 200)
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "big.py").write_text("# test\n" * 1000)
    second = read_stdlib(tmp_path)
    for name in ("train", "val", "test"):
        before, after = ({text.split("\n")[0] for text in getattr(texts, name)} for texts in (first, second))
        assert before <= after <= before | {"# 121"}
    assert min(len(first.train), len(first.val), len(first.test)) > 0


def test_a_python_without_sources_is_said_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"0 characters of Python sources.*came without its sources"):
        read_stdlib(tmp_path)
