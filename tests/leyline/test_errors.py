"""What an error says is one sentence."""

from __future__ import annotations

from esper.leyline.errors import in_a_line


def test_what_others_say_is_one_line() -> None:
    assert in_a_line(ValueError("a lot\nand more")) == "ValueError: a lot"
    assert in_a_line(ValueError("\n  torch begins with an empty line\n")) == "ValueError: torch begins with an empty line"
    assert in_a_line(RuntimeError()) == "RuntimeError"
