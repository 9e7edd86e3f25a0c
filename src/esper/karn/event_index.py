"""Where the events of a run lie in their file, found by the head of each line; and one line of it as a row."""

from __future__ import annotations

import json
import re
from array import array
from dataclasses import fields
from typing import Any

from esper.leyline.codec_values import WORDS
from esper.leyline.events import EVENT_TYPES, EVENT_VERSION

ENVELOPE = ("seq", "time", "host", "epoch", "kind")
"""What every row begins with."""
NOBODY = -1
"""In place of a host that is null."""
KINDS = tuple(EVENT_TYPES)

Row = dict[str, Any]
"""An event: what is in ENVELOPE, and its fields. NaN and infinities are None. A field that is called like one of ENVELOPE has its kind in
front: `observed_host`."""

_LINE = re.compile(
    rb'\{"v":(\d+),"seq":(\d+),"time":(?:null|[-+.\deE]+),"host":(null|\d+),"epoch":(?:null|\d+),"kind":"([a-z_]+)","data":\{[^\n]*\}\}\n'
)
_VERSION = re.compile(rb'\{"v":(-?\d+),')
_CODES = {kind: code for code, kind in enumerate(KINDS)}
_FIELDS = {kind: {field.name: str(field.type) for field in fields(cls)} for kind, cls in EVENT_TYPES.items()}  # type: ignore[arg-type]


def code_of(kind: str) -> int:
    """The number of a kind of event, which has to be one."""
    return _CODES[kind]


def column_of(kind: str, field: str) -> str:
    """What a field of an event is called in a row."""
    return f"{kind}_{field}" if field in ENVELOPE else field


class Index:
    """The whole lines at the beginning of a file, by number, which is an event's `seq`."""

    def __init__(self) -> None:
        self.starts, self.hosts, self.kinds = array("q"), array("q"), array("B")
        self.by_kind = [array("q") for _ in KINDS]
        self.by_host: dict[int, array[int]] = {}
        self.sizes = [0] * len(KINDS)
        """Bytes of the lines of each kind."""
        self.offset = 0
        """Where the next line begins."""
        self.wrong = ""
        """What is wrong with that line, if it is there and no event: "line 7: ..."."""

    def __len__(self) -> int:
        return len(self.kinds)

    def take(self, block: bytes) -> int:
        """Note the whole lines at the beginning of a block, which follows on what was noted, up to one that is wrong. Their bytes."""
        names = {kind.encode(): code for code, kind in enumerate(KINDS)}
        starts, hosts, kinds, by_kind, by_host, sizes = (*(self.starts, self.hosts, self.kinds, self.by_kind, self.by_host, self.sizes),)
        version, place, number = str(EVENT_VERSION).encode(), 0, len(self)
        for found in _LINE.finditer(block):
            first, after = found.span()
            v, seq, host, kind = found.groups()
            if first != place or v != version or int(seq) != number or kind not in names:
                break
            code = names[kind]
            starts.append(self.offset + first)
            kinds.append(code)
            by_kind[code].append(number)
            sizes[code] += after - first
            if host == b"null":
                hosts.append(NOBODY)
            else:
                hosts.append(int(host))
                by_host.setdefault(int(host), array("q")).append(number)
            number += 1
            place = after
        self.offset += place
        newline = block.find(b"\n", place)
        self.wrong = "" if newline < 0 else _what_is_wrong(block[place:newline], number)
        return place

    def span(self, seq: int) -> tuple[int, int]:
        """Where an event's line begins, and how many bytes it has."""
        start = self.starts[seq]
        return start, (self.starts[seq + 1] if seq + 1 < len(self.starts) else self.offset) - start

    def cut(self, seq: int, line: bytes) -> None:
        """An event turned out to be damaged: what is noted ends before it."""
        self.wrong = _what_is_wrong(line, seq)
        self.offset = self.starts[seq]
        for column in (self.starts, self.hosts, self.kinds):
            del column[seq:]
        for numbers in (*self.by_kind, *self.by_host.values()):
            while numbers and numbers[-1] >= seq:
                numbers.pop()


def _what_is_wrong(line: bytes, number: int) -> str:
    version, found = _VERSION.match(line), _LINE.fullmatch(line.rstrip(b"\n") + b"\n")
    if version is not None and int(version[1]) != EVENT_VERSION:
        return f"line {number + 1}: event has schema version {int(version[1])}; this version of Esper reads {EVENT_VERSION}"
    if found is not None and int(found[2]) != number:
        return f"line {number + 1}: holds event {int(found[2])}, expected {number}: events were lost, doubled or edited"
    if found is not None and found[4].decode() not in EVENT_TYPES:
        return f"line {number + 1}: is of the unknown kind {found[4].decode()!r}"
    return f"line {number + 1}: is damaged: expected an event, found {line[:60].decode('ascii', 'backslashreplace')!r}"


def row_of(line: bytes, seq: int, kind: str) -> Row | None:
    """An event as a row; None for a line that does not hold this one."""
    try:
        found = json.loads(line)
        data = found["data"]
        if found["seq"] != seq or found["kind"] != kind or data.keys() != _FIELDS[kind].keys():
            return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if _has_words(line):
        data = _without_words(data, kind)
    if not data.keys().isdisjoint(ENVELOPE):
        data = {column_of(kind, name): value for name, value in data.items()}
    return {"seq": seq, "time": found["time"], "host": found["host"], "epoch": found["epoch"], "kind": kind, **data}


def without_words(line: bytes, kind: str) -> bytes:
    """A line with null in place of the words for NaN and infinities; one that is damaged as it is."""
    if not _has_words(line):
        return line
    try:
        found = json.loads(line)
        return json.dumps({**found, "data": _without_words(found["data"], kind)}).encode()
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return line


def _has_words(line: bytes) -> bool:
    return b'NaN"' in line or b'Infinity"' in line


def _without_words(data: dict[str, Any], kind: str) -> dict[str, Any]:
    return {name: value if _FIELDS[kind][name] == "str" else _numbers(value) for name, value in data.items()}


def _numbers(value: Any) -> Any:
    """The value with None for the words that stand for NaN and infinities."""
    if isinstance(value, str):
        return None if value in WORDS else value
    if isinstance(value, list):
        return [_numbers(each) for each in value]
    return {key: _numbers(each) for key, each in value.items()} if isinstance(value, dict) else value
