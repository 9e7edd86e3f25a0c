"""What the site needs beyond the pages as they lie in the repository: README and changelog as pages, and links that lead out of docs/."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PROJECT = Path(__file__).parents[2]
OUTSIDE = {"index.md": "README.md", "changelog.md": "CHANGELOG.md"}
"""Pages of the site that lie outside docs/, by their place in it."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside."""
    for place, name in OUTSIDE.items():
        files.append(File.generated(config, place, content=(PROJECT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links lead to pages of the site; one to a file that is not in it becomes its text."""
    if page.file.src_uri in OUTSIDE:
        markdown = re.sub(r"\]\(docs/", "](", markdown)
        markdown = markdown.replace("](CHANGELOG.md)", "](changelog.md)")
    return re.sub(r"\[([^\]]+)\]\((?:\.\./)*(?:benchmarks|examples|src|pyproject\.toml)[^)]*\)", r"\1", markdown)
