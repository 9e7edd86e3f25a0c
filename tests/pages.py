"""Pages for people: README and docs/, what is shown on them, and what the code writes into them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
DOCS = PROJECT / "docs"
PAGES = ("README.md", *(str(path.relative_to(PROJECT)) for path in sorted(DOCS.rglob("*.md"))))
"""Every page, as a path from the project's folder."""

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\s*(?:\$ )?(?:\./go )?(?:python -m )?(esper(?: .*)?)$")


def read(page: str) -> str:
    """The text of a page."""
    return (PROJECT / page).read_text(encoding="utf-8")


def blocks(page: str, *languages: str) -> list[str]:
    """The blocks of a page in one of these languages; '' is for those that name none."""
    return [text for language, text in BLOCK.findall(read(page)) if language in languages]


def commands(text: str) -> list[str]:
    """The lines of a text that begin with `esper`, without what is said about them: after two spaces, or a #."""
    joined = text.replace("\\\n", " ")
    found = [match[1] for line in joined.splitlines() if (match := COMMAND.match(line))]
    return [re.split(r"\s{2,}|\s#\s|\s[>|&]+\s", line)[0] for line in found]


def written(name: str) -> str:
    """What docs/NAME.py would write to docs/NAME.md now."""
    spec = importlib.util.spec_from_file_location(f"{name}_page", DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.text())
