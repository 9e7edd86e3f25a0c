"""The site builds from pages and docstrings without a warning, has every public name, and loads nothing from elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import esper
from tests.pages import PAGES, PROJECT


class Loaded(HTMLParser):
    """What a page loads by itself: scripts, style sheets, fonts, pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take an address that a browser follows without being asked."""
        given = dict(attrs)
        if tag in ("script", "img", "iframe", "source"):
            self.found.append(given.get("src") or "")
        if tag == "link":
            self.found.append(given.get("href") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    # Without --quiet, under which warnings are not counted, and so none is an error.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_there_and_loads_nothing_from_elsewhere(site: Path) -> None:
    names = {re.sub(r"(^|/)(index|README)?$", "", page.removeprefix("docs/").removesuffix(".md")) for page in PAGES}
    built = sorted(site.rglob("*.html"))
    assert names <= {str(path.parent.relative_to(site)).removeprefix(".") for path in built}
    for path in built:
        loaded = Loaded()
        loaded.feed(path.read_text(encoding="utf-8"))
        assert loaded.found, path
        assert [address for address in loaded.found if "//" in address] == [], path


def test_every_public_name_is_explained(site: Path) -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (site / "api").rglob("*.html"))
    titles = re.findall(r'<h2 id="[^"]*" class="doc doc-heading">(.*?)</h2>', pages, re.DOTALL)
    listed = [re.sub("<.*?>", " ", title, flags=re.DOTALL).split()[0] for title in titles]
    headings = set(listed)
    assert len(headings) == len(listed), "each name once"
    assert {f"esper.{name}" for name in esper.__all__ if name != "__version__"} <= headings
    assert "<code>slots</code>: module paths" in pages, "parameters are a list"
    assert "esper.integrations" in headings
    assert "esper.integrations.lightning" in re.sub("<.*?>", "", pages)
    assert "on_fit_start" not in pages, "what a framework calls is none of a user's business"


def test_readme_is_the_front_page_and_its_links_lead_into_the_site(site: Path) -> None:
    front = (site / "index.html").read_text(encoding="utf-8")
    assert 'href="guide/"' in front
    assert 'href="changelog/"' in front
    assert "docs/" not in re.sub(r"<code.*?</code>", "", front, flags=re.DOTALL)


def test_search_finds_code_by_the_names_in_it(site: Path) -> None:
    separator = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))["config"]["separator"]
    assert {"find_slots", "net", "0.5"} <= set(re.split(separator, "esper.find_slots(net, 0.5)"))
