"""The page on architecture names what exists: every path, class, method, event and package on it."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

from esper.leyline.events import EVENT_TYPES

PROJECT = Path(__file__).resolve().parent.parent
PACKAGE = PROJECT / "src/esper"
TEXT = (PROJECT / "docs/architecture.md").read_text(encoding="utf-8")
SPANS = re.findall(r"`([^`\n]+)`", TEXT)
DRAWING = max(re.findall(r"```\n(.*?)```", TEXT, re.DOTALL), key=len)


def classes() -> dict[str, set[str]]:
    """Every class of the package by name, with what it defines: methods, fields, attributes that are set in methods."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                members = found.setdefault(node.name, set())
                members |= {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
                members |= {each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)}
    return found


CLASSES = classes()
PATHS = sorted({span for span in SPANS if re.fullmatch(r"[\w./-]+(\.py|/)", span)})
NAMED = sorted({span for span in SPANS if re.fullmatch(r"[A-Z]\w*[a-z]\w*", span)})
METHODS = sorted(set(re.findall(r"\b([A-Z]\w+)\.(\w+)", DRAWING)) | set(re.findall(r"`([A-Z]\w+)\.(\w+)`", TEXT)))


def test_the_page_is_read_as_it_is_meant():
    assert len(PATHS) > 40
    assert len(NAMED) > 40
    assert len(METHODS) > 20


def test_every_path_exists():
    assert [path for path in PATHS if not (PACKAGE / path).exists()] == []


def test_every_class_exists():
    assert [name for name in NAMED if name not in CLASSES] == []


def test_every_method_exists():
    assert [f"{name}.{method}" for name, method in METHODS if method not in CLASSES.get(name, set())] == []


def test_classes_alone_in_the_drawing_exist():
    words = set(re.findall(r"\b(?:[A-Z][a-z]+){2,}\b", DRAWING))
    assert len(words) > 10
    assert words <= set(CLASSES), words - set(CLASSES)


def test_classes_are_where_the_table_says():
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| ((?:`[\w/.]+`(?:, )?)+) \|", TEXT, re.MULTILINE)
    assert len(rows) > 20
    for names, places in rows:
        sources = "".join((PACKAGE / place).read_text(encoding="utf-8") for place in re.findall(r"`([^`]+)`", places))
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"^class {name}\b", sources, re.MULTILINE), (name, places)


def test_every_package_and_room_is_on_the_page():
    rooms = [path.parent for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE]
    for room in rooms:
        name = room.relative_to(PACKAGE).as_posix()
        assert re.search(rf"\*\*{name}\*\*|`{name}/`|^{name}\s", TEXT, re.MULTILINE), name


def test_the_order_is_the_contract():
    contracts = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    (packages,) = (contract for contract in contracts if contract.get("containers") == ["esper"])
    drawn = re.findall(r"```\n(.*?)```", TEXT, re.DOTALL)[0]
    order = [line.split()[: len(layer.split(" | "))] for line, layer in zip(drawn.splitlines(), packages["layers"], strict=True)]
    assert [" | ".join(names) for names in order] == packages["layers"]


def test_the_table_has_every_event():
    kinds = re.findall(r"^\| `([a-z_]+)` \|", TEXT, re.MULTILINE)
    assert sorted(kinds) == sorted(EVENT_TYPES)
