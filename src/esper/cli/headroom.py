"""`esper headroom`: what there is to win on a family of hosts, before anything is taught: plans, searched, and chosen by the host."""

from __future__ import annotations

from typing import Any

from esper.cli.files import check_files
from esper.cli.flags import Parser, add_flags, changes
from esper.cli.results import WIDTH, join, say
from esper.cli.tables import Row, print_rows
from esper.cli.watching import RunCommand, asks_to_resume
from esper.leyline.config import load, replace_fields
from esper.simic.statistics import bounds

SHOWN_PLANS = 12
"""The best plans, which are shown; all are in the summary."""
ENOUGH = 1.0
"""Points of adaptivity from which on a policy has something to learn."""

EXAMPLES = """\
examples:
  esper headroom                                  the family of digits hosts; half an hour on two cores
  esper headroom --task fashion --device cuda --html headroom.html
  esper headroom --hosts 12 --searches 0          a first look
  esper headroom --resume runs/digits-headroom-001

The best single plan is written to plan.toml in the run folder: esper compare --plan FILE plays it as the arm `fixed`, --searched TASK=RUN
those of several searches as the arm `searched`, each on its task."""


# What came out


def print_headroom(summary: dict[str, Any]) -> None:
    """All of it, for a terminal or a log."""
    print()
    for sentence in verdict(summary):
        say(sentence)
    for title, rows in tables(summary).items():
        print()
        say(title)
        print_rows(rows, tuple(rows[0]), wrapped=["plan", "best plan"], width=WIDTH)
    print()
    print(f"best plan: {summary['run']}/plan.toml")
    print(f"run folder: {summary['run']}")


def verdict(summary: dict[str, Any]) -> list[str]:
    """What was found, in sentences that the figures bear out."""
    best, found, again = summary["best"], summary["adaptivity"], summary["repetitions"]
    hosts = f"{summary['hosts']} hosts of {join(summary['task'])}, {summary['episodes']} episodes of {len(summary['plans'])} plans"
    single = f"{best['score']['mean']:.2f} {bounds(best['score']['low'], best['score']['high'], '.2f')}"
    lines = [
        f"{hosts}; score is val accuracy of the harvested network in points, minus rent",
        f"best single plan: {best['described']}, {single} on hosts that it was not chosen by",
        f"a plan chosen for each host scores {_gain(found['before'])} more by what is known before it trains, {_gain(found['during'])} "
        f"with what its first epochs show; in hindsight it would be {found['hindsight']:+.2f}, luck included",
    ]
    for other in summary["beside"]:
        score, against = other["score"], other["against_best"]
        lines.append(
            f"{other['name']} scores {score['mean']:.2f} {bounds(score['low'], score['high'], '.2f')} on these hosts, {_gain(against)} "
            f"against that plan; choosing between it and all plans by the host scores {_gain(other['choosing'])} more than the best of them"
        )
    if again["std"] is not None:
        lines.append(f"the same plan on the same kind of host, born anew, differs by a standard deviation of {again['std']:.2f} points")
    needed = f"a difference of one point takes {found['hosts_needed_for_a_point']} hosts to see"
    if found["during"]["low"] > 0 and found["during"]["mean"] >= ENOUGH:
        lines.append(f"there is something to learn: {found['during']['mean']:.2f} points, which {found['hosts_needed']} hosts would show")
    elif found["during"]["low"] > 0:
        lines.append(f"there is a little to learn, less than a point; {found['hosts_needed']} hosts would show it")
    else:
        lines.append(f"nothing is to be won here by deciding for each host, as far as {summary['hosts']} hosts can tell; {needed}")
    return lines


def _gain(found: dict[str, Any]) -> str:
    return f"{found['mean']:+.2f} {bounds(found['low'], found['high'])}"


