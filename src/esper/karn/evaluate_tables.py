"""An evaluation in tables: a line for each figure, a column for each policy, in the words that both the command and the page use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from esper.karn.diagnostics.actions import ALL, PHASES
from esper.karn.diagnostics.lives import OUTCOMES, Success
from esper.karn.diagnostics.response import CONDITIONS
from esper.karn.report import Diagnosis, Report
from esper.leyline.actions import Head, Op
from esper.leyline.reports import GATE_BEFORE
from esper.simic.statistics import Interval

NONE = "-"
"""Where there is no figure."""

NOTES = {
    "outcome": "val accuracy, never test, and score, which is accuracy minus rent; means over hosts with 95 % intervals",
    "decisions": "% of those that left a choice: all (early, middle, late third of the budget); episodes of WAIT alone",
    "entropy": "of each head, 0 settled, 1 open: mean (early, middle, late); then least and largest",
    "time": "share of the budget at which a host's first seed is germinated; epochs that seeds live; acts in an episode",
    "values": "the critic against the returns that followed, in standard deviations of these",
    "response": "probability of an act, where there was a choice, and of GERMINATE, where it was legal",
    "seeds": "fossilised of created (share), and points of val accuracy that they bring; all, and by blueprint, slot and style",
    "reward": "of the step itself, by op: mean (decisions)",
    "life": "what was recorded, against the table of stages and the gates: passed / refused",
    "gradients": "median norm; % of tensors that vanish, explode",
    "chance": "between plays of the same host",
}
"""How to read each table."""

SHOWN_VIOLATIONS = 5
"""Of the rules of a seed's life, for each policy; the report for programs has them all."""

Say = Callable[[Diagnosis], str]


@dataclass(frozen=True, slots=True)
class Table:
    """Figures that belong together."""

    title: str
    note: str
    """How to read it."""
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    """What each figure is, and how it stands for each policy in turn."""


def tables(report: Report) -> list[Table]:
    """All of an evaluation; a table without a single figure is left out."""
    made = [
        _table(report, "outcome", _outcome()),
        _table(report, "decisions", _decisions()),
        _table(report, "entropy", _entropy(report)),
        _table(report, "time", _time()),
        _table(report, "values", _values()),
        _table(report, "response", _response()),
        _table(report, "seeds", _seeds(report)),
        _table(report, "reward", _reward()),
        _table(report, "life", _life()),
        _table(report, "gradients", _gradients(report)),
        _table(report, "chance", _chance() if report.draws > 1 else ()),
    ]
    return [table for table in made if any(cell != NONE for _, cells in table.rows for cell in cells)]


def flag_lines(report: Report) -> list[str]:
    """Every red flag in a sentence, by whom."""
    return [f"{diagnosis.name}: {flag.text}" for diagnosis in report.diagnoses for flag in diagnosis.flags]


def remark_lines(report: Report) -> list[str]:
    """What else has to be known: what does not apply, and why; other rules; memory that is nearly spent."""
    lines: list[str] = []
    missing: dict[tuple[str, str], list[str]] = {}
    for diagnosis in report.diagnoses:
        lines += [f"{diagnosis.name}: {remark}" for remark in diagnosis.remarks]
        lines += [f"{diagnosis.name}: {violation}" for violation in diagnosis.audit.violations[:SHOWN_VIOLATIONS]]
        for what, why in diagnosis.absent.items():
            missing.setdefault((what, why), []).append(diagnosis.name)
    return [*lines, *(f"no {what} of {', '.join(names)}: {why}" for (what, why), names in missing.items())]


def _table(report: Report, title: str, rows: Iterable[tuple[str, Say]]) -> Table:
    filled = [(label, tuple(say(diagnosis) for diagnosis in report.diagnoses)) for label, say in rows]
    return Table(title, NOTES[title], tuple((label, cells) for label, cells in filled if any(cell != NONE for cell in cells)))


# The rows of each


