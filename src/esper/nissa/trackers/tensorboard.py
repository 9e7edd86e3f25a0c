"""TensorBoard: event files in the run's folder `tensorboard`, in its own records; neither torch nor TensorFlow is needed."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import BinaryIO

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from esper.nissa.scalars import Point
from esper.nissa.trackers.tracker import Tracked


class TensorBoard:
    """Scalars and text in event files, one file for each process that worked on the run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "tensorboard"
        self.hint = f"see it with: tensorboard --logdir {self.folder}"
        self._file: BinaryIO | None = None

    def begin(self, tracked: Tracked) -> None:
        """Open a file. In a run that goes on, what was logged after its checkpoint is taken back."""
        self.folder.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{round(tracked.time * 1000):014}.{platform.node()}.{os.getpid()}"
        self._file = (self.folder / name).open("ab")  # not TensorBoard's own writer: a thread within this one, which prints its failures
        self._add(Event(file_version="brain.Event:2"), 0, tracked.time)
        self._add(Event(session_log=SessionLog(status=SessionLog.START)), tracked.step + 1, tracked.time)
        settings = "".join(f"    {key} = {value!r}\n" for key, value in tracked.config.items())
        self._text("run", f"    {tracked.run.command}\n", tracked.step, tracked.time)
        self._text("config", settings, tracked.step, tracked.time)

    def log(self, point: Point, time: float) -> None:
        """Scalars by their names."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
        self._add(Event(summary=Summary(value=values)), point.step, time)

    def remark(self, step: int, text: str, time: float, *, urgent: bool) -> None:
        """Text under `remarks`, or under `anomalies`. It is shown as Markdown: four spaces make it plain."""
        self._text("anomalies" if urgent else "remarks", f"    {text}", step, time)

    def flush(self) -> None:
        """Write what waits to the file."""
        if self._file is not None:
            self._file.flush()

    def end(self, finished: bool) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _text(self, tag: str, text: str, step: int, time: float) -> None:
        self._add(Event(summary=text_pb(tag, text)), step, time)

    def _add(self, event: Event, step: int, time: float) -> None:
        assert self._file is not None, "begin comes first"
        event.step, event.wall_time = step, time
        RecordWriter(self._file).write(event.SerializeToString())


def make(folder: Path) -> TensorBoard:
    """The tracker for the run in a folder."""
    return TensorBoard(folder)
