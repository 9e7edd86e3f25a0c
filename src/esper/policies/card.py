"""Cards: what is told about a policy that ships, in Markdown under headings that are always the same."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from esper.leyline.errors import PolicyError

HEADINGS = ("What it is", "Trained on", "For how long and at what cost", "Against every arm", "Limits", "Licence")
"""The sections of a card, in this order; its title is the exact name of the policy."""


@dataclass(frozen=True, slots=True)
class Card:
    """What is told about a policy."""

    text: str
    """All of it, in Markdown."""
    sections: dict[str, str]
    """What stands under each heading."""

    @property
    def summary(self) -> str:
        """The first sentence of what it is."""
        return re.split(r"(?<=[.!?]) ", " ".join(self.sections["What it is"].split()), maxsplit=1)[0]

    @property
    def arms(self) -> list[str]:
        """Whom it was compared with: the first cell of each row of the table."""
        cells = re.findall(r"^\| *`?([^|`]+?)`? *\|", self.sections["Against every arm"], re.MULTILINE)
        return [cell for cell in cells[1:] if set(cell) - set(":- ")]


def read_card(policy: Path) -> Card:
    """The card beside a policy's file. Raises PolicyError where there is none, or where a heading is missing, empty or out of order."""
    path = policy.with_suffix(".md")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(f"the card of {policy.stem} cannot be read from {path}: {error}") from error
    title, *parts = re.split(r"^## +", text, flags=re.MULTILINE)
    if title.strip() != f"# {policy.stem}":
        raise PolicyError(f"{path} begins with {title.strip()!r}; expected the title '# {policy.stem}' and then sections")
    sections = {heading.strip(): body.strip() for heading, _, body in (part.partition("\n") for part in parts)}
    if tuple(sections) != HEADINGS or not all(sections.values()):
        raise PolicyError(f"{path} has the sections {', '.join(sections) or 'none'}; expected, each with a text: {', '.join(HEADINGS)}")
    return Card(text, sections)
