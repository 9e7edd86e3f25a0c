"""Docstrings here explain a parameter as `name: what it is`; on the site each of them is an item of a list."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Parameters(griffe.Extension):
    """Turns the sentences about parameters into a list, for functions and for classes, which are documented where they are defined."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """A function or method."""
        _listed(func.docstring, [parameter.name for parameter in func.parameters])

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """A class: what its __init__ takes."""
        made = cls.members.get("__init__")
        if isinstance(made, griffe.Function):
            _listed(cls.docstring, [parameter.name for parameter in made.parameters])


def _listed(docstring: griffe.Docstring | None, names: list[str]) -> None:
    """Begin an item wherever a sentence begins with names of parameters and a colon."""
    if docstring is None or not names:
        return
    name = "|".join(map(re.escape, names))
    explained = re.compile(rf"(?:^|(?<=\. ))(?P<names>(?:{name})(?:, (?:{name}))*): ", re.MULTILINE)
    paragraphs = []
    for paragraph in docstring.value.split("\n\n"):
        if explained.search(paragraph):
            first = explained.search(paragraph)
            assert first is not None
            before, rest = paragraph[: first.start()].rstrip(), paragraph[first.start() :]
            items = explained.sub(lambda found: "\n- " + ", ".join(f"`{each}`" for each in found["names"].split(", ")) + ": ", rest)
            items = re.sub(r"\n(?!- )", " ", items.strip())
            paragraph = f"{before}\n\n{items}" if before else items
        paragraphs.append(paragraph)
    docstring.value = "\n\n".join(paragraphs)
