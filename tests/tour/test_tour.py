"""Networks that others wrote wrap, grow, come out plain and export, none of them changed."""

from __future__ import annotations

import importlib.metadata

import pytest

from tests.tour.catalogue import NETWORKS, named
from tests.tour.known import KNOWN
from tests.tour.network import Network
from tests.tour.runner import Journey, travel

# Warnings in these tests are those of the packages, and of torch about them.
pytestmark = pytest.mark.filterwarnings("ignore")

IN_CI = (
    "torch/transformer-time-first",
    "torch/conv3d-chain",
    "transformers/gpt2lmheadmodel",
    "transformers/mambaforcausallm",
    "transformers/bertforsequenceclassification",
    "transformers/t5forconditionalgeneration",
    "transformers/samvisionmodel",
    "transformers/convnextforimageclassification",
    "transformers/wav2vec2forctc",
    "transformers/resnetforimageclassification",
)
"""Quick ones of different kinds: time-first and 5-D features, blocks with **kwargs and caches, channels-last maps, sound."""

EXPORTED = ("torch/conv3d-chain", "transformers/gpt2lmheadmodel", "transformers/convnextforimageclassification")
"""Those of them that are exported as well, which takes as long as all the rest."""


def names(networks: list[Network]) -> list[str]:
    """What tests of networks are called."""
    return [network.full_name for network in networks]


def missing(network: Network) -> list[str]:
    """Distributions that a network needs and that are not here."""
    found = []
    for package in (network.package, *network.also):
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found.append(package)
    return found


def falls_short(journey: Journey) -> dict[str, str]:
    """The steps that a network did not take, and what went wrong."""
    return {step: said for step, said in journey.steps.items() if said not in ("ok", "bare")}


@pytest.mark.parametrize("name", IN_CI)
def test_ten_of_them_go_all_the_way(name):
    journey = travel(named(name), without=() if name in EXPORTED else ("exports",))
    assert falls_short(journey) == {}
    assert journey.whole
    assert journey.gap <= 0.6


@pytest.mark.tour
@pytest.mark.parametrize("network", NETWORKS, ids=names(NETWORKS))
def test_all_of_them_go_as_far_as_is_known(network):
    """A step that is known to fail has to fail, so that the list of them does not grow old."""
    if missing(network):
        pytest.skip(f"needs {', '.join(missing(network))}")
    assert list(falls_short(travel(network))) == list(KNOWN.get(network.full_name, {}))


def test_the_catalogue_is_broad_and_names_each_network_once():
    listed = names(NETWORKS)
    assert len(set(listed)) == len(listed)
    assert len({network.package for network in NETWORKS}) >= 32
    assert set(KNOWN) <= set(listed)
    assert set(IN_CI) <= set(listed)
    assert {named(name).package for name in IN_CI} == {"torch", "transformers"}
