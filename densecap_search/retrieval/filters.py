"""``--where``: which pictures may be found, as ``year >= 1990 and (place = 'Lyon' or folder under 'trips/2019')``.

A condition is read into a tree and the tree becomes SQL with parameters; nothing that a user writes is pasted into it.

    column = value   !=  <  <=  >  >=     a number compares with cells that are numbers, a 'text' with texts
    column in ('a', 'b')                  column between 1990 and 1999        column contains 'part of it'
    column is missing                     folder under 'trips'                and, or, not, ( )

A comparison with a cell that is missing is false, and ``not`` turns false into true.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from densecap_search.errors import ConfigError
from densecap_search.retrieval.rows import Rows
from densecap_search.retrieval.vectors import Numbers

# What every picture has, where its table has no column of that name; on the right as rows name it.
OWN_FIELDS: Mapping[str, str] = {
    "folder": "folder", "split": "split", "date": "taken", "collection": "source", "id": "image_id", "path": "image",
    "group": "group", "burst": "burst",
}
_COMPARISONS = ("=", "<", "<=", ">", ">=")
_WORDS = ("and", "or", "not", "in", "between", "contains", "under", "is", "missing")
_TOKEN = re.compile(r"""\s*(?:
    (?P<number>-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
    | '(?P<text>(?:[^']|'')*)' | "(?P<quoted>(?:[^"]|"")*)" | (?P<word>[^\W\d]\w*) | (?P<sign><=|>=|!=|<>|==|[=<>(),])
    )""", re.VERBOSE)
_DEEPEST = 50  # parentheses within each other
_INFINITE = "CAST(9e999 AS NUMERIC)"  # texts sort after every number in SQLite

Literal = str | int | float


@dataclass(frozen=True)
class Compare:
    """A column and a value; sign: one of ``= < <= > >=``, ``contains``, ``under``."""

    column: str
    sign: str
    value: Literal


@dataclass(frozen=True)
class Missing:
    """A column that has no value."""

    column: str


@dataclass(frozen=True)
class Not:
    """The opposite."""

    part: Condition


@dataclass(frozen=True)
class Both:
    """``and``, or ``or`` where ``any`` is true."""

    parts: tuple[Condition, ...]
    any: bool = False


Condition = Compare | Missing | Not | Both


def parse_filter(text: str) -> Condition:
    """A condition as a tree. Errors: ConfigError that shows where it stops making sense."""
    return _Parser(text).whole()


def columns_of(condition: Condition) -> set[str]:
    """The columns that a condition names, as it writes them."""
    if isinstance(condition, Both):
        return set().union(*map(columns_of, condition.parts))
    return columns_of(condition.part) if isinstance(condition, Not) else {condition.column}


def find_numbers(rows: Rows, where: str) -> Numbers:
    """The pictures that a condition lets through, ascending, int64. Errors: ConfigError."""
    sql, values = to_sql(parse_filter(where), rows.columns)
    numbers = rows.query(f"SELECT number FROM pictures WHERE {sql} ORDER BY number", values)
    return np.fromiter((number for number, in numbers), np.int64, len(numbers))


def to_sql(condition: Condition, columns: Mapping[str, str]) -> tuple[str, list[Literal]]:
    """SQL over the view ``pictures``, which is 0 or 1 and never NULL, and its parameters.

    columns: of the users' tables, name → as rows name it.
    """
    if isinstance(condition, Both):
        parts = [to_sql(part, columns) for part in condition.parts]
        sql = _joined([sql for sql, _ in parts], "OR" if condition.any else "AND")
        return sql, [value for _, values in parts for value in values]
    if isinstance(condition, Not):
        sql, values = to_sql(condition.part, columns)
        return f"(NOT {sql})", values
    name = known_column(condition.column, columns)
    if isinstance(condition, Missing):
        return f'("{name}" IS NULL)', []
    sql, values = _compared(f'"{name}"', condition, is_date=name == OWN_FIELDS["date"])
    return f"coalesce({sql}, 0)", values


def _joined(parts: Sequence[str], word: str) -> str:
    """In halves of halves: SQLite allows no expression that is 1,000 deep."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return f"({_joined(parts[:middle], word)} {word} {_joined(parts[middle:], word)})"


def _compared(name: str, condition: Compare, *, is_date: bool) -> tuple[str, list[Literal]]:
    sign, value = condition.sign, condition.value
    if is_date:
        value = str(value)  # 2019 is a year
    if not isinstance(value, str):
        return f"({name} {sign} CAST(? AS NUMERIC) AND {name} <= {_INFINITE})", [value]
    text = f"CAST({name} AS TEXT)"
    if sign == "contains":
        return f"instr(lower({text}), lower(?)) > 0", [value]
    if sign == "under":
        folder = value.strip("/") if value.strip("/") else value
        return f"({text} = ? OR substr({text}, 1, length(?) + 1) = ? || '/')", [folder, folder, folder]
    if is_date:  # as much of it as was written: 2019, 2019-05, …
        return f"substr({text}, 1, length(?)) {sign} ?", [value, value]
    return f"{text} {sign} ?", [value]


