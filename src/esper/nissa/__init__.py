"""The senses: the telemetry hub and the sinks that it writes to."""

from esper.nissa.config import EVERYTHING, TelemetryConfig
from esper.nissa.hub import BEGINNING, Hub, Sink
from esper.nissa.jsonl import JsonlSink, read_events
from esper.nissa.queued import QueuedSink
from esper.nissa.registry import SINKS, find_sink, make_sink, sink

__all__ = [
    "BEGINNING",
    "EVERYTHING",
    "SINKS",
    "Hub",
    "JsonlSink",
    "QueuedSink",
    "Sink",
    "TelemetryConfig",
    "find_sink",
    "make_sink",
    "read_events",
    "sink",
]
