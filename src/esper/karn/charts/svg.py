"""From a figure to an SVG element for a page: colours that follow day and night, ids that no other chart has, and no more than is seen.

matplotlib writes a file of its own; here it is read as XML and written again, so that no text in it is ever taken for markup.
"""

from __future__ import annotations

import hashlib
import re
from io import BytesIO
from xml.etree import ElementTree

from esper.karn.charts.canvas import Canvas, clean
from esper.karn.charts.style import PAINT

SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
_VARIABLES = {pair[0]: f"var(--{name},{pair[0]})" for name, pair in PAINT.items()}
_PLACES = ("d", "x", "y", "width", "height", "points", "transform")


def to_svg(canvas: Canvas, title: str) -> str:
    """The element with everything that is on the canvas."""
    file = BytesIO()
    canvas.figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    root = ElementTree.fromstring(file.getvalue())
    prefix = f"c{hashlib.sha256(file.getvalue()).hexdigest()[:10]}-"
    kept = _referred(root)
    for element in root.iter():
        _rewrite(element, prefix, kept, canvas.tips)
    for parent in root.iter():
        for child in [child for child in parent if _idle(child)]:
            parent.remove(child)
    content = "".join(ElementTree.tostring(child, encoding="unicode") for child in root)
    size = f'viewBox="0 0 {canvas.width:g} {canvas.height:g}" width="{canvas.width:g}" height="{canvas.height:g}"'
    label = ElementTree.tostring(ElementTree.Element("g", {"aria-label": clean(title)}), encoding="unicode")
    label = label.removeprefix("<g ").removesuffix(" />")
    return f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" {size} role="img" {label}>{content}</svg>'


def _referred(root: ElementTree.Element) -> set[str]:
    """The ids that something refers to."""
    values = [value for element in root.iter() for value in element.attrib.values()]
    return {found for value in values for found in re.findall(r"^#([\w.-]+)$|url\(#([\w.-]+)\)", value) for found in found if found}


def _rewrite(element: ElementTree.Element, prefix: str, kept: set[str], tips: dict[str, str]) -> None:
    element.tag = element.tag.removeprefix(SVG)
    for blank in ("text", "tail"):
        if not (getattr(element, blank) or "").strip():
            setattr(element, blank, None)
    attributes = {("href" if name == LINK else name): value for name, value in element.attrib.items()}
    about = tips.get(attributes.get("id", ""))
    if about is not None:
        attributes["data-tip"] = ""
        shown = ElementTree.Element("title")
        shown.text = about
        element.insert(0, shown)
    if "id" in attributes:
        if attributes["id"] in kept:
            attributes["id"] = prefix + attributes["id"]
        else:
            del attributes["id"]
    if "href" in attributes:
        attributes["href"] = f"#{prefix}{attributes['href'][1:]}"
    if "clip-path" in attributes:
        attributes["clip-path"] = attributes["clip-path"].replace("#", f"#{prefix}")
    if "fill" in attributes:  # of a hatch
        attributes["style"] = f"fill:{attributes.pop('fill')}"
    if "style" in attributes:
        attributes["style"] = _style(attributes["style"], prefix)
    for name in _PLACES:
        if name in attributes:
            attributes[name] = _shorter(attributes[name])
    if re.fullmatch(r"rotate\(-?0 [^)]*\)", attributes.get("transform", "")):
        del attributes["transform"]
    element.attrib.clear()
    element.attrib.update(attributes)


def _style(style: str, prefix: str) -> str:
    """Colours by their names, the page's font, and ids with the prefix."""
    parts = [part.strip() for part in style.split(";") if part.strip()]
    named = [part for part in parts if not part.startswith(("font-family", "stroke-linejoin", "stroke-linecap: butt"))]
    text = ";".join(named).replace(": ", ":").replace("url(#", f"url(#{prefix}")
    text = re.sub(r"#[0-9a-f]{6}\b", lambda found: _VARIABLES.get(found[0], found[0]), text)
    return text.removesuffix(";")


def _shorter(places: str) -> str:
    """Coordinates with as many digits as can be seen."""
    rounded = re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), places)
    return re.sub(r"\s+", " ", re.sub(r"\b-0\b", "0", rounded)).strip()


def _idle(element: ElementTree.Element) -> bool:
    """Whether an element shows nothing: what matplotlib tells about itself, and frames without colour."""
    if element.tag == "defs":
        return all(child.tag == "style" for child in element)
    return element.tag.endswith("metadata") or (element.tag == "path" and element.get("style") == "fill:none")
