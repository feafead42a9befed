"""Tables that are no text: Parquet and Arrow, with names of pictures or with the pictures themselves, and Excel's."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from densecap_search.collection.delimited import rows_of_cells
from densecap_search.collection.images import DECODING_ERRORS, open_stream
from densecap_search.collection.rows import IMAGE_COLUMNS, matches
from densecap_search.collection.source import Row, Rows, Source
from densecap_search.collection.unpacked import unpacked_rows
from densecap_search.collection.walk import is_picture
from densecap_search.errors import CollectionError, MissingPackage

_ARROW, _STREAM, _PARQUET, _ZIP = b"ARROW1", b"\xff\xff\xff\xff", b"PAR1", b"PK\x03\x04"
_SUFFIXES = {"JPEG": ".jpg", "TIFF": ".tif", "MPO": ".jpg"}  # where Pillow's name is not the ending
_BATCH = 256  # rows in memory at a time, which may hold pictures
_PICTURE_COLUMNS = (*IMAGE_COLUMNS, "jpg", "png", "jpeg", "webp", "image_bytes", "img_bytes", "bytes")


def is_parquet(source: Source) -> str | None:
    """Parquet's four letters."""
    return "Parquet's mark at its beginning" if source.start.startswith(_PARQUET) else None


def is_arrow(source: Source) -> str | None:
    """An Arrow file, or the stream that Hugging Face's save_to_disk writes."""
    stream = source.start.startswith(_STREAM) and source.path.suffix.lower() == ".arrow"
    return "Arrow's mark at its beginning" if source.start.startswith(_ARROW) or stream else None


def read_columnar(source: Source) -> Rows:
    """A Parquet or Arrow table, some rows in memory at a time; pictures that it holds are taken out into the cache."""
    kind = "Parquet" if is_parquet(source) else "Arrow"
    column = _checked(source.path, kind, lambda: _picture_column(source))
    if column is not None:
        source.notes.append(f"pictures out of the column {column}, now in the cache")
        yield from unpacked_rows(source.path, 0, lambda file, folder: _take_out(file, kind, column, folder),
                                 source.notes)
        return
    rows = _rows(source.path, kind)
    number = 0
    while (row := _checked(source.path, kind, lambda: next(rows, None))) is not None:
        number += 1
        yield number, {key: _plain(value) for key, value in row.items()}


def is_excel(source: Source) -> str | None:
    """A ZIP archive that holds a workbook."""
    named = b"xl/" in source.start or source.path.suffix.lower() in (".xlsx", ".xlsm")
    return "an Excel workbook" if source.start.startswith(_ZIP) and named else None


def read_excel(source: Source) -> Rows:
    """The first sheet that holds anything, as a table."""
    try:
        import openpyxl
    except ImportError as error:
        raise MissingPackage(f"{source.path} is an Excel workbook, which needs the extra `excel` "
                             "(pip install 'densecap-search[excel]'); or save it as CSV in UTF-8") from error
    try:
        book = openpyxl.load_workbook(source.path, read_only=True, data_only=True)
        sheets = [sheet for sheet in book.worksheets if any(_cells(sheet))]
        if len(sheets) > 1:
            source.notes.append(f"only the first of {len(sheets)} sheets is read, {sheets[0].title}")
        table = list(_cells(sheets[0])) if sheets else []
    except Exception as error:  # whatever a damaged archive makes openpyxl raise: KeyError, BadZipFile, ParseError, …
        raise CollectionError(f"cannot read {source.path} as an Excel workbook: "
                              f"{' '.join(str(error).split()) or type(error).__name__}") from error
    yield from rows_of_cells(table, source)


def _cells(sheet: Any) -> Iterator[list[Any]]:
    """The rows of a sheet that hold anything, without the empty cells at their ends; numbers stay numbers."""
    for row in sheet.iter_rows(values_only=True):
        cells = ["" if value is None else _plain(value) for value in row]
        while cells and cells[-1] == "":
            cells.pop()
        if cells:
            yield cells


