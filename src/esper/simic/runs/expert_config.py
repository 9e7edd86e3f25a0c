"""The settings of teaching a policy by forked search. Free of torch, so that a command can show its help at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from esper.leyline.config import Count, Range, check_ranges
from esper.simic.learning.expert_config import ExpertConfig
from esper.simic.runs.practice_config import SURE, PracticeConfig
from esper.tamiyo.controllers.prior import Prior


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertRunConfig(PracticeConfig):
    """Everything that decides how a policy learns by forked search. Written to config.toml, from which the same run starts again."""

    changeable: ClassVar[tuple[str, ...]] = (*PracticeConfig.changeable, "moments", "alternatives", "expert")
    method: ClassVar[str] = "expert"
    kind: Literal["expert"] = "expert"
    hosts: Count = 16
    """Episodes in a round that the policy plays by its likeliest decisions; each has forks beside it."""
    pool: Annotated[int, Range(0, 1_000_000)] = 0
    """Different hosts to practise on, the control of each trained only once; 0 for hosts that are new in every round."""
    moments: Annotated[int, Range(1, 1_000)] = 2
    """Steps of each episode at which something else is tried."""
    alternatives: Annotated[int, Range(1, 1_000)] = 4
    """Other decisions that are tried at each of these steps, every one on a host of its own that trains to its end."""
    prior: Prior = SURE
    """What the policy does before it has learned anything."""
    expert: ExpertConfig = field(default_factory=ExpertConfig)

    def __post_init__(self) -> None:
        PracticeConfig.__post_init__(self)
        check_ranges(self)

    @property
    def side_by_side(self) -> int:
        """Hosts that train at once in a round, forks among them."""
        return self.hosts * (1 + self.moments * self.alternatives)
