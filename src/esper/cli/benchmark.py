"""`esper benchmark`: what Esper costs on this machine, as ratios from one run, and what has changed since another."""

from __future__ import annotations

import ast
import gc
import importlib.util
import json
import math
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from esper.cli.display import REDRAW_AFTER, duration
from esper.cli.flags import Parser
from esper.cli.main import EXIT_USAGE
from esper.cli.measuring import Row, Settings
from esper.cli.tables import print_rows
from esper.leyline.codec import from_plain, to_plain
from esper.leyline.config import Count
from esper.leyline.errors import ConfigError, EsperError, StateError, unknown
from esper.leyline.files import open_file, replace_file

PROJECT = Path(__file__).resolve().parents[3]
"""The project's folder, where this is a checkout of it."""

SMALLEST = 0.02
"""The smallest change that is marked, as a share: the same code differs by that from one process to the next, however narrow its spread."""

EXAMPLES = """\
examples:
  esper benchmark                               everything, in some minutes
  esper benchmark engines slots --quick         two of them, roughly
  esper benchmark --json before.json            then change something, and see what that did:
  esper benchmark --against before.json
  esper benchmark mine.py                       a file of your own with a function measure(settings)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """One benchmark before it is loaded."""

    name: str
    summary: str
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the times of a run depend on, and its ratios less."""

    cpu: str
    cores: Count
    gpu: str | None
    """What it was measured on; None for the processor."""

    def __str__(self) -> str:
        return f"{self.cpu}, {self.cores} cores" + (f", {self.gpu}" if self.gpu else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that one run of benchmarks tells; what its file holds."""

    format: Literal["esper benchmark 1"] = "esper benchmark 1"
    date: str
    quick: bool
    machine: Machine
    versions: dict[str, str]
    benchmarks: dict[str, tuple[Row, ...]]


def main(argv: list[str]) -> int:
    """Run the command with its own arguments."""
    arguments = _parser().parse_args(argv)
    if arguments.list:
        rows = [{"benchmark": each.name, "shows": each.summary} for each in find_benchmarks().values()]
        print_rows(rows, ("benchmark", "shows"), wrapped=["shows"])
        return 0
    chosen = _chosen(arguments.names)
    old = read_report(arguments.against) if arguments.against is not None else None
    target = arguments.json or Path(f"benchmark-{datetime.now():%Y-%m-%d-%H%M%S}.json")
    _check_target(target, arguments.against)
    began = time.monotonic()
    report = _run(chosen, arguments.quick, arguments.device)
    if report.benchmarks:
        _write(report, target)
        if old is not None:
            print()
            _print_changes(old, report, str(arguments.against))
        print(f"\nwrote {target} after {duration(time.monotonic() - began)}")
    return 0 if len(report.benchmarks) == len(chosen) else EXIT_USAGE


def parsers() -> dict[str, Parser]:
    """The parsers of this command, by the word that chooses among them."""
    return {"": _parser()}


def _parser() -> Parser:
    parser = Parser(
        prog="esper benchmark",
        usage="esper benchmark [NAME...] [OPTIONS]",
        description="Measure what Esper costs, in turns with what it is compared to: times are of the processor, ratios are what counts.",
        epilog=EXAMPLES,
        allow_abbrev=False,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which benchmarks, or files with one (default: all that --list shows)")
    parser.add_argument("--list", action="store_true", help="show which benchmarks there are, and run none")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and fewer rows")
    parser.add_argument("--device", default="cpu", metavar="cpu|cuda|cuda:N", help="where networks are trained (default: cpu)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures go (default: benchmark-DATE-TIME.json, here)")
    parser.add_argument("--against", type=Path, metavar="FILE", help="the figures of an earlier run, to show what changed since")
    return parser


# Finding benchmarks, without loading any


def find_benchmarks() -> dict[str, Benchmark]:
    """Every benchmark of the project, by name."""
    folder = PROJECT / "benchmarks"
    if not (PROJECT / "pyproject.toml").is_file() or not folder.is_dir():
        where = "they are in the folder benchmarks/ of Esper's source; use ./go esper benchmark there"
        raise ConfigError(f"the benchmarks are not part of the installed package: {where}")
    found = (read_benchmark(path) for path in sorted(folder.glob("*.py")))
    return {each.name: each for each in found if each is not None}


def read_benchmark(path: Path) -> Benchmark | None:
    """What a file says of its benchmark; None if it has no `measure(settings)`. Raises ConfigError if it cannot be read."""
    try:
        with open_file(path) as file:
            tree = ast.parse(file.read(), filename=str(path))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"{path} is not Python: {error}") from error
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "measure"]
    if not any([argument.arg for argument in node.args.args] == ["settings"] for node in functions):
        return None
    return Benchmark(name=path.stem, summary=(ast.get_docstring(tree) or "").partition("\n")[0], path=path)


def _chosen(names: Sequence[str]) -> list[Benchmark]:
    """The benchmarks that were asked for, each once; all of them if none was."""
    chosen: dict[str, Benchmark] = {}
    for name in names:
        if name.endswith(".py"):
            benchmark = read_benchmark(Path(name))
            if benchmark is None:
                raise ConfigError(f"{name} is no benchmark: it has no function measure(settings)")
            chosen[benchmark.name] = benchmark
        elif name not in (known := find_benchmarks()):
            raise unknown("benchmark", name, known)
        else:
            chosen[name] = known[name]
    return list(chosen.values()) if names else list(find_benchmarks().values())


# Running


def _run(chosen: Sequence[Benchmark], quick: bool, device: str) -> Report:
    """Run the benchmarks and print their tables. One that lacks a library or a compiler here costs the others nothing."""
    import torch  # here, and not above, for the sake of `--help`

    from esper.simic.runs.work import versions
    from esper.tolaria.training.device import device_named

    found = device_named(device)
    device = device if found.type == "cuda" else "cpu"
    gpu = torch.cuda.get_device_name(found) if found.type == "cuda" else None
    machine = Machine(cpu=_processor(), cores=os.cpu_count() or 1, gpu=gpu)
    torch.set_num_threads(1)  # hosts this small are slower with two
    results: dict[str, tuple[Row, ...]] = {}
    print(f"{len(chosen)} {'benchmark' if len(chosen) == 1 else 'benchmarks'} on {machine}{', quickly' if quick else ''}", flush=True)
    for number, benchmark in enumerate(chosen, start=1):
        print(f"\n{benchmark.name}: {benchmark.summary}", flush=True)
        try:
            with _progress(f"{number} of {len(chosen)}") as progress:
                results[benchmark.name] = _measure(benchmark, Settings(quick=quick, device=device, progress=progress))
        except EsperError as error:
            print(f"esper: {benchmark.name}: {error}", file=sys.stderr, flush=True)
        else:
            _print_table(results[benchmark.name])
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    return Report(date=now, quick=quick, machine=machine, versions=versions(), benchmarks=results)


def _measure(benchmark: Benchmark, settings: Settings) -> tuple[Row, ...]:
    """The rows of a benchmark, loaded from its file; what lies beside it can be imported, as when Python runs it by itself."""
    folder = str(benchmark.path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        spec = importlib.util.spec_from_file_location(f"esper_benchmark_{benchmark.name}", benchmark.path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
        gc.collect()
        gc.freeze()  # `in_turns` collects garbage before every turn, and there is none in torch
        rows = tuple(module.measure(settings))
    finally:
        sys.path.remove(folder)
    if not rows:
        raise ConfigError("it measured nothing")
    return rows


@contextmanager
def _progress(place: str) -> Iterator[Callable[[str], None]]:
    """A line that is redrawn in place on a terminal, and gone when the table comes; in a pipe nothing."""
    began, drawn = time.monotonic(), 0.0

    def draw(doing: str) -> None:
        nonlocal drawn
        if time.monotonic() >= drawn + REDRAW_AFTER:
            drawn = time.monotonic()
            line = f"{place}, {duration(drawn - began)}: {doing}"[: shutil.get_terminal_size().columns - 1]
            print(f"\r\033[K{line}", end="", flush=True)

    shown = sys.stdout.isatty()
    try:
        yield draw if shown else lambda doing: None
    finally:
        if shown:
            print("\r\033[K", end="", flush=True)


def _processor() -> str:
    """The name of the processor, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


# Files and tables


def read_report(path: Path) -> Report:
    """The figures of an earlier run. Raises ConfigError for a file that is not there, or not of this command."""
    try:
        with open_file(path) as file:
            return from_plain(Report, json.loads(file.read()))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    except StateError as error:
        raise ConfigError(f"{path} was not written by esper benchmark: {error}") from error


def _write(report: Report, target: Path) -> None:
    """Write the file, whole or not at all."""
    try:
        replace_file(target, json.dumps(to_plain(report), indent=1).encode() + b"\n")
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror}") from error


