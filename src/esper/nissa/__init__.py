"""The senses: the telemetry hub and the sinks that it writes to."""
