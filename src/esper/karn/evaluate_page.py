"""An evaluation as a page: the tables, and what is better seen than read."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import nan

from esper.karn.charts import Chart, Series, bars, lines
from esper.karn.diagnostics.actions import ALL, PHASES
from esper.karn.diagnostics.lives import BINS
from esper.karn.diagnostics.response import CONDITIONS
from esper.karn.evaluate_tables import flag_lines, headline, memory_line, remark_lines, tables
from esper.karn.page import Section, charts, page, paragraph, table
from esper.karn.report import Diagnosis, Report
from esper.leyline.actions import Head, Op


def evaluation_page(report: Report, command: str = "") -> str:
    """The whole page. command: what was typed, so that it can be done again."""
    drawn = {
        "outcome": [_outcome(report.diagnoses)],
        "decisions": [_actions(report.diagnoses), _by_phase(report.diagnoses)],
        "entropy": [*_entropy(report.diagnoses), *_courses(report.diagnoses)],
        "time": [_germinations(report.diagnoses)],
        "values": _reliability(report.diagnoses),
        "response": [_response(report.diagnoses)],
    }
    names = [diagnosis.name for diagnosis in report.diagnoses]
    sections = [Section("Red flags", _flags(report)), Section("On what", _about(report, command))]
    for each in tables(report):
        rows = [{"": label, **dict(zip(names, cells, strict=True))} for label, cells in each.rows]
        sections.append(Section(each.title.capitalize(), paragraph(each.note) + charts(*drawn.get(each.title, ())) + table(rows)))
    sections.append(Section("Entropy by phase", table(_entropy_rows(report.diagnoses))))
    return page(f"Evaluation: {', '.join(names)}", sections)


def _flags(report: Report) -> str:
    found = flag_lines(report)
    return "".join(f'<p class="flag">{escape(line)}</p>' for line in found) or paragraph("none")


def _about(report: Report, command: str) -> str:
    shown = f"<pre>{escape(command)}</pre>" if command else ""
    return shown + "".join(paragraph(line) for line in (headline(report), memory_line(report), *remark_lines(report)))


def _outcome(found: Sequence[Diagnosis]) -> Chart:
    scores = [each.outcomes.score for each in found]
    low, high = [nan if each.low is None else each.low for each in scores], [nan if each.high is None else each.high for each in scores]
    series = Series("score", range(len(found)), [each.mean for each in scores], low, high)
    return bars([each.name for each in found], [series], title="Score, with 95 % interval", y_label="val accuracy minus rent")


def _actions(found: Sequence[Diagnosis]) -> Chart:
    series = [Series(d.name, range(len(Op)), [100 * d.actions.shares[ALL].get(op.name, nan) for op in Op]) for d in found]
    return bars([op.name for op in Op], series, title="Decisions where there was a choice", y_label="%")


def _by_phase(found: Sequence[Diagnosis]) -> Chart:
    series = [Series(d.name, range(len(PHASES)), [sum(d.timing.acts[phase].values()) for phase in PHASES]) for d in found]
    return bars(PHASES, series, title="Acts in an episode, by third of the budget", y_label="acts")


def _entropy(found: Sequence[Diagnosis]) -> list[Chart]:
    known = [(d.name, d.entropies) for d in found if d.entropies]
    heads = [head.value for head in Head if any(head.value in entropies for _, entropies in known)]
    series = [
        Series(name, range(len(heads)), [entropies[head].phases[ALL].mean if head in entropies else nan for head in heads])
        for name, entropies in known
    ]
    return [bars(heads, series, title="Normalised entropy of each head", y_label="0 settled, 1 open")] if series else []


def _courses(found: Sequence[Diagnosis]) -> list[Chart]:
    """Entropy over the rounds of training, of the longest course that each run left."""
    longest: dict[tuple[float, ...], Diagnosis] = {}
    for d in (d for d in found if d.course):
        # Checkpoints of one run share their first rounds: the same line would be drawn again.
        longest[tuple(d.course[0].values())] = max(d, longest.get(tuple(d.course[0].values()), d), key=lambda each: len(each.course))
    drawn = []
    for d in longest.values():
        heads = [head.value for head in Head if any(head.value in each for each in d.course)]
        rounds = range(1, len(d.course) + 1)
        series = [Series(head, rounds, [each.get(head, nan) for each in d.course]) for head in heads]
        drawn.append(lines(series, title=f"Entropy while it learned: {d.name}", x_label="round", y_label="normalised entropy"))
    return drawn


def _germinations(found: Sequence[Diagnosis]) -> Chart:
    names = [f"{number / BINS:.1f}" for number in range(1, BINS + 1)]
    series = [Series(d.name, range(BINS), d.timing.germinations) for d in found]
    return bars(names, series, title="Seeds germinated, by share of the budget spent", y_label="seeds in an episode")


def _reliability(found: Sequence[Diagnosis]) -> list[Chart]:
    series = [
        Series(d.name, [value for value, _ in d.calibration.curve], [each for _, each in d.calibration.curve])
        for d in found
        if d.calibration is not None
    ]
    ends = [value for each in series for value in each.x]
    right = [Series("a critic that is right", [min(ends), max(ends)], [min(ends), max(ends)])] if ends else []
    title = "Reliability of the critic, by tenths of the steps"
    return [lines([*series, *right], title=title, x_label="value", y_label="return that followed")] if series else []


def _response(found: Sequence[Diagnosis]) -> Chart:
    names = list(CONDITIONS)
    series = []
    for d in found:
        acts = [d.responses[name].act for name in names]
        mean = [nan if each is None else each.mean for each in acts]
        low = [nan if each is None or each.low is None else each.low for each in acts]
        high = [nan if each is None or each.high is None else each.high for each in acts]
        series.append(Series(d.name, range(len(names)), mean, low, high))
    return bars(names, series, title="Probability of an act, with 95 % interval", y_label="probability")


def _entropy_rows(found: Sequence[Diagnosis]) -> list[dict[str, str | int | float | bool | None]]:
    return [
        {"policy": d.name, "head": head, "phase": phase, "steps": each.n, "mean": each.mean, "least": each.low, "largest": each.high}
        for d in found
        for head, entropy in (d.entropies or {}).items()
        for phase, each in entropy.phases.items()
    ]
