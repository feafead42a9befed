"""A filter as an expression of Milvus, and the fields that it asks.

The values of a picture are kept a second time in letters that no version of Milvus has a rule for: every byte of a text
becomes two of ``a-p`` and ``0-9A-F``, so their order, their beginnings and their parts are those of the bytes, and
nothing that a user writes can end a literal or be a wild card. A number becomes such letters too, in the order of
numbers and without a loss. So a condition means what it means in SQLite (:mod:`filters`), which also says what counts
as a number and how a number is written.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from densecap_search.retrieval.filters import OWN_FIELDS, Both, Compare, Condition, Literal, Missing, Not, known_column
from densecap_search.retrieval.rows import Row

HAS = "has"  # the names of the fields that a picture has; a comparison with one that it lacks is false
TEXT_BYTES = 4000  # of a cell that a filter can see, and fewer where a picture has many long ones:
ALL_BYTES = 60_000  # Milvus takes 65,536 bytes of such fields
_HIGH, _LOW = "abcdefghijklmnop", "0123456789ABCDEF"
_SIGNS = {"=": "==", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_OFFSET = 1 << 15  # makes the rest of an integer that a float64 does not hold positive


def fields_of(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """For each picture the fields by which it is filtered: ``t…`` texts, ``l…`` in small letters, ``n…`` numbers."""
    cells = [[(key, value) for key, value in _cells(row) if value is not None] for row in rows]
    said = iter(_as_sqlite([value for own in cells for _, value in own]))
    made = []
    for own in cells:
        values = [(key, *next(said)) for key, _ in own]
        limit = TEXT_BYTES
        while limit and sum(map(len, (fields := _fields(values, limit)).values())) > ALL_BYTES:
            limit //= 2
        made.append(fields)
    return made


def _fields(values: list[tuple[str, str, int | float | None]], limit: int) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, text, number in values:
        fields["t" + key] = letters(text.encode("utf-8", "replace")[:limit])
        fields["l" + key] = letters(_small(text).encode("utf-8", "replace")[:limit])
        if number is not None:
            fields["n" + key] = number_letters(number)
    return {**fields, HAS: [key for key in fields if not key.startswith("l")]}


def expression(condition: Condition, columns: Collection[str]) -> str:
    """columns: of the users' tables. Errors: ConfigError for a column that is not there."""
    if isinstance(condition, Both):
        word = " or " if condition.any else " and "
        return f"({word.join(expression(part, columns) for part in condition.parts)})"
    if isinstance(condition, Not):
        return f"(not {expression(condition.part, columns)})"
    name = known_column(condition.column, {column: _user(column) for column in columns}, _OWN)
    if isinstance(condition, Missing):
        return f"(not {_has('t' + name)})"
    compared = _compared(name, condition, is_date=name == _OWN["date"])
    kind = "t" if isinstance(condition.value, str) or name == _OWN["date"] else "n"
    return f"({_has(kind + name)} and {compared})"


def letters(data: bytes) -> str:
    """Bytes in the alphabet above; never a part of another but at the same bytes."""
    return "".join(_HIGH[byte >> 4] + _LOW[byte & 15] for byte in data)


def number_letters(value: int | float) -> str:
    """A number: letters in the order of numbers, equal for equal ones."""
    nearest = float(value)
    rest = int(value) - int(nearest) if isinstance(value, int) else 0
    bits = struct.unpack(">Q", struct.pack(">d", nearest + 0.0))[0]  # -0.0 is 0.0
    ordered = bits ^ ((1 << 64) - 1) if bits >> 63 else bits | 1 << 63  # of negative ones a larger size is less
    return letters(ordered.to_bytes(8, "big") + (rest + _OFFSET).to_bytes(2, "big"))


def _compared(name: str, condition: Compare, *, is_date: bool) -> str:
    sign, value = condition.sign, condition.value
    if is_date:
        value = str(value)
    if not isinstance(value, str):
        return f"n{name} {_SIGNS[sign]} \"{number_letters(value)}\""
    asked = letters(value.encode("utf-8", "replace"))
    if sign == "contains":
        return f"l{name} like \"%{letters(_small(value).encode('utf-8', 'replace'))}%\""
    if sign == "under":
        folder = letters((value.strip("/") or value).encode("utf-8", "replace"))
        return f"(t{name} == \"{folder}\" or t{name} like \"{folder}{letters(b'/')}%\")"
    if is_date and sign in ("=", "<=", ">"):  # as much of it as was written: 2019, 2019-05, …
        begins = f"t{name} like \"{asked}%\""
        return {"=": begins, "<=": f"(t{name} < \"{asked}\" or {begins})",
                ">": f"(t{name} > \"{asked}\" and not {begins})"}[sign]
    return f"t{name} {_SIGNS[sign]} \"{asked}\""


def _has(field: str) -> str:
    return f'array_contains({HAS}, "{field}")'


def _user(column: str) -> str:
    """The name of a field for a column of a user's table."""
    return "_u" + letters(column.encode("utf-8", "replace"))


_OWN: Mapping[str, str] = {name: f"_{field}" for name, field in OWN_FIELDS.items()}


def _cells(row: Row) -> list[tuple[str, Literal | None]]:
    own = [(f"_{field}", getattr(row, field)) for field in OWN_FIELDS.values()]
    return own + [(_user(name), value) for name, value in row.columns.items()]


def _small(text: str) -> str:
    """As SQLite's lower(): A to Z."""
    return "".join(chr(ord(letter) + 32) if "A" <= letter <= "Z" else letter for letter in text)


def _as_sqlite(values: list[Literal]) -> list[tuple[str, int | float | None]]:
    """Of each value its text, and the number that it counts as where a number is asked for."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("CREATE TABLE cells (place INTEGER PRIMARY KEY, said, counted NUMERIC)")
        plain = [value.encode("utf-8", "replace").decode() if isinstance(value, str) else
                 value if isinstance(value, float) or -(1 << 63) <= value < 1 << 63 else str(value) for value in values]
        connection.executemany("INSERT INTO cells (said, counted) VALUES (?, ?)", zip(plain, plain, strict=True))
        rows = connection.execute("SELECT CAST(said AS TEXT), CASE typeof(counted) WHEN 'text' THEN NULL ELSE counted "
                                  "END FROM cells ORDER BY place").fetchall()
    finally:
        connection.close()
    return [(text, number) for text, number in rows]
