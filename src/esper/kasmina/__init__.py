"""The body: slots in any network, seeds and their life, blending, gates, and the harvest of a plain module."""

from esper.kasmina.blueprints import SlotShape, blueprint
from esper.kasmina.check import Check, Growability, check_growable
from esper.kasmina.growable import Growable
from esper.kasmina.places import Proposal, find_slots

__all__ = ["Check", "Growability", "Growable", "Proposal", "SlotShape", "blueprint", "check_growable", "find_slots"]
