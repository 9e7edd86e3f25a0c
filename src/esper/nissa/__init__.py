"""The senses: the telemetry hub and the sinks that it writes to."""

from esper.nissa.console import ConsoleSink, describe
from esper.nissa.hub import BEGINNING, Hub, NullHub, Sink
from esper.nissa.jsonl import JsonlSink, read_events

__all__ = ["BEGINNING", "ConsoleSink", "Hub", "JsonlSink", "NullHub", "Sink", "describe", "read_events"]
