"""Growth in Gymnasium's order: a step carries out an action, trains the epoch after it, and brings the reward of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from esper.leyline.actions import Decision
from esper.leyline.events import Event, HostFinished
from esper.simic.growth.environment import Environment, Start
from esper.simic.rewards import RewardStep
from esper.tamiyo import Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one step of one host brought."""

    observation: Observation
    """The state reached; at the end of an episode the last one seen."""
    reward: RewardStep
    refused: str
    events: tuple[Event, ...]
    result: HostFinished | None
    """How the episode ended; None while it goes on."""


class Stepper:
    """Hosts at places, each with what was seen of it last."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.seen: dict[int, Observation] = {}

    def reset(self, starts: Mapping[int, Start]) -> None:
        """New hosts, trained for their first epoch."""
        self.environment.begin(starts)
        self.seen = {place: trained.observation for place, trained in self.environment.train().items()}

    def step(self, decisions: Mapping[int, Decision], following: Callable[[int], Start] | None = None) -> dict[int, Outcome]:
        """One decision for each host. following: the next host at a place whose episode has ended, which begins in the same step."""
        before, acted = dict(self.seen), self.environment.act(decisions)
        ended = [place for place, each in acted.items() if each.result is not None]
        if following is not None and ended:
            self.environment.begin({place: following(place) for place in ended})
        trained = self.environment.train() if following is not None or len(ended) < len(acted) else {}
        self.seen |= {place: each.observation for place, each in trained.items()}
        outcomes = {}
        for place, each in acted.items():
            reward = each.reward if each.result is not None else trained[place].reward
            assert reward is not None, "every decision earns something"
            outcomes[place] = Outcome(
                observation=before[place] if each.result is not None else self.seen[place],
                reward=reward,
                refused=each.refused,
                events=each.events if each.result is not None else (*each.events, *trained[place].events),
                result=each.result,
            )
        return outcomes

    def close(self) -> None:
        """Let go of the hosts."""
        self.environment.close()
        self.seen = {}