def _check_target(target: Path, against: Path | None) -> None:
    """Raise ConfigError for a file that could not be written, before minutes are spent on its content."""
    if against is not None and target.resolve() == against.resolve():
        raise ConfigError(f"{target} is what is compared with; name another file with --json")
    if os.path.isdir(target):  # pathlib raises for a name that is too long
        raise ConfigError(f"{target} is a folder; name a file with --json")
    if not os.access(target.parent, os.W_OK):
        raise ConfigError(f"{target} cannot be written; name a file in a folder of yours with --json")


def _print_table(rows: Sequence[Row]) -> None:
    cells = [
        {
            "what": row.what,
            "value": _figure(row.value),
            "unit": row.unit,
            "ratio": "" if row.ratio is None else _figure(row.ratio),
            "spread": _percent(row.spread),
            "against": row.against or "",
        }
        for row in rows
    ]
    print_rows(cells, tuple(cells[0]), wrapped=["what", "against"], right=["value", "ratio", "spread"])


def _print_changes(old: Report, new: Report, name: str) -> None:
    """What was measured both times: ratios and sizes. A time by itself says more about the machine's day than about the code."""
    if old.machine != new.machine:
        print(f"{name} was measured on another machine: {old.machine}")
    for what, version in new.versions.items():
        if old.versions.get(what) != version:
            print(f"{name} was measured with {what} {old.versions.get(what)}; this is {version}")
    before = {(benchmark, row.what, row.unit, row.against): row for benchmark, rows in old.benchmarks.items() for row in rows}
    cells = [
        {"benchmark": benchmark, **_change(before[key], row)}
        for benchmark, rows in new.benchmarks.items()
        for row in rows
        if (key := (benchmark, row.what, row.unit, row.against)) in before and (row.ratio is not None or row.spread is None)
    ]
    if not cells:
        print(f"nothing of this run is in {name} as well")
        return
    print_rows(cells, tuple(cells[0]), wrapped=["what"], right=["old", "new", "new/old", "spread"], section="benchmark")
    if old.quick or new.quick:
        print("a quick run has few rounds, and what it marks may be chance")
    marked = [cell["change"] for cell in cells if cell["change"]]
    print(f"{len(marked)} of {len(cells)} changed by more than the spread: {marked.count('better')} better, {marked.count('worse')} worse")


def _change(old: Row, new: Row) -> dict[str, str]:
    """A line of what changed: the ratio, or the size of what has none, marked where the spreads of both runs do not explain it."""
    before, after = (old.value, new.value) if old.ratio is None or new.ratio is None else (old.ratio, new.ratio)
    quotient = after / before if before else 1.0 if after == before else math.inf
    spread = max(SMALLEST, (old.spread or 0.0) + (new.spread or 0.0))
    better = (quotient > 1) == new.unit.endswith("/s")
    return {
        "what": new.what,
        "unit": new.unit if new.ratio is None else "ratio",
        "old": _figure(before),
        "new": _figure(after),
        "new/old": _figure(quotient),
        "spread": _percent(spread),
        "change": "" if abs(quotient - 1) <= spread else "better" if better else "worse",
    }


def _figure(value: float) -> str:
    """Three significant digits, as a person writes them, and at most four decimals: 1,234 or 12.3 or 0.0123."""
    if not value or not math.isfinite(value):
        return f"{value:.0f}"
    return f"{value:,.{min(4, max(0, 2 - math.floor(math.log10(value))))}f}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}%"
