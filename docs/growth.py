"""Draws docs/growth.svg from a finished run with controls: one host's val accuracy, its twin's, and what its slots held.

    python docs/growth.py runs/digits-heuristic-001 [--host 0] > docs/growth.svg
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from esper.leyline.events import EpochFinished, HostStarted, StageChanged
from esper.leyline.stages import Stage
from esper.nissa import read_events

WIDTH, HEIGHT, LEFT, TOP, PLOT, ROW = 760, 360, 56, 40, 200, 26
COLOURS = {Stage.TRAINING: "#9ecae1", Stage.BLENDING: "#fdd28a", Stage.HOLDING: "#c9b3e0", Stage.FOSSILIZED: "#8cc98c"}
NAMES = {Stage.TRAINING: "training", Stage.BLENDING: "blending", Stage.HOLDING: "holding", Stage.FOSSILIZED: "fossil"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--host", type=int, default=0)
    arguments = parser.parse_args()
    curves: dict[int, list[float]] = {}
    changes: list[tuple[int, StageChanged]] = []
    slots: tuple[str, ...] = ()
    twin = -1
    for envelope in read_events(arguments.run / "events.jsonl"):
        event, host = envelope.event, envelope.host
        if isinstance(event, HostStarted) and host == arguments.host:
            slots = event.slots
        if isinstance(event, HostStarted) and host is not None and event.twin_of == arguments.host:
            twin = host
        if isinstance(event, EpochFinished) and host is not None:
            curves.setdefault(host, []).append(event.val_accuracy)
        if isinstance(event, StageChanged) and host == arguments.host and envelope.epoch is not None:
            changes.append((envelope.epoch, event))
    print(draw(curves[arguments.host], curves[twin], slots, changes))
    return 0


def draw(grown: list[float], bare: list[float], slots: tuple[str, ...], changes: list[tuple[int, StageChanged]]) -> str:
    """The picture as SVG text."""
    epochs = len(grown)

    def x(epoch: float) -> float:
        return LEFT + (WIDTH - LEFT - 20) * epoch / epochs

    def y(accuracy: float) -> float:
        return TOP + PLOT * (1 - accuracy / 100)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="14">Val accuracy of a host that grows, and of its twin that does not</text>',
    ]
    for accuracy in (0, 25, 50, 75, 100):
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y(accuracy):.1f}" y2="{y(accuracy):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(accuracy) + 4:.1f}" text-anchor="end">{accuracy}</text>')
    for curve, colour, name in ((bare, "#888", "twin"), (grown, "#2a7d2a", "grown")):
        points = " ".join(f"{x(i + 1):.1f},{y(value):.1f}" for i, value in enumerate(curve))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{x(epochs) - 4:.1f}" y="{y(curve[-1]) - 7:.1f}" text-anchor="end" fill="{colour}">{name}</text>')
    for row, slot in enumerate(slots):
        top = TOP + PLOT + 22 + row * ROW
        parts.append(f'<text x="{LEFT - 8}" y="{top + 14}" text-anchor="end">{slot}</text>')
        parts.append(f'<rect x="{LEFT}" y="{top}" width="{WIDTH - 20 - LEFT}" height="18" fill="#f2f2f2"/>')
        mine = [(epoch, event) for epoch, event in changes if event.slot == slot]
        for (start, event), (end, _) in zip(mine, [*mine[1:], (epochs, None)], strict=True):
            if event.after in COLOURS and end > start:
                label = f"{event.blueprint} {NAMES[event.after]}" if x(end) - x(start) > 105 else ""
                box = f'x="{x(start):.1f}" y="{top}" width="{x(end) - x(start):.1f}" height="18"'
                parts.append(f'<rect {box} fill="{COLOURS[event.after]}"/>')
                parts.append(f'<text x="{x(start) + 4:.1f}" y="{top + 13}" font-size="11">{label}</text>')
    bottom = TOP + PLOT + 22 + len(slots) * ROW + 16
    parts.append(f'<text x="{LEFT}" y="{bottom}">epoch 0</text><text x="{WIDTH - 20}" y="{bottom}" text-anchor="end">epoch {epochs}</text>')
    for i, (stage, colour) in enumerate(COLOURS.items()):
        left = LEFT + 150 + i * 110
        parts.append(f'<rect x="{left}" y="{bottom - 10}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{left + 17}" y="{bottom}">{NAMES[stage]}</text>')
    return "\n".join([*parts, "</svg>"])


if __name__ == "__main__":
    sys.exit(main())
