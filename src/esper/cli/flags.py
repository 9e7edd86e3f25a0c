"""Command-line flags for a config dataclass: one for each field, explained by the field's own docstring.

A nested field `training.clip` is the flag `--training.clip`. Values are checked by the config itself, so a flag and a line in a
config file give the same errors.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import itertools
import textwrap
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from esper.leyline.codec import bare
from esper.leyline.errors import ConfigError, nearest


class Formatter(argparse.HelpFormatter):
    """Descriptions and epilogs as wide as the terminal, paragraph by paragraph; indented lines, such as examples, stay as they are. Names
    with hyphens are not broken."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        told: list[str] = []
        for is_plain, group in itertools.groupby(text.splitlines(), lambda line: bool(line) and not line.startswith(" ")):
            lines = list(group)
            told += textwrap.wrap(" ".join(lines), width, break_on_hyphens=False) if is_plain else lines
        return "\n".join(told)


class Parser(argparse.ArgumentParser):
    """argparse whose mistakes are ConfigErrors: one sentence with the nearest flag, no usage text in front."""

    def __init__(self, *, formatter_class: type[argparse.HelpFormatter] = Formatter, **given: Any) -> None:
        super().__init__(formatter_class=formatter_class, **given)

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would have printed."""
        raise ConfigError(f"{message[:1].lower()}{message[1:]}; see {self.prog} --help")

    def _print_message(self, message: str, file: Any = None) -> None:
        """As argparse, but an output that cannot be written is not passed over."""
        print(message, end="", file=file)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse, but an unknown flag is named with its nearest neighbour."""
        found, extra = self.parse_known_args(args, namespace)
        if extra:
            known = [option for action in self._actions for option in action.option_strings]
            name = extra[0].split("=")[0]
            hint = nearest(name, known) if name.startswith("-") else f"see {self.prog} --help"
            raise ConfigError(f"unknown argument {extra[0]!r}; {hint}")
        return found


def add_flags(parser: argparse.ArgumentParser, config: type, *, everything: bool, without: Sequence[str] = ()) -> None:
    """One flag for each field of the config, nested ones with a dotted name, which help shows only when `everything` is asked for.

    without: fields that the command asks for in another way.
    """
    _add_flags(parser, config, config(), everything, "", without)


def _add_flags(
    parser: argparse.ArgumentParser, config: type, values: Any, everything: bool, prefix: str, without: Sequence[str] = ()
) -> None:
    """`values` is the config as it is without any flag: a nested one may have other defaults here than by itself."""
    kinds = get_type_hints(config, include_extras=True)
    docs = field_docs(config)
    shown = everything or not prefix
    group = parser.add_argument_group(prefix.rstrip(".") or "settings", _summary(config) if prefix else None) if shown else parser
    nested = []
    # What a config adds to the one it builds on is closer to the command, so it comes first.
    homes = {name: depth for depth, base in reversed([*enumerate(config.__mro__)]) for name in inspect.get_annotations(base)}
    for each in sorted(fields(config), key=lambda each: homes[each.name]):
        key = prefix + each.name
        kind = bare(kinds[each.name])
        if each.name in without:
            continue
        if is_dataclass(kind):
            nested.append((kind, getattr(values, each.name), key + "."))
            continue
        if get_origin(kind) is Literal and len(get_args(kind)) == 1:  # such as `kind`: nothing to choose
            continue
        flag = "--" + key.replace("_", "-")
        text = argparse.SUPPRESS
        if shown:
            text = " ".join(filter(None, [docs.get(each.name, ""), _default(getattr(values, each.name))])).replace("%", "%%")
        options: dict[str, Any] = {"dest": key, "default": argparse.SUPPRESS, "help": text}
        if kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif get_origin(kind) in (tuple, dict):
            options.update(nargs="*", action="extend", metavar=_metavar(kind))
        else:
            options["metavar"] = _metavar(kind)
        group.add_argument(flag, **options)
    for kind, inner, name in nested:
        _add_flags(parser, kind, inner, everything, prefix=name)  # type: ignore[arg-type]


def changes(config: type, namespace: argparse.Namespace, prefix: str = "") -> dict[str, Any]:
    """What the flags say, as dotted keys and values in the form of a config file, for `leyline.config.replace_fields`."""
    found: dict[str, Any] = {}
    for name, kind in get_type_hints(config, include_extras=True).items():
        key, plain = prefix + name, bare(kind)
        if is_dataclass(plain):
            found.update(changes(plain, namespace, key + "."))  # type: ignore[arg-type]
        elif hasattr(namespace, key):
            found[key] = _value(plain, getattr(namespace, key), key)
    return found


def field_docs(config: type) -> dict[str, str]:
    """The docstring under each field of a dataclass and of those it builds on, as one line."""
    docs: dict[str, str] = {}
    for base in config.__bases__:
        if is_dataclass(base):
            docs.update(field_docs(base))
    tree = ast.parse(textwrap.dedent(inspect.getsource(config))).body[0]
    assert isinstance(tree, ast.ClassDef)
    for before, after in zip(tree.body, tree.body[1:], strict=False):
        match before, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = " ".join(text.split())
    return docs


def _value(kind: Any, given: Any, key: str) -> Any:
    """A flag's text in the form that a config file would have it; what does not fit is left for the config to refuse."""
    if get_origin(kind) is tuple:
        parts = [part for item in given for part in item.split(",") if part]
        return [_value(bare(get_args(kind)[0]), part, key) for part in parts]
    if get_origin(kind) is dict:
        pairs = [item.partition("=") for item in given]
        for name, equals, _ in pairs:
            if not equals:
                raise ConfigError(f"--{key.replace('_', '-')}: {name!r} is not a pair; expected NAME=VALUE")
        return {name: _value(bare(get_args(kind)[1]), value, key) for name, _, value in pairs}
    if isinstance(given, str) and kind in (int, float):
        try:
            return kind(given)
        except ValueError:
            return given
    return given


def _metavar(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "|".join(str(value) for value in get_args(kind))
    if get_origin(kind) is dict:
        return "NAME=VALUE"
    if get_origin(kind) is tuple:
        return _metavar(bare(get_args(kind)[0]))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(member.name for member in kind)
    return {int: "N", float: "X"}.get(kind, "NAME" if kind is str else "PATH")


def _default(value: Any) -> str:
    if value is None or value == "" or (isinstance(value, (tuple, dict)) and not value):
        return ""
    if isinstance(value, tuple):
        value = " ".join(map(str, value))
    return f"(default: {value.name if isinstance(value, Enum) else value})"


def _summary(config: type) -> str:
    return (inspect.getdoc(config) or "").splitlines()[0].replace("%", "%%")
