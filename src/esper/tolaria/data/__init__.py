"""Data: published formats, embedded sets, splits that keep test out of reach, and the order of an epoch."""

from esper.tolaria.data.splits import Data, FinalEvaluation, Split, epoch_order
from esper.tolaria.data.streams import draws, generator, stream_seed

__all__ = ["Data", "FinalEvaluation", "Split", "draws", "epoch_order", "generator", "stream_seed"]