def _checked(path: Path, kind: str, step: Any) -> Any:
    """What a step of pyarrow gives; its errors in one sentence."""
    try:
        import pyarrow
    except ImportError as error:
        raise MissingPackage(f"{path} is {kind}, which needs the extra `parquet` "
                             "(pip install 'densecap-search[parquet]')") from error
    try:
        return step()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise CollectionError(f"cannot read {path} as {kind}: {' '.join(str(error).split())}") from error


def _rows(path: Path, kind: str) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    if kind == "Parquet":
        with pyarrow.parquet.ParquetFile(path) as table:
            for batch in table.iter_batches(batch_size=_BATCH):
                yield from batch.to_pylist()
        return
    with pyarrow.memory_map(str(path)) as file:
        for batch in _batches(file):
            for start in range(0, batch.num_rows, _BATCH):
                yield from batch.slice(start, _BATCH).to_pylist()


def _batches(file: Any) -> Iterator[Any]:
    import pyarrow

    if file.read(len(_ARROW)) == _ARROW:
        file.seek(0)
        reader = pyarrow.ipc.open_file(file)
        yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
    else:
        file.seek(0)
        yield from pyarrow.ipc.open_stream(file)


def _picture_column(source: Source) -> str | None:
    """The column that holds pictures: objects with bytes, or bytes under a name of a picture."""
    import pyarrow
    import pyarrow.parquet

    if is_parquet(source):
        with pyarrow.parquet.ParquetFile(source.path) as table:
            schema = table.schema_arrow
    else:
        with pyarrow.memory_map(str(source.path)) as file:
            schema = next((batch.schema for batch in _batches(file)), pyarrow.schema([]))
    wanted = source.reading.image_column
    names = []
    for field in schema:
        kinds = pyarrow.types
        is_object = kinds.is_struct(field.type) and field.type.get_field_index("bytes") >= 0
        is_bytes = kinds.is_binary(field.type) or kinds.is_large_binary(field.type)
        if is_object or (is_bytes and matches(field.name, (wanted,) if wanted else _PICTURE_COLUMNS)):
            names.append(field.name)
    return next((name for name in names if wanted is None or matches(name, (wanted,))), None)


def _take_out(file: Path, kind: str, column: str, folder: Path) -> Iterator[Row]:
    """Write the pictures of a table to a folder, a row at a time; yields its rows."""
    rows, number, names = _rows(file, kind), 0, set()
    while (row := _checked(file, kind, lambda: next(rows, None))) is not None:
        number += 1
        held = row[column]
        data = held.get("bytes") if isinstance(held, dict) else held
        path = str(held.get("path") or "") if isinstance(held, dict) else ""
        if not data:
            yield {"name": path or str(number), "reason": "a row without a picture", "counts": 1}
            continue
        target = folder / f"{number:08d}{_suffix(data, path)}"
        target.write_bytes(data)
        name = PurePosixPath(path.replace("\\", "/")).name or target.name
        name = name if name not in names else f"{number}-{name}"
        names.add(name)
        others = {key: _plain(value) for key, value in row.items() if key != column}
        own = {"own_id" if key == "id" else key: value for key, value in others.items() if key != "image"}
        yield {**own, "image": target.name, "id": name}


def _suffix(data: bytes, path: str) -> str:
    """The ending of a picture by its content; where that says nothing by its name, so that its reader is asked."""
    named = PurePosixPath(path).suffix.lower()
    if is_picture(path):
        return named
    try:
        with open_stream(io.BytesIO(data)) as image:
            return _SUFFIXES.get(image.format or "", f".{(image.format or 'jpg').lower()}")
    except DECODING_ERRORS:
        return ".jpg"


def _plain(value: Any) -> Any:
    """A value as JSON can hold it: dates as text, bytes not at all."""
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool)) or value is None else (
        None if isinstance(value, bytes) else str(value))
