"""Anomaly detectors: what no healthy run shows, noticed while the run goes on, from its events alone."""

from esper.nissa.anomalies.config import AnomalyConfig
from esper.nissa.anomalies.detectors import Detectors, describe

__all__ = ["AnomalyConfig", "Detectors", "describe"]
