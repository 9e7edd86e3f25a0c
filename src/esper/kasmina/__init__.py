"""The body: slots in any network, seeds and their life, blending, gates, and the harvest of a plain module."""

from esper.kasmina.attach.check import Check, Growability, check_growable
from esper.kasmina.attach.places import find_slots
from esper.kasmina.attach.proposal import Proposal
from esper.kasmina.averaging import AveragedModel
from esper.kasmina.blueprints import SlotShape, blueprint
from esper.kasmina.growable import Growable
from esper.kasmina.grown_file import load_grown, save_grown
from esper.kasmina.parallel import notice_wrapping

notice_wrapping()

__all__ = [
    "AveragedModel",
    "Check",
    "Growability",
    "Growable",
    "Proposal",
    "SlotShape",
    "blueprint",
    "check_growable",
    "find_slots",
    "load_grown",
    "save_grown",
]
