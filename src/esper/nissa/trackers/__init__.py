"""Experiment trackers: TensorBoard, Weights & Biases and MLflow as sinks. Each library is an extra, imported when it is asked for."""

from esper.nissa.trackers.tracker import TRACKERS, TrackerSink, load_tracker, make_tracker

__all__ = ["TRACKERS", "TrackerSink", "load_tracker", "make_tracker"]