def _outcome() -> list[tuple[str, Say]]:
    return [
        ("score", lambda d: _interval(d.outcomes.score, ".1f")),
        ("accuracy", lambda d: _interval(d.outcomes.accuracy, ".1f")),
        ("without growth", lambda d: _number(d.outcomes.twin, ".1f")),
        ("last epoch, seeds on", lambda d: _number(d.outcomes.with_seeds, ".1f")),
        ("last epoch, seeds off", lambda d: _number(d.outcomes.without_seeds, ".1f")),
        ("size x", lambda d: _number(d.outcomes.growth, ".2f")),
        ("operations x", lambda d: _number(d.outcomes.operations, ".2f")),
        ("reward in an episode", lambda d: _number(d.outcomes.reward, "+.3f")),
        ("rollbacks", lambda d: str(d.outcomes.rollbacks)),
    ]


def _decisions() -> list[tuple[str, Say]]:
    def share(op: Op) -> Say:
        def say(d: Diagnosis) -> str:
            found = [_percent(d.actions.shares[phase].get(op.name)) for phase in (ALL, *PHASES)]
            return f"{found[0]} ({' '.join(found[1:])})" if d.actions.counts[op.name] else "0"

        return say

    return [
        ("decisions", lambda d: f"{d.actions.decisions:,}"),
        ("with a choice", lambda d: f"{d.actions.choices:,}"),
        *((op.name, share(op)) for op in Op),
        ("WAIT alone", lambda d: NONE if d.actions.waiting is None else f"{_percent(d.actions.waiting)} %"),
    ]


def _entropy(report: Report) -> list[tuple[str, Say]]:
    def mean(head: str) -> Say:
        def say(d: Diagnosis) -> str:
            if d.entropies is None or head not in d.entropies:
                return NONE
            phases = d.entropies[head].phases
            return f"{phases[ALL].mean:.2f} ({' '.join(f'{phases[phase].mean:.2f}' if phase in phases else NONE for phase in PHASES)})"

        return say

    def ends(head: str) -> Say:
        def say(d: Diagnosis) -> str:
            if d.entropies is None or head not in d.entropies:
                return NONE
            found = d.entropies[head].phases[ALL]
            return f"{found.low:.2f} to {found.high:.2f}, n {found.n}"

        return say

    heads = [head.value for head in Head if any(head.value in (d.entropies or {}) for d in report.diagnoses)]
    return [row for head in heads for row in ((head, mean(head)), ("", ends(head)))]


def _time() -> list[tuple[str, Say]]:
    def lifetime(outcome: str) -> Say:
        def say(d: Diagnosis) -> str:
            found = d.timing.lifetimes.get(outcome)
            return NONE if found is None else f"{found.mean:.1f} ({found.low:.0f} to {found.high:.0f}), n {found.n}"

        return say

    def acts(phase: str) -> Say:
        return lambda d: f"{sum(d.timing.acts[phase].values()):.2f}"

    def first(d: Diagnosis) -> str:
        found = d.timing.first
        return NONE if found is None else f"{found.mean:.2f} ({found.low:.2f} to {found.high:.2f})"

    return [
        ("first seed at", first),
        *((f"{outcome} after", lifetime(outcome)) for outcome in OUTCOMES),
        *((f"acts, {phase}", acts(phase)) for phase in PHASES),
    ]


def _values() -> list[tuple[str, Say]]:
    def figure(name: str, form: str) -> Say:
        return lambda d: NONE if d.calibration is None else format(getattr(d.calibration, name), form)

    return [
        ("correlation", figure("correlation", "+.2f")),
        ("mean error", figure("normalised_error", ".2f")),
        ("bias", figure("bias", "+.2f")),
        ("explained variance", figure("explained_variance", "+.2f")),
        ("  of its own targets", figure("target_explained_variance", "+.2f")),
    ]


def _response() -> list[tuple[str, Say]]:
    def act(condition: str) -> Say:
        return lambda d: _interval(d.responses[condition].act, ".2f")

    def germinate(condition: str) -> Say:
        return lambda d: _interval(d.responses[condition].germinate, ".2f")

    rows: list[tuple[str, Say]] = []
    for condition in CONDITIONS:
        rows += [(condition, act(condition)), ("  GERMINATE", germinate(condition))]
    return rows


