"""Tables of text: CSV and its relatives, and Flickr's `NAME.jpg#0<TAB>caption`. A row is a mapping as in the file."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from densecap_search.collection.no_table import refuse_binary
from densecap_search.collection.records import Skipped
from densecap_search.collection.rows import IMAGE_COLUMNS, matches
from densecap_search.collection.source import Rows, Source
from densecap_search.collection.text_files import text_lines
from densecap_search.collection.walk import is_picture

csv.field_size_limit(1 << 30)  # captions of any length: the default of 128 KiB is a limit on other people's data
_ABOVE = 20  # rows in which a header is looked for
_NUMBER_FIRST = re.compile(r"\s*(\d{1,3})\s{2,}(\S.*)", re.DOTALL)  # a number and a caption whose delimiter is missing
_TOKEN = re.compile(r"(.+\.\w{3,5})#\d+\t(.*)", re.DOTALL)


def is_tokens(source: Source) -> str | None:
    """Lines as in Flickr8k.token.txt."""
    match = not source.path.is_dir() and _TOKEN.fullmatch(source.text.split("\n", 1)[0].rstrip("\r"))
    return "lines of NAME#NUMBER, a tab, and a caption" if match else None


def read_tokens(source: Source) -> Rows:
    """A caption a line; those of one picture are numbered behind its name."""
    refuse_binary(source)
    for number, line in enumerate((line for line in text_lines(source.path) if line.strip()), start=1):
        text = line.removesuffix("\n").removesuffix("\r")
        match = _TOKEN.fullmatch(text)
        yield number, ({"image": match[1], "caption": match[2]} if match
                       else Skipped(text[:80], "not NAME#NUMBER, a tab, and a caption", number))


def is_csv(source: Source) -> str | None:
    """Every other file: the first line then says whether it is one."""
    if source.path.is_dir():
        return None
    return f"a table whose cells are set apart by {_DELIMITERS[_layout(source)[0]]}"


def read_csv(source: Source) -> Rows:
    """Comma, semicolon, tab or pipe; with or without a header, and lines above it; quoted as CSV is."""
    refuse_binary(source)
    delimiter, above, blanks = _layout(source)
    lines = _Lines(islice(text_lines(source.path), source.reading.skip_lines or 0, None))
    rows = (cells for cells in _cells(lines, delimiter, blanks) if cells)
    if passed := [delimiter.join(cells) for cells in islice(rows, above)]:
        shown = " / ".join(line.strip()[:40] for line in passed[:3])
        source.notes.append(f"{len(passed)} {'line' if len(passed) == 1 else 'lines'} above the header: {shown}")
    yield from rows_of_cells(rows, source)


def rows_of_cells(table: Iterable[Sequence[Any]], source: Source) -> Rows:
    """Rows of cells, of which the first may be a header, as mappings; what is odd about them is noted."""
    rows = iter(table)
    first = next(rows, None)
    if first is None:
        return
    header = _header([str(cell) for cell in first], source.reading.image_column)
    data = rows if header == [str(cell) for cell in first] else chain([first], rows)
    names = _unique(header, source.notes)
    short: list[int] = []
    mended: list[int] = []
    for number, cells in enumerate(data, start=1):
        if len(cells) > len(names) and any(str(cell).strip() for cell in cells[len(names):]):
            reason = f"{len(cells)} cells where the header has {len(names)}; put captions in quotes"
            yield number, Skipped(str(cells[0]), reason, number)
            continue
        if len(cells) == len(names) - 1 and (match := _NUMBER_FIRST.fullmatch(str(cells[-1]))):
            cells = [*cells[:-1], match[1], match[2]]  # as in a row of Flickr30k's results.csv
            mended.append(number)
        short += [number] if len(cells) < len(names) else []
        yield number, dict(zip(names, [*cells, *[""] * (len(names) - len(cells))], strict=False))
    for odd, what in ((short, "shorter than the header, the missing cells taken as empty"),
                      (mended, "a cell short; the last is cut behind its number")):
        if odd:
            shown = ", ".join(map(str, odd[:5])) + ", …" * (len(odd) > 5)
            source.notes.append(f"{len(odd)} {'row' if len(odd) == 1 else 'rows'} {what} (row {shown})")


def _unique(header: Sequence[str], notes: list[str]) -> list[str]:
    """Column names of which no two are alike: the second `caption` is `caption (2)`."""
    seen: Counter[str] = Counter()
    names: list[str] = []
    for name in header:
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    twice = [name for name, count in seen.items() if count > 1 and name.strip()]
    if twice:
        notes.append(f"several columns are called {', '.join(twice[:3])}; the second is {twice[0]} (2)")
    return names


class _Lines:
    """The lines of a CSV file, which can be handed back: a stray quote must not swallow the rows below it."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._fresh = (part for line in lines for part in _split_returns(line))
        self._waiting: deque[str] = deque()
        self.taken: list[str] = []  # since the row began

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._waiting.popleft() if self._waiting else next(self._fresh)
        self.taken.append(line)
        return line

    def hand_back(self) -> str:
        """The row's first line; the others will come again."""
        first, *others = self.taken
        self._waiting.extendleft(reversed(others))
        return first


