"""Policies that ship are found by their names, and tell about themselves without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from esper.leyline.errors import PolicyError
from esper.policies import POLICIES, exact_name, names, shipped
from esper.policies.card import HEADINGS, read_card
from esper.tamiyo.policy.policy_file import load_policy
from esper.tamiyo.policy.policy_header import read_header
from tests.policies.sample import CARD, ship, shipping
from tests.simic.runs import opinionated


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).touch()


def test_generations_are_in_the_order_of_their_numbers_and_other_files_are_passed_over(tmp_path: Path) -> None:
    touch(tmp_path, "tamiyo-10.safetensors", "tamiyo-2.safetensors", "other-3.safetensors")
    touch(tmp_path, "tamiyo-10.md", "tamiyo.safetensors", "tamiyo-0.safetensors", "tamiyo-02.safetensors", "Tamiyo-3.safetensors")
    found = shipped(tmp_path)
    assert list(found) == ["other-3", "tamiyo-2", "tamiyo-10"]
    assert found["tamiyo-2"] == tmp_path / "tamiyo-2.safetensors"


def test_a_name_alone_means_the_newest_generation(tmp_path: Path) -> None:
    touch(tmp_path, "tamiyo-10.safetensors", "tamiyo-2.safetensors", "other-3.safetensors")
    with shipping(tmp_path):
        assert names() == ["other", "tamiyo", "other-3", "tamiyo-2", "tamiyo-10"]
        assert [exact_name(name) for name in names()] == ["other-3", "tamiyo-10", "other-3", "tamiyo-2", "tamiyo-10"]
        assert [exact_name(name) for name in ("tamiyo-1", "tami", "tamiyo-", "Tamiyo", "")] == [None] * 5
    assert tmp_path / "tamiyo-2.safetensors" not in POLICIES.values()


def test_a_header_tells_what_the_file_holds_without_torch(tmp_path: Path) -> None:
    path = ship(tmp_path, "tamiyo-1")
    header = read_header(path)
    assert header.trained == {"task": ["digits", "stdlib"], "rounds": 3}
    assert tuple(header.config["blueprints"]) == load_policy(path).config.blueprints == opinionated().config.blueprints
    assert header.problem == ""
    program = f"""
import sys
from pathlib import Path
from esper.policies.card import read_card
from esper.tamiyo.policy.policy_header import read_header
path = Path({str(path)!r})
print(read_header(path).sha256, read_card(path).summary)
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{header.sha256} A recurrent policy that grows small networks.\n"


@pytest.mark.parametrize(("key", "value", "words"), [("version", 99, "is a policy of version 99"), ("schema", "ab", "fingerprint ab;")])
def test_a_header_says_why_this_version_cannot_use_the_policy(key: str, value: object, words: str, tmp_path: Path) -> None:
    path = ship(tmp_path, "tamiyo-1")
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + size])
    about = json.loads(metadata["__metadata__"]["policy"]) | {key: value}
    metadata["__metadata__"]["policy"] = json.dumps(about)
    text = json.dumps(metadata).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])
    assert words in read_header(path).problem
    with pytest.raises(PolicyError, match="damaged or was edited"):
        load_policy(path)


# Cards


def test_a_card_has_its_sections_and_names_the_arms(tmp_path: Path) -> None:
    card = read_card(ship(tmp_path, "tamiyo-1"))
    assert tuple(card.sections) == HEADINGS
    assert card.sections["Licence"] == "MIT."
    assert card.summary == "A recurrent policy that grows small networks."
    assert card.arms == ["wait", "static-final"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (CARD, "begins with '# {name}'; expected the title '# tamiyo-1'"),
        ("# tamiyo-1\n\nnothing\n", "expected the title '# tamiyo-1'"),
        ("# tamiyo-1\n", "has the sections none; expected, each with a text: What it is, Trained on"),
        (CARD.format(name="tamiyo-1").replace("## Limits", "## Limit"), "Against every arm, Limit, Licence; expected"),
        (CARD.format(name="tamiyo-1").replace("MIT.", ""), "expected, each with a text"),
        (None, "the card of tamiyo-1 cannot be read from .*tamiyo-1.md"),
    ],
)
def test_a_card_that_is_none_is_told_in_a_sentence(text: str | None, words: str, tmp_path: Path) -> None:
    path = ship(tmp_path, "tamiyo-1")
    path.with_suffix(".md").unlink()
    if text is not None:
        path.with_suffix(".md").write_text(text)
    with pytest.raises(PolicyError, match=words):
        read_card(path)