def tables(summary: dict[str, Any]) -> dict[str, list[Row]]:
    """The best plans, and the best plan of each kind of host."""
    plans = sorted(summary["plans"], key=lambda plan: -plan["score"])
    wait = summary["plans"][0]
    shown = plans[:SHOWN_PLANS] + ([] if wait in plans[:SHOWN_PLANS] else [wait])
    rows: list[Row] = [
        {
            "plan": plan["described"],
            "score": plan["score"],
            "against wait [95 %]": _gain(plan["against_wait"]),
            "val": plan["accuracy"],
            "size x": plan["growth"],
            "operations x": plan["operations"],
        }
        for plan in shown
    ]
    kinds: list[Row] = [
        {"of hosts": f"{kind['field']} {kind['value']}", "hosts": kind["hosts"], "best plan": kind["best"], "score": kind["score"]}
        | {"ahead": kind["ahead"]}
        for kind in summary["kinds"]
    ]
    found = {f"the best of {len(plans)} plans; operations of training as multiples of those without growth": rows}
    if kinds:
        found["the best plan of each kind of host, in hindsight, and how far it is ahead of the best single one there"] = kinds
    return found


def make_page(summary: dict[str, Any]) -> str:
    """A page that stands by itself: the verdict, the value of adaptivity as a plot, the front of plans, and the tables."""
    from esper.karn.charts import Series, bars, points
    from esper.karn.page import Section, charts, page, paragraph, table

    found = summary["adaptivity"]
    known = ["known before", "and first epochs", "hindsight"]
    gains = [found["before"]["mean"], found["during"]["mean"], found["hindsight"]]
    ends: dict[str, Any] = {side: [found["before"][side], found["during"][side], found["hindsight"]] for side in ("low", "high")}
    adaptive = bars(
        known,
        [Series("points over the best single plan", [0, 1, 2], gains, **ends)],
        title="What choosing by the host is worth",
        y_label="points",
    )
    plans = summary["plans"]
    series = [Series("plans", [plan["growth"] for plan in plans], [plan["accuracy"] for plan in plans], labels=_named(plans))]
    front = points(
        series,
        title="Every plan: accuracy against size",
        x_label="parameters, times the host's",
        y_label="val accuracy, points",
        log_x=True,
    )
    sections = [
        Section("What was found", "".join(paragraph(text) for text in [*verdict(summary), f"made by: {summary['command']}"])),
        Section("Plots", charts(adaptive, front)),
    ]
    sections += [Section(f"{title[0].upper()}{title[1:]}", table(rows)) for title, rows in tables(summary).items()]
    return page("Headroom on " + join(summary["task"]), sections)


def _named(plans: list[dict[str, Any]]) -> list[str]:
    """A word beside the best few plans, and beside none of the others."""
    best = sorted(range(len(plans)), key=lambda plan: -plans[plan]["score"])[:4]
    return [plan["described"] if number in best or number == 0 else "" for number, plan in enumerate(plans)]


COMMAND = RunCommand("headroom", "search", print_headroom, make_page, figures="the scores of all plans on all hosts and all figures")


def main(argv: list[str]) -> int:
    """Run the command with its own arguments."""
    if asks_to_resume(argv):
        return COMMAND.resume(argv)
    from esper.simic.runs.headroom_config import HeadroomConfig

    arguments = _parser(everything="--help-all" in argv).parse_args(argv)
    check_files(arguments)
    config = load(HeadroomConfig, arguments.config) if arguments.config is not None else HeadroomConfig()
    return COMMAND.start(replace_fields(config, changes(HeadroomConfig, arguments), source="esper headroom"), arguments, argv)


def parsers() -> dict[str, Parser]:
    """The parsers of this command, by the word that chooses among them."""
    return {"": _parser(everything=False), "--resume": COMMAND.resume_parser()}


def _parser(everything: bool) -> Parser:
    from esper.simic.runs.headroom_config import HeadroomConfig

    parser = COMMAND.parser(
        "esper headroom [OPTIONS]\n       esper headroom --resume RUN",
        "Look for what could be won by growing, and by deciding for each host: many plans on the same hosts, cross-fitted.",
        EXAMPLES,
    )
    add_flags(parser, HeadroomConfig, everything=everything)
    return parser