def known_column(column: str, columns: Mapping[str, str], own: Mapping[str, str] = OWN_FIELDS) -> str:
    """As rows (or another store, with ``own``) name it: as written, else whatever its case; a table's before ours.

    Errors: ConfigError that lists the columns.
    """
    named = {**own, **columns}
    if column in named:
        return named[column]
    alike = [name for name in (*columns, *OWN_FIELDS) if name.casefold() == column.casefold()]
    if alike:
        return named[alike[0]]
    raise ConfigError(f"the filter names {column!r}, which is no column of this index; it has: "
                      f"{', '.join(dict.fromkeys([*columns, *OWN_FIELDS]))}")


@dataclass(frozen=True)
class _Token:
    kind: str  # number, text, quoted, word, sign, end
    text: str
    place: int


def _tokens(text: str) -> Iterator[_Token]:
    place = 0
    while text[place:].strip():
        match = _TOKEN.match(text, place)
        if match is None or match.lastgroup is None:
            at = place + len(text[place:]) - len(text[place:].lstrip())
            raise ConfigError(f"the filter cannot be read from {text[at:at + 20]!r} on; an example: "
                              "year >= 1990 and place = 'Lyon'")
        kind, value = match.lastgroup, match[match.lastgroup]
        if kind == "text":
            value = value.replace("''", "'")
        elif kind == "quoted":
            value = value.replace('""', '"')
        yield _Token(kind, value, match.start(match.lastgroup))
        place = match.end()
    yield _Token("end", "", len(text))


class _Parser:
    """By recursive descent: or, and, not, comparison."""

    def __init__(self, text: str) -> None:
        self._text, self._tokens, self._at, self._depth = text, list(_tokens(text)), 0, 0

    def whole(self) -> Condition:
        condition = self._either()
        if self._next.kind != "end":
            self._fail("and, or, or the end")
        return condition

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self, *texts: str) -> bool:
        """Step over a word or sign if it is the next."""
        token = self._next
        if token.kind in ("word", "sign") and token.text.lower() in texts:
            self._at += 1
            return True
        return False

    def _either(self) -> Condition:
        parts = [self._all()]
        while self._take("or"):
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else Both(tuple(parts), any=True)

    def _all(self) -> Condition:
        parts = [self._one()]
        while self._take("and"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else Both(tuple(parts))

    def _one(self) -> Condition:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ConfigError(f"the filter is nested more than {_DEEPEST} deep")
        try:
            if self._take("not"):
                return Not(self._one())
            if self._take("("):
                condition = self._either()
                self._need(")")
                return condition
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> Condition:
        token = self._next
        if token.kind not in ("word", "quoted") or (token.kind == "word" and token.text.lower() in _WORDS):
            self._fail("a column")
        self._at += 1
        column, opposite = token.text, self._take("not")
        condition = self._condition(column)
        return Not(condition) if opposite else condition

    def _condition(self, column: str) -> Condition:
        if self._take("in"):
            self._need("(")
            values = [self._value()]
            while self._take(","):
                values.append(self._value())
            self._need(")")
            return Both(tuple(Compare(column, "=", value) for value in values), any=True)
        if self._take("between"):
            low = self._value()
            self._need("and")
            return Both((Compare(column, ">=", low), Compare(column, "<=", self._value())))
        if self._take("is"):
            opposite = self._take("not")
            self._need("missing", "null")
            return Not(Missing(column)) if opposite else Missing(column)
        if self._take("!=", "<>"):
            return Not(Compare(column, "=", self._value()))
        for sign in ("contains", "under"):
            if self._take(sign):
                value = self._value()
                return Compare(column, sign, str(value))
        if self._take("=="):
            return Compare(column, "=", self._value())
        for sign in _COMPARISONS:
            if self._take(sign):
                return Compare(column, sign, self._value())
        self._fail("a comparison such as = or >=")

    def _value(self) -> Literal:
        token = self._next
        if token.kind == "number":
            self._at += 1
            whole = token.text.removeprefix("-").isdecimal() and len(token.text) < 19  # what 64 bits hold
            return int(token.text) if whole else float(token.text)
        if token.kind == "text":
            self._at += 1
            return token.text
        self._fail("a number, or a text in single quotes")

    def _need(self, *texts: str) -> None:
        if not self._take(*texts):
            self._fail(texts[0])

    def _fail(self, wanted: str) -> NoReturn:
        token = self._next
        instead = f"{token.text!r}" if token.kind != "end" else "its end"
        raise ConfigError(f"the filter {self._text!r} has {instead} where {wanted} should be; an example: "
                          "year >= 1990 and place = 'Lyon'")
