"""Records that travel arrive as they left, and stay frozen."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, replace

import pytest

from esper.leyline.actions import WAIT, Decision, Op
from esper.leyline.events import Decided, Note
from esper.leyline.reports import Gate, GateVerdict, GradientStats

STATS = GradientStats(steps=3, norm=0.5, peak=1.0, vanishing=0.0, exploding=0.25, finite=True)
RECORDS = [
    Decision(op=Op.GERMINATE, slot="r0c0", blueprint="conv_light"),
    GateVerdict(Gate.G2, "r0c0", False, ("too young",)),
    STATS,
    Note(text="one field"),
    Decided(decision=WAIT, legal={"op": ("WAIT",)}, probabilities={}, value=None),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
@pytest.mark.parametrize("protocol", [2, pickle.DEFAULT_PROTOCOL, pickle.HIGHEST_PROTOCOL])
def test_what_arrives_is_what_left(record, protocol):
    assert pickle.loads(pickle.dumps(record, protocol)) == record
    assert copy.deepcopy(record) == record


def test_what_arrived_is_a_record_like_any_other():
    arrived = pickle.loads(pickle.dumps(STATS))
    with pytest.raises(FrozenInstanceError):
        arrived.norm = 2.0
    assert replace(arrived, norm=2.0).norm == 2.0
