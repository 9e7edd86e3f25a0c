"""What trackers log: means over hosts, with the step of the run, and never a series for each host."""

from __future__ import annotations

import math

from esper.leyline.events import (
    Anomaly,
    ArmExamined,
    Envelope,
    EpochFinished,
    Event,
    HostFinished,
    HostStarted,
    HostsTrained,
    PolicyUpdated,
    RoundFinished,
    RunStarted,
)
from esper.nissa.scalars import Point, Scalars, plain, remark


def started(method: str, round: int = 0) -> RunStarted:
    return RunStarted(
        command="a run", method=method, task="digits", hosts=2, rounds=9, seed=0, versions={}, machine={}, about={"round": round}
    )


def host(twin_of: int | None = None, arm: str = "") -> HostStarted:
    return HostStarted(task="digits", seed=0, member={}, epochs=9, parameters=100, slots=(), twin_of=twin_of, arm=arm)


def finished(accuracy: float, parameters: int = 200, control: float | None = None) -> HostFinished:
    return HostFinished(
        val_accuracy=accuracy,
        val_loss=1.0,
        test_accuracy=None,
        test_loss=None,
        host_parameters=100,
        parameters=parameters,
        rent=8.0,
        control_accuracy=control,
        control_loss=None,
        flops={"train": 10, "validation": 5},
        germinated=2,
        fossilized=1,
        pruned=1,
        rollbacks=0,
        reward=3.0,
        components={},
        decisions={},
        refused=0,
        slots={},
        seeds=(),
    )


def epoch(loss: float, train_loss: float = math.nan) -> EpochFinished:
    return EpochFinished(
        train_loss=train_loss,
        train_accuracy=50.0,
        val_loss=loss,
        val_accuracy=60.0,
        learning_rate=0.1,
        parameters=100,
        per_class=(),
        gradient_norm=None,
        flops={},
    )


def course(scalars: Scalars, *events: tuple[int | None, Event]) -> list[Point]:
    envelopes = [Envelope(seq=0, time=1.0, host=number, epoch=None, event=event) for number, event in events]
    return [point for envelope in envelopes for point in scalars.points(envelope)]


def test_hosts_under_a_controller_are_means_by_epoch_with_their_twins_apart() -> None:
    trained = HostsTrained(hosts=(0, 1, 2), val_accuracy=(60.0, 70.0, 50.0), parameters=(100, 300, 100), live=(0, 1, 0), fossils=(0, 2, 0))
    points = course(
        Scalars(),
        *((None, started("run")), (0, host()), (1, host()), (2, host(twin_of=0))),
        *((None, trained), (0, epoch(1.0)), (1, epoch(3.0)), (2, epoch(99.0)), (None, RoundFinished(round=1, rounds=9))),
        *((0, finished(80.0, control=70.0)), (2, finished(70.0)), (None, RoundFinished(round=2, rounds=9))),
    )
    first, second = points
    assert first == Point(
        1,
        {
            "hosts/val_accuracy": 65.0,
            "hosts/growth": 2.0,
            "hosts/live": 0.5,
            "hosts/fossils": 1.0,
            "control/val_accuracy": 50.0,
            "hosts/train_accuracy": 50.0,
            "hosts/val_loss": 2.0,
            "hosts/learning_rate": 0.1,
        },
    )
    assert second.step == 2
    assert (second.values["finished/against_control"], second.values["finished/score"], second.values["finished/hosts"]) == (10, 78, 1)
    assert "finished/test_accuracy" not in second.values


def test_a_policy_that_learns_is_logged_by_round_and_hosts_of_an_examination_only_as_arms() -> None:
    scalars = Scalars()
    arm = ArmExamined(arm="a/b: <b>", hosts=2, score=1.0, accuracy=2.0, growth=3.0, operations=4.0, fossils=5.0, reward=math.nan)
    points = course(
        scalars,
        *(
            (None, started("learn", round=3)),
            (7, host()),
            (7, finished(80.0)),
            (None, PolicyUpdated(update=4, metrics={"train/loss": 0.5})),
        ),
        *((None, RoundFinished(round=4, rounds=9)), (8, host(arm="policy")), (8, finished(1.0)), (None, arm)),
    )
    assert points[0] == Point(4, {"train/loss": 0.5})
    assert (points[1].step, points[1].values["finished/val_accuracy"]) == (4, 80.0)
    assert points[2] == Point(
        4,
        {
            f"arms/a_b_b/{name}": value
            for name, value in zip(("score", "accuracy", "growth", "operations", "fossils"), range(1, 6), strict=True)
        },
    )
    assert course(scalars, (None, RoundFinished(round=5, rounds=9))) == [], "the round before is over"


def test_a_thousand_hosts_are_no_more_series_than_one() -> None:
    def names(count: int) -> set[str]:
        numbers = range(count)
        some = tuple(float(number) for number in numbers)
        trained = HostsTrained(hosts=tuple(numbers), val_accuracy=some, parameters=(100,) * count, live=(0,) * count, fossils=(0,) * count)
        hosts = [(number, host()) for number in numbers]
        ended = [(number, finished(50.0)) for number in numbers]
        points = course(Scalars(), (None, started("run")), *hosts, (None, trained), *ended, (None, RoundFinished(round=1, rounds=1)))
        return {name for point in points for name in point.values}

    assert names(1000) == names(1)


def test_names_are_made_plain_and_anomalies_are_sentences() -> None:
    assert [plain(name) for name in ("random", "runs/x-1/policy.safetensors", "../..", "")] == [
        "random",
        "runs_x-1_policy.safetensors",
        "_",
        "_",
    ]
    wrong = Anomaly(detector="rollbacks", text="3 in a row", value=3.0, threshold=3.0)
    assert remark(Envelope(seq=0, time=None, host=None, epoch=None, event=wrong)) == "rollbacks: 3 in a row"
    assert remark(Envelope(seq=0, time=None, host=0, epoch=1, event=epoch(1.0))) is None
