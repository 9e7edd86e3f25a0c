"""Pages that stand by themselves, read back."""

from __future__ import annotations

from html.parser import HTMLParser


class Figures(HTMLParser):
    """The figures of a page with all their digits, by label, and everything that it would load or run."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.figures: dict[str, float] = {}
        self.loaded: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "data" and found.get("value"):
            self.figures[found["title"] or ""] = float(found["value"] or "")
        local = [value for name, value in attrs if name == "href" and not (value or "").startswith("#")]
        handlers = [name for name in found if name.startswith("on")]
        if tag in ("script", "link", "img", "iframe", "object", "embed", "base") or "src" in found or local or handlers:
            self.loaded.append(self.get_starttag_text() or "")
