"""What lies between a module's features and the model's output, read from the graph that autograd keeps of a forward pass."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from enum import Enum, auto

from torch import Tensor, nn
from torch.autograd.graph import Node


class Role(Enum):
    """What a module's features are to the model's output."""

    HIDDEN = auto()
    """Layers with weights make more of them."""
    HEAD = auto()
    """They are the output, or become it without any further weight: whatever grows there changes the answer itself."""
    DEAD = auto()
    """The output does not depend on them."""
    CUT = auto()
    """They are computed without gradients, and none arrives in the backward pass either."""


def roles(outputs: Iterable[Tensor], features: Collection[Node], parameters: Iterable[nn.Parameter]) -> dict[Node, Role]:
    """The role of the features that each of these nodes made, for the outputs of the same forward pass of a model with these parameters."""
    weights = _Weights(features, parameters)
    # For each node whether some way to it from the output passes a weight.
    passed: dict[Node, bool] = {}
    waiting = [(output.grad_fn, False) for output in outputs if output.grad_fn is not None]
    while waiting:
        node, behind = waiting.pop()
        assert node is not None
        if passed.get(node, False) or (node in passed and not behind):
            continue
        passed[node] = behind
        below = _below(node)
        has_weights = any(weights.only(each) for each in below)
        waiting += [(each, behind or has_weights) for each in below if not weights.only(each)]
    return {node: Role.DEAD if node not in passed else Role.HIDDEN if passed[node] else Role.HEAD for node in features}


def main_role(roles: Iterable[Role]) -> Role:
    """What a module is that is called several times: a head where one of its calls gives the output, dead where none has any part in it."""
    found = set(roles)
    return next(role for role in (Role.HEAD, Role.HIDDEN, Role.DEAD) if role in found)


def _below(node: Node) -> list[Node]:
    return [each for each, _ in node.next_functions if each is not None]


def depends_on(features: Collection[Node], inputs: Iterable[Tensor]) -> set[Node]:
    """Those of the nodes whose features depend on one of these inputs."""
    leaves = {id(tensor) for tensor in inputs}
    known: dict[Node, bool] = {}
    return {node for node in features if _told(node, known, lambda leaf, below: leaf in leaves or any(below))}


class _Weights:
    """Which nodes of a graph are made of parameters alone, as a transposed weight is. Features are not: an embedding's have no input that
    the graph knows of."""

    def __init__(self, features: Collection[Node], parameters: Iterable[nn.Parameter]) -> None:
        self._known: dict[Node, bool] = dict.fromkeys(features, False)
        self._parameters = {id(parameter) for parameter in parameters}

    def only(self, node: Node) -> bool:
        """Whether everything under a node is a parameter."""
        return _told(node, self._known, lambda leaf, below: all(below) if below else leaf in self._parameters)


def _told(node: Node, known: dict[Node, bool], rule: Callable[[int, list[bool]], bool]) -> bool:
    """What holds for a node, by a rule of the id of its leaf, if it is one, and of what holds for those below it.

    Without recursion: graphs are deeper than Python's stack. known: what has been found so far.
    """
    waiting = [node]
    while waiting:
        here = waiting[-1]
        below = _below(here)
        unknown = [] if here in known else [each for each in below if each not in known]
        if not unknown:
            if here not in known:
                known[here] = rule(id(getattr(here, "variable", None)), [known[each] for each in below])
            waiting.pop()
        waiting += unknown
    return known[node]