def _seeds(report: Report) -> list[tuple[str, Say]]:
    def say(key: str, value: str) -> Say:
        return lambda d: _success(d.seeds[key].get(value))

    rows: list[tuple[str, Say]] = [("all", say(ALL, ALL))]
    for key in ("blueprint", "slot", "style"):
        values = sorted({value for d in report.diagnoses for value in d.seeds[key]})
        rows += [(value, say(key, value)) for value in values]
    return rows


def _success(found: Success | None) -> str:
    if found is None or not found.created or found.survival is None:
        return NONE
    brings = "" if found.contribution is None else f", {found.contribution:+.1f}"
    return f"{found.fossilized} of {found.created} ({_percent(found.survival)} %){brings}"


def _reward() -> list[tuple[str, Say]]:
    def earned(op: str) -> Say:
        return lambda d: NONE if op not in d.rewards else f"{d.rewards[op].mean:+.3f} ({d.rewards[op].n})"

    return [(op.name, earned(op.name)) for op in Op]


def _life() -> list[tuple[str, Say]]:
    def gate(name: str) -> Say:
        return lambda d: "{} / {}".format(*d.audit.gates[name])

    return [
        ("changes of stage", lambda d: str(d.audit.transitions)),
        ("violations", lambda d: str(len(d.audit.violations))),
        ("decisions refused", lambda d: str(d.audit.refused)),
        *((f"gate {name.value} to {stage.name}", gate(name.value)) for name, stage in GATE_BEFORE.items()),
    ]


def _gradients(report: Report) -> list[tuple[str, Say]]:
    def flow(name: str) -> Say:
        def say(d: Diagnosis) -> str:
            found = d.gradients.get(name)
            return NONE if found is None else f"{found.norm:.3g}; {_percent(found.vanishing)}, {_percent(found.exploding)}"

        return say

    names = list(dict.fromkeys(name for d in report.diagnoses for name in d.gradients))
    return [(name if name.islower() else f"seeds, {name}", flow(name)) for name in names]


def _chance() -> list[tuple[str, Say]]:
    return [
        ("other op at an epoch", lambda d: NONE if d.chance is None else f"{_percent(d.chance.disagreement)} %"),
        ("std of the score", lambda d: NONE if d.chance is None else f"{d.chance.score_std:.2f}"),
        ("  share of its variance", lambda d: NONE if d.chance is None or d.chance.score_share is None else f"{d.chance.score_share:.2f}"),
        ("std of seeds germinated", lambda d: NONE if d.chance is None else f"{d.chance.seeds_std:.2f}"),
    ]


# Numbers in words


def _number(value: float | None, form: str) -> str:
    return NONE if value is None else format(value, form)


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.0f}"


def _interval(found: Interval | None, form: str) -> str:
    if found is None:
        return NONE
    if found.low is None or found.high is None:
        return format(found.mean, form)
    return f"{found.mean:{form}} [{found.low:{form}}, {found.high:{form}}]"


def headline(report: Report) -> str:
    """What was evaluated on what, in a sentence."""
    last = report.first_seed + report.hosts - 1
    how = f"decisions drawn, {report.draws} plays of each host" if report.draws > 1 else "the likeliest decisions"
    return f"{report.hosts} hosts of {', '.join(report.tasks)} ({report.member}), seeds {report.first_seed} to {last}; {how}"


def memory_line(report: Report) -> str:
    """The peak of memory, and a warning when not much more would have fitted."""
    memory = report.memory
    parts = [f"{memory.process / 2**20:,.0f} MiB"]
    if memory.worker:
        parts.append(f"{memory.worker / 2**20:,.0f} MiB in the largest worker")
    if memory.gpu:
        parts.append(f"{memory.gpu / 2**20:,.0f} MiB on the GPU")
    near = memory.process + memory.worker > NEARLY_ALL * memory.machine
    return f"peak memory: {', '.join(parts)}" + ("; that is nearly all there is: play fewer hosts at a time" if near else "")


NEARLY_ALL = 0.8
"""Share of the machine's memory from which a warning is due."""


def labels(report: Report, longest: int) -> Sequence[str]:
    """What columns are called: the names, or letters where one of them is too long."""
    names = [diagnosis.name for diagnosis in report.diagnoses]
    if max(map(len, names)) <= longest:
        return names
    return [chr(ord("A") + number) if number < 26 else f"#{number + 1}" for number in range(len(names))]
