"""The senses: the telemetry hub and the sinks that it writes to."""

from esper.nissa.console import ConsoleSink, describe
from esper.nissa.hub import BEGINNING, Hub, NullHub, Sink
from esper.nissa.jsonl import JsonlSink, read_events
from esper.nissa.registry import SINKS, make_sink, sink

__all__ = ["BEGINNING", "SINKS", "ConsoleSink", "Hub", "JsonlSink", "NullHub", "Sink", "describe", "make_sink", "read_events", "sink"]
