"""Queries in SQL over recorded runs, answered by DuckDB from a database in memory that can reach no file.

The lines of the kinds of event that a query names are handed over as they are, so nothing is read that was not asked for, and a line that
is only half written is no part of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from esper.karn.event_index import column_of, without_words
from esper.karn.query_tables import PLACE, TABLES, Table
from esper.karn.record import Record
from esper.leyline.codec import field_kinds
from esper.leyline.errors import ConfigError, EsperError, QueryError, nearest
from esper.leyline.events import EVENT_TYPES

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SETTINGS = {
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
"""No files, no network, no extensions, and none of this process's variables."""
ALLOWED = ("SELECT", "EXPLAIN")
"""Kinds of statement that change nothing; DESCRIBE and SHOW are of the first."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a query gave."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]

    def dicts(self) -> list[dict[str, Any]]:
        """Each row by the names of its columns."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def ask(records: Mapping[str, Record], sql: str) -> Answer:
    """Answer one query. records: by name; of several, every view has the column `run`.

    Raises QueryError for what is no query or cannot be answered, EventError for a damaged record, ConfigError without DuckDB.
    """
    found = _answer(_duckdb(), records, sql)
    if isinstance(found, Answer):
        return found
    kind, sentence = found
    raise kind(sentence)  # made here, so that no traceback keeps the database alive


def _answer(duckdb: Any, records: Mapping[str, Record], sql: str) -> Answer | tuple[type[EsperError], str]:
    """What a query gives, or what is wrong with it."""
    connection = duckdb.connect(":memory:", config=SETTINGS)
    wanted: set[str] = set()
    try:
        _check(connection, sql)
        wanted = _wanted(connection, sql)
        _fill(connection, records, wanted)
        connection.execute("set lock_configuration = true")
        found = connection.execute(sql)
        columns = _distinct([column[0] for column in found.description or ()])
        return Answer(columns, found.fetchall())
    except duckdb.Error as error:
        return QueryError, _sentence(str(error), wanted)
    except EsperError as error:
        return type(error), str(error)
    finally:
        connection.close()


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError:
        raise ConfigError("queries need DuckDB, which is not installed: pip install 'esper-lite[query]'") from None
    return duckdb


def _check(connection: DuckDBPyConnection, sql: str) -> None:
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise QueryError(f"expected one query, found {len(statements) or 'none'}; ask one after another")
    kind = statements[0].type.name
    if kind not in ALLOWED:
        raise QueryError(f"a query only looks: expected SELECT, WITH, DESCRIBE, SHOW or EXPLAIN, found {kind}")


def _wanted(connection: DuckDBPyConnection, sql: str) -> set[str]:
    """The views that a query names, and those that these are made from."""
    named = {name.lower() for name in connection.get_table_names(re.sub(r"(?is)^\s*explain\s+(analyze\s+)?", "", sql))}
    return {each for name in named if name in TABLES for each in (name, *TABLES[name].needs)}


def _fill(connection: DuckDBPyConnection, records: Mapping[str, Record], wanted: set[str]) -> None:
    """Make every view, so that all can be described, and fill those that are wanted."""
    several = len(records) > 1
    for table in TABLES.values():
        if not table.sql:
            columns = ({"run": "VARCHAR"} if several else {}) | table.columns
            connection.execute(f'create table "{table.name}" ({", ".join(f"{_quoted(name)} {kind}" for name, kind in columns.items())})')
    for name, record in records.items():
        record.check()
        for table in (TABLES[each] for each in sorted(wanted)):
            if table.event:
                _fill_events(connection, table, record, name if several else None)
            elif table.rows is not None:
                rows = [{each: row[each] for each in table.columns} for row in table.rows(record)]
                _insert(connection, table, [json.dumps(row) for row in rows], table.columns, name if several else None)
    for table in TABLES.values():
        if table.sql:
            joined = {"and_run_t": "and t.run = e.run", "and_run_c": "and c.run = e.run"} if several else {"and_run_t": "", "and_run_c": ""}
            select = table.sql.format(run="run," if several else "", **joined)
            connection.execute(f'create view "{table.name}" as {select}')


def _fill_events(connection: DuckDBPyConnection, table: Table, record: Record, run: str | None) -> None:
    fields = {name: table.columns[column_of(table.name, name)] for name in field_kinds(EVENT_TYPES[table.name])}  # type: ignore[arg-type]
    members = ", ".join(f"{_quoted(name)} {kind}" for name, kind in fields.items())
    numbers = record.numbers(table.name)
    lines = [without_words(line, table.name).decode("ascii", "backslashreplace") for line in record.lines(numbers)]
    if len(lines) < len(numbers):
        raise QueryError(f"the run {record.path} went on from an earlier checkpoint while it was asked; ask again")
    try:
        _insert(connection, table, lines, {**PLACE, "data": f"STRUCT({members})"}, run)
    except _duckdb().Error:
        record.rows(table.name)  # which finds the line that is damaged
        record.check()
        raise


def _insert(connection: DuckDBPyConnection, table: Table, lines: list[str], schema: dict[str, str], run: str | None) -> None:
    """Put rows that are lines of JSON into a table; `data`, where the schema has it, is the last and is taken apart."""
    if not lines:
        return
    values = ", ".join("unnest(r.data)" if name == "data" else f"r.{_quoted(name)}" for name in schema)
    front = "" if run is None else "$run, "
    source = "select json_transform(line, $schema) as r from (select unnest(string_split($text, chr(10))) as line)"
    given = {"schema": json.dumps(schema), "text": "\n".join(lines)} | ({} if run is None else {"run": run})
    connection.execute(f'insert into "{table.name}" select {front}{values} from ({source})', given)


def _distinct(names: list[str]) -> tuple[str, ...]:
    """The names with numbers behind those that are there already."""
    found: list[str] = []
    for name in names:
        made, number = name, 1
        while made in found:
            number += 1
            made = f"{name}_{number}"
        found.append(made)
    return tuple(found)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _sentence(message: str, asked: set[str]) -> str:
    """DuckDB's message in one sentence, with the nearest view, or the nearest column of the views that were asked."""
    first = message.split("\n\n")[0].replace("\n", " ").strip()
    kind, _, text = first.partition(" Error: ")
    text = (text or kind).rstrip("!. ")
    if found := re.search(r"Table with name (.+?) does not exist", text):
        return f"there is no view {found[1]!r}; {nearest(found[1], TABLES)}"
    if found := re.search(r'Referenced column "(.+?)" not found', text):
        return f"there is no column {found[1]!r}; {nearest(found[1], {column for name in asked for column in TABLES[name].columns})}"
    if kind == "Permission":
        return f"a query reaches no files: {text[:1].lower()}{text[1:]}"
    return f"the query cannot be answered: {text[:1].lower()}{text[1:]}"
