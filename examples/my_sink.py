"""A sink: the val accuracy of every host after every epoch, as a table for a spreadsheet."""

from __future__ import annotations

from pathlib import Path

import esper
from esper.leyline.events import Envelope, EpochFinished


@esper.sink("csv")
class CsvSink:
    """Gets every event of a run; one that raises is dropped, and the run goes on."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / "accuracy.csv").open("a", encoding="utf-8")
        if self._file.tell() == 0:  # a run that goes on has its header already
            self._file.write("host,epoch,val_accuracy\n")

    def write(self, envelope: Envelope) -> None:
        """Take one event; it has the number of its host and the epoch."""
        if isinstance(envelope.event, EpochFinished):
            self._file.write(f"{envelope.host},{envelope.epoch},{envelope.event.val_accuracy:.2f}\n")

    def flush(self) -> None:
        """Called after every epoch."""
        self._file.flush()

    def close(self) -> None:
        """Called at the end of the run."""
        self._file.close()
