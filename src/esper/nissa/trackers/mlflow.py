"""MLflow: a run in the store that MLFLOW_TRACKING_URI names, or else in a database of its own in the run's folder `mlflow`."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from esper.nissa.scalars import Point
from esper.nissa.trackers.tracker import Ledger, Tracked

T = TypeVar("T")
LOCAL = "local"
"""How the store in the run folder is written down, so that a folder can be moved."""
MOST_PARAMETERS, MOST_METRICS = 100, 1000
"""That one request of MLflow takes."""
LONGEST_VALUE = 6000
"""Characters of a parameter that MLflow takes."""
ARTIFACTS = ("config.toml", "summary.json", "policy.safetensors")
"""Files of a run folder that MLflow gets at the end, as far as they are there."""


class MLflow:
    """Parameters, metrics, tags and files of one run; it goes on in the same run of MLflow."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = os.environ.get("MLFLOW_TRACKING_URI", "")
        """Empty: the database in the run folder."""
        self.uri = self.store or f"sqlite:///{(folder / 'mlflow').resolve()}/mlflow.db"
        self.hint = f"see it with: mlflow ui --backend-store-uri {self.uri}"
        self._ledger = Ledger(folder / "mlflow" / "esper.json")
        self._client: MlflowClient | None = None
        self._waiting: list[Metric] = []
        self._remarks: list[str] = []
        self._unit = ""

    def begin(self, tracked: Tracked) -> None:
        """Start MLflow's run, or go on with it."""
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it tells at length how it makes its tables
        self._ledger, self._unit = Ledger.read(self._ledger.path), tracked.unit
        (self.folder / "mlflow").mkdir(exist_ok=True)
        client = self._client = MlflowClient(tracking_uri=self.uri)
        if self._ledger.run and self._ledger.store == (self.store or LOCAL):
            client.update_run(self._ledger.run, status="RUNNING")
            return
        run = client.create_run(self._experiment(client), run_name=self.folder.name)
        self._ledger = Ledger(self._ledger.path, run.info.run_id, self.store or LOCAL)
        self._ledger.save()
        for some in _chunks([Param(key, str(value)[:LONGEST_VALUE]) for key, value in tracked.config.items()], MOST_PARAMETERS):
            client.log_batch(self._ledger.run, params=some)
        about = {"command": tracked.run.command, **{f"version.{name}": version for name, version in tracked.run.versions.items()}}
        client.log_batch(self._ledger.run, tags=[RunTag(f"esper.{key}", value) for key, value in about.items()])

    def log(self, point: Point, time: float) -> None:
        """Metrics by their names; they wait for `flush`, because each request is a transaction."""
        stamp = round(1000 * time)
        self._waiting += [Metric(name, value, stamp, point.step) for name, value in self._ledger.new(point).items()]

    def remark(self, step: int, text: str, time: float, *, urgent: bool) -> None:
        """A line of remarks.txt, which MLflow gets at the end."""
        self._remarks.append(f"{self._unit} {step}: {text}\n")

    def flush(self) -> None:
        """Hand over what waits, and remember that."""
        if self._client is None or not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for some in _chunks(waiting, MOST_METRICS):
            self._client.log_batch(self._ledger.run, metrics=some)
        self._ledger.save()

    def end(self, finished: bool) -> None:
        """Hand over the files, and end MLflow's run."""
        if self._client is None:
            return
        self.flush()
        for name in ARTIFACTS:
            if (self.folder / name).exists():
                self._client.log_artifact(self._ledger.run, str(self.folder / name))
        if self._remarks:
            self._client.log_text(self._ledger.run, "".join(self._remarks), "remarks.txt")
        self._client.set_terminated(self._ledger.run, status="FINISHED" if finished else "KILLED")

    def _experiment(self, client: MlflowClient) -> str:
        """The id of the experiment that runs go to, made if it is not there."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "esper")
        found = client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        artifacts = None if self.store else (self.folder / "mlflow" / "artifacts").resolve().as_uri()
        try:
            return str(client.create_experiment(name, artifact_location=artifacts))
        except MlflowException:  # another process was quicker
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
            return str(found.experiment_id)


def _chunks(values: Sequence[T], size: int) -> Iterator[list[T]]:
    rest = iter(values)
    while some := list(islice(rest, size)):
        yield some


def make(folder: Path) -> MLflow:
    """The tracker for the run in a folder."""
    return MLflow(folder)
