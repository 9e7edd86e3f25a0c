"""The runs in a folder."""

from __future__ import annotations

from os.path import isdir
from pathlib import Path
from typing import Any

from esper.karn.record import Record
from esper.karn.views.overview import overview
from esper.leyline.errors import EsperError, RunError, unknown
from esper.tolaria.storage.runs import POINTS, list_runs


class Runs:
    """A folder of runs, or one run, with the points of every sweep; each is read once, and then read on.

    Keys are paths below the folder: `digits-ppo-001`, `digits-ppo-sweep-001/points/002`. Raises RunError where there is no folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.records: dict[str, Record] = {}
        """By key, the oldest first."""
        self.problems: list[str] = []
        """A sentence for each run that cannot be read."""
        if not isdir(self.folder):  # pathlib raises for a name that is too long
            raise RunError(f"there is no folder {self.folder}; runs are made by esper train")
        self.refresh()

    @property
    def single(self) -> bool:
        """Whether the folder is a run itself."""
        return (self.folder / "run.json").exists()

    def refresh(self) -> None:
        """Look for runs that came or went. Those that stay are not read on: that is for whoever shows them."""
        self.problems = []
        found: dict[str, Path] = {}
        if self.single:
            found[self.folder.resolve().name] = self.folder
        else:
            found |= self._listed(self.folder)
        for key, path in list(found.items()):
            if (path / POINTS).is_dir():
                found |= {f"{key}/{POINTS}/{name}": point for name, point in self._listed(path / POINTS).items()}
        kept: dict[str, Record] = {}
        for key, path in found.items():
            try:
                kept[key] = self.records.get(key) or Record(path)
            except EsperError as error:
                self.problems.append(str(error))
        self.records = kept

    def _listed(self, folder: Path) -> dict[str, Path]:
        runs, problems = list_runs(folder)
        self.problems += problems
        return {run.path.name: run.path for run in runs}

    def find(self, key: str) -> Record:
        """The run of that key. Raises UnknownNameError where there is none: a key is looked up, never a path."""
        if key not in self.records:
            raise unknown("run", key, self.records)
        return self.records[key]


def runs(folder: Path | Runs) -> dict[str, Any]:
    """The runs in a folder at a glance, each as in `overview` but with the number of its flags: {"runs", "problems"}."""
    known = folder if isinstance(folder, Runs) else Runs(folder)
    known.refresh()
    rows, problems = [], list(known.problems)
    for key, record in known.records.items():
        try:
            record.refresh()
            found = overview(record, key)
            rows.append({**found, "flags": len(found["flags"])})
        except EsperError as error:
            problems.append(str(error))
    return {"runs": rows, "problems": problems}
