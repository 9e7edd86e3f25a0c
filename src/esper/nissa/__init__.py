"""The senses: the telemetry hub and the sinks that it writes to."""

from esper.nissa.hub import BEGINNING, Hub, Sink
from esper.nissa.jsonl import JsonlSink, read_events

__all__ = ["BEGINNING", "Hub", "JsonlSink", "Sink", "read_events"]
