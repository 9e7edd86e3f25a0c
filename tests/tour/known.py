"""What is known not to work with a network, and why: by network, then by step."""

from __future__ import annotations

KNOWN: dict[str, dict[str, str]] = {}
