"""A page that stands by itself: one HTML file with tables and charts, which loads nothing and runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from esper.karn.charts.chart import Chart
from esper.karn.charts.style import STYLE

Cell = str | int | float | bool | None
GENERATOR = '<meta name="generator" content="Esper">'
"""By which a page is known as one of ours."""

LOOK = """\
:root{color-scheme:light dark;--panel:#f5f6f7}
@media (prefers-color-scheme:dark){:root{--panel:#202327}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page);max-width:68rem;margin:2rem auto;padding:0 1rem}
body.wide{max-width:110rem}
h1{font-size:1.5rem} h2{font-size:1.15rem;margin-top:2.2rem;border-bottom:1px solid var(--grid)}
p{max-width:48rem} .scroll{overflow-x:auto} .faint{color:var(--faint)}
table{border-collapse:collapse;margin:.6rem 0;font-variant-numeric:tabular-nums}
th,td{padding:.2rem .8rem;text-align:left;border-bottom:1px solid var(--grid);vertical-align:top}
th{color:var(--faint);font-weight:600} td.number,th.number{text-align:right}
.flag{border-left:4px solid var(--series-1);background:var(--panel);padding:.4rem .8rem;margin:.4rem 0}
.charts{display:flex;flex-wrap:wrap;gap:1rem;align-items:flex-start} .charts>svg{flex:1 1 26rem;max-width:40rem}
.charts figure{flex:1 1 20rem;min-width:0;max-width:40rem;margin:0} figcaption{color:var(--faint);font-weight:600}
.figures{display:flex;flex-wrap:wrap;gap:.8rem;margin:.8rem 0}
.figure{background:var(--panel);padding:.6rem .9rem;border-radius:.4rem;flex:1 1 11rem;max-width:20rem}
.figure b{display:block;font-size:1.5rem;font-variant-numeric:tabular-nums} .figure small{display:block;color:var(--faint)}
@media (max-width:40rem){.charts{overflow-x:auto} .charts svg.chart{max-width:none;min-width:27rem}}
pre{background:var(--panel);padding:.6rem .8rem;overflow-x:auto}"""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page: its heading, and what stands under it, as HTML. Whoever makes HTML of text escapes it."""

    title: str
    html: str


def page(title: str, sections: Sequence[Section], *, wide: bool = False) -> str:
    """The whole file, light or dark as whoever reads it prefers. wide: for things that stand side by side."""
    body = "\n".join(f"<section><h2>{escape(each.title)}</h2>\n{each.html}\n</section>" for each in sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width,initial-scale=1">\n{GENERATOR}\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>\n{STYLE}\n{LOOK}\n</style></head>\n"
        f"<body{' class=wide' if wide else ''}><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def table(rows: Sequence[Mapping[str, Cell]]) -> str:
    """Rows as an HTML table, its columns those of the first row: whole numbers with thousands separated, others with two decimals."""
    if not rows:
        return '<p class="faint">nothing to show</p>'
    columns = list(rows[0])
    numeric = {name for name in columns if all(row[name] is None or isinstance(row[name], int | float) for row in rows)}

    def cells(tag: str, texts: Mapping[str, str]) -> str:
        return "".join(f"<{tag}{' class=number' if name in numeric else ''}>{escape(texts[name])}</{tag}>" for name in columns)

    head = cells("th", {name: name for name in columns})
    body = "\n".join(f"<tr>{cells('td', {name: _text(row[name]) for name in columns})}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def paragraph(text: str) -> str:
    """Plain text as a paragraph."""
    return f"<p>{escape(text)}</p>"


def charts(*shown: Chart) -> str:
    """Charts beside each other, as many as there is room for."""
    return f'<div class="charts">{"".join(each.svg() for each in shown)}</div>' if shown else ""


def _text(value: Cell) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{round(value, 2) + 0.0:.2f}"  # no -0.00