def _split_returns(line: str) -> list[str]:
    """A line cut where old Macs ended theirs."""
    return re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", line) if "\r" in line[:-2] else [line]


def _cells(lines: _Lines, delimiter: str, blanks: bool) -> Iterator[list[str]]:
    """Rows as cells. Where quotes do not stand as CSV wants them, the line is taken as it is, quotes and all.

    blanks: those after a delimiter are no part of the cell.
    """
    reader = csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=blanks)
    while True:
        lines.taken.clear()
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error:
            cells = lines.hand_back().rstrip("\r\n").split(delimiter)
            yield [cell.lstrip(" ") for cell in cells] if blanks else cells


_DELIMITERS = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "bars"}


def _layout(source: Source) -> tuple[str, int, bool]:
    """The delimiter, how many rows stand above the header, and whether a blank follows each delimiter.

    The delimiter is that with which a row has a column we know, or else the one that cuts most lines alike.
    """
    text = "".join(io.StringIO(source.text, newline="").readlines()[source.reading.skip_lines or 0:])
    named = re.match(r"sep=(.)\r?\n", text)  # what Excel reads and writes
    if named and named[1] in _DELIMITERS:
        rows = _first_rows(text, named[1])
        return named[1], 1, _blank_led(rows[1:2])
    tried = {delimiter: _first_rows(text, delimiter) for delimiter in _DELIMITERS}
    words = (source.reading.image_column,) if source.reading.image_column else IMAGE_COLUMNS

    def header_of(rows: Sequence[Sequence[str]]) -> int | None:
        return next((number for number, row in enumerate(rows[:_ABOVE])
                     if len(row) > 1 and any(matches(cell, words) for cell in row)), None)

    def score(delimiter: str) -> tuple[bool, int]:
        rows = tried[delimiter]
        header = header_of(rows)
        width = len(rows[header or 0]) if rows else 1
        return header is not None, sum(len(row) == width for row in rows) if width > 1 else 0

    best = max(_DELIMITERS, key=score)
    rows, above = tried[best], header_of(tried[best]) or 0
    if source.reading.skip_lines is not None or any(is_picture(cell.strip()) for row in rows[:above] for cell in row):
        above = 0  # a row with a picture is no title
    return best, above, _blank_led(rows[above:above + 1])


def _first_rows(text: str, delimiter: str) -> list[list[str]]:
    rows: list[list[str]] = []
    try:
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter):
            rows += [row] if row else []
            if len(rows) == 50:
                break
    except csv.Error:
        pass  # what was read before counts
    return rows


def _blank_led(rows: Sequence[Sequence[str]]) -> bool:
    """Whether every cell of a header but the first begins with a blank."""
    return any(len(row) > 1 and all(cell.startswith(" ") and cell.strip() for cell in row[1:]) for row in rows)


def _header(cells: list[str], image_column: str | None) -> list[str]:
    """The first line where it names columns; where it is data already, invented names."""
    if image_column is not None or any(matches(cell, IMAGE_COLUMNS) for cell in cells):
        return cells
    pictures = [index for index, cell in enumerate(cells) if is_picture(cell.strip())]
    if not pictures:
        return cells
    rest = [index for index in range(len(cells)) if index != pictures[0]]
    caption = max(rest, key=lambda index: len(cells[index]), default=-1)
    return ["image" if i == pictures[0] else "caption" if i == caption else f"column{i + 1}" for i in range(len(cells))]
