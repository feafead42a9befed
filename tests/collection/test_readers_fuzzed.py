"""Whatever a table holds: no exception but ours, and no row lost."""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from densecap_search.collection.readers import READERS, decode, read_collection
from densecap_search.config import Reading
from densecap_search.errors import DensecapError

NAMES = ("1.jpg", "2.jpg", "sub/3.png")
# tests/slow/test_readers_fuzzed.py runs 1,500 each, `make fuzz` 10,000
FUZZ = settings(max_examples=int(os.environ.get("DENSECAP_FUZZ", "60")), deadline=None,
                suppress_health_check=list(HealthCheck))
names = st.sampled_from([*NAMES, "./1.jpg", "sub\\3.png", "gone.jpg", "", "a\0b", "~nobody/x.jpg", "x" * 300])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=5)


def folder_with_pictures() -> Path:
    folder = Path(tempfile.mkdtemp())
    (folder / "sub").mkdir()
    for name in NAMES:
        Image.new("RGB", (2, 2)).save(folder / name)
    return folder


FOLDER = folder_with_pictures()


def rows_named(path: Path, format: str | None = None) -> list[int] | None:
    """Every input row that a record or a skip names; None where the table was refused with a sentence."""
    try:
        found = read_collection(path, Reading(format=format))
    except DensecapError:
        return None
    return sorted([row for record in found.records for row in record.rows] + [skip.row or 0 for skip in found.skipped])


@FUZZ
@given(st.lists(st.dictionaries(st.sampled_from(["caption", "captions", "text", "split", "group", "year"]), values), max_size=8)
       .flatmap(lambda rows: st.tuples(st.just(rows), st.lists(names | values, min_size=len(rows), max_size=len(rows)))))
def test_json_lines_lose_no_row(drawn):
    rows, images = drawn
    path = FOLDER / "t.jsonl"
    lines = [json.dumps({"image": image, "caption": "", **row}) for row, image in zip(rows, images, strict=True)]
    path.write_text("\n".join(lines), encoding="utf-8")
    named = rows_named(path)
    assert named is None or named == list(range(1, len(rows) + 1))


# the csv module of Python 3.10 neither writes nor reads NUL
_LETTERS = st.characters(codec="utf-8", exclude_characters="\0" if sys.version_info < (3, 11) else "")


@FUZZ
@given(st.lists(st.tuples(names, st.text(_LETTERS, max_size=60)), min_size=1, max_size=8), st.sampled_from(",;\t|"))
def test_quoted_csv_loses_no_row_and_changes_no_caption(rows, delimiter):
    path = FOLDER / "t.csv"
    quoted = (delimiter.join('"' + cell.replace('"', '""') + '"' for cell in row) for row in [("image", "caption"), *rows])
    path.write_bytes("".join(f"{line}\r\n" for line in quoted).encode("utf-8", "replace"))
    named = rows_named(path)
    assert named == list(range(1, len(rows) + 1))
    wanted = [caption.encode("utf-8", "replace").decode() for name, caption in rows if name == "2.jpg" and caption.strip()]
    found = [record.captions for record in read_collection(path).records if record.image_id == "2.jpg"]
    assert [*dict.fromkeys(wanted)] == list(found[0] if found else ())


@FUZZ
@given(st.binary(max_size=400))
def test_bytes_of_any_kind_are_read_or_refused_with_a_sentence(data):
    path = FOLDER / "t.bin"
    path.write_bytes(data)
    assert isinstance(decode(data), str)
    named = rows_named(path)
    assert named is None or named == list(range(1, len(named) + 1))


@FUZZ
@given(st.lists(st.text(alphabet='1.jpg,;"\'\n\r\t|ü\0', max_size=24), max_size=8), st.sampled_from([",", ";", "\t"]),
       st.sampled_from(["\n", "\r\n", "\r"]), st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "cp1252"]))
def test_csv_however_badly_quoted_loses_no_row(captions, delimiter, end, encoding):
    path = FOLDER / "t.csv"
    lines = [f"image{delimiter}caption", *(f"1.jpg{delimiter}{caption}" for caption in captions)]
    path.write_bytes(end.join(lines).encode(encoding))
    named = rows_named(path)
    assert named == list(range(1, len(named) + 1))
    if not any(letter in caption for caption in captions for letter in '"\r\n'):
        assert len(named) == len(captions)


KEYS = ("messages", "data", "result", "value", "from", "role", "content", "text", "completions", "1.jpg", "comment", "raw", "image", "file_name", "filename", "image_file", "description", "images", "annotations", "image_id", "id", "caption",
        "captions", "conversations", "paragraph", "dataset_id", "sentences", "segment", "split", "original_filename")
plain = st.sampled_from([None, True, 0, 7, 1.5, float("nan"), "", "1.jpg", "2.jpg", "1", "train", "a caption", [], {}])
objects = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6), max_leaves=12)


@FUZZ
@given(st.lists(st.dictionaries(st.sampled_from(KEYS), objects, max_size=6), max_size=3) | objects,
       st.sampled_from([None, *(name for name in READERS if name not in ("parquet", "webdataset"))]), st.booleans())
def test_json_of_any_shape_is_read_in_any_format_or_refused_with_a_sentence(value, format, as_lines):
    path = FOLDER / "t.json"
    whole = json.dumps(value)
    path.write_text("\n".join(json.dumps(item) for item in value) if as_lines and isinstance(value, list) else whole)
    named = rows_named(path, format)
    assert named is None or named == list(range(1, len(named) + 1))
    if named is not None and isinstance(value, list) and not as_lines and format in ("json", "goal", "sharegpt4v", "vg-paragraphs"):
        assert len(named) == len(value)


@FUZZ
@given(st.binary(max_size=300) | objects.map(lambda value: json.dumps(value).encode()),
       st.sampled_from([".txt", ".json", ".png", ".xmp", ".caption", ".jpg.supplemental-metadata.json", ".csv", ".xml", ""]))
def test_side_files_of_any_bytes_lose_no_picture(data, suffix):
    folder = Path(tempfile.mkdtemp(dir=FOLDER))
    (folder / "1.jpg").write_bytes(data)
    (folder / f"2{suffix}").write_bytes(data)
    (folder / "1.txt").write_bytes(data)
    (folder / f"1{suffix}x").write_bytes(data)
    named = rows_named(folder)
    assert named == list(range(1, len(named) + 1))
    # a file whose rows name the picture is the folder's table, with as many rows as it has
    assert len(named) == (2 if suffix == ".png" else 1) or b"1.jpg" in data


@FUZZ
@given(st.lists(st.tuples(st.none() | st.binary(max_size=30), st.none() | names, st.none() | st.text(max_size=9)), min_size=1, max_size=6))
def test_parquet_with_pictures_of_any_bytes_loses_no_row(rows):
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.schema([("image", pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])), ("text", pyarrow.string())])
    table = [{"image": {"bytes": data, "path": path}, "text": text and text.encode("utf-8", "replace").decode()} for data, path, text in rows]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table, schema), FOLDER / "t.parquet")
    assert rows_named(FOLDER / "t.parquet") == list(range(1, len(rows) + 1))


@FUZZ
@given(st.lists(st.lists(st.none() | st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False) | names.filter(str.isprintable)
                         | st.text(alphabet="ab \n,", max_size=9), min_size=1, max_size=3), max_size=5))
def test_a_workbook_of_any_cells_loses_no_row(rows):
    import openpyxl

    book = openpyxl.Workbook()
    for row in [("image", "caption"), *rows]:
        book.active.append(row)
    book.save(FOLDER / "t.xlsx")
    held = [row for row in rows if any(cell not in (None, "") for cell in row)]
    assert rows_named(FOLDER / "t.xlsx") == list(range(1, len(held) + 1))


@FUZZ
@given(st.lists(st.tuples(names, st.integers(0, 9), st.text(alphabet="ab\t#1.jpg\r", max_size=9)), min_size=1, max_size=6))
def test_lines_of_flickr_tokens_lose_no_row(lines):
    text = "1.jpg#0\tfirst\n" + "".join(f"{name}#{number}\t{caption}\n" for name, number, caption in lines)
    (FOLDER / "t.token").write_bytes(text.encode("utf-8", "replace"))
    assert rows_named(FOLDER / "t.token") == list(range(1, len(lines) + 2))


@FUZZ
@given(st.lists(st.tuples(st.none() | names.filter(str.isprintable), st.text(alphabet="ab<&", max_size=9)), max_size=5), st.booleans())
def test_cvats_images_lose_no_row(images, cut):
    from xml.sax.saxutils import escape, quoteattr

    rows = "".join(f"<image name={quoteattr(name)}><tag><attribute name='caption'>{escape(text)}</attribute></tag></image>"
                   if name else "<image/>" for name, text in images)
    text = f"<?xml version='1.0'?><annotations>{rows}</annotations>"
    (FOLDER / "t.xml").write_text(text[: len(text) // 2] if cut else text, encoding="utf-8")
    named = rows_named(FOLDER / "t.xml", "cvat")
    assert named is None if cut else named == list(range(1, len(images) + 1))


@FUZZ
@given(st.lists(st.tuples(st.text(max_size=12), st.sampled_from(["jpg", "txt", "json", "seg.png", ""]), st.binary(max_size=40)),
                max_size=6), st.integers(0, 2000))
def test_shards_of_any_members_are_read_or_refused_with_a_sentence(members, cut):
    path, whole = FOLDER / "t.tar", io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for name, suffix, data in members:
            member = tarfile.TarInfo(f"{name}.{suffix}".encode("utf-8", "replace").decode())
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    path.write_bytes(whole.getvalue()[: len(whole.getvalue()) - cut])
    named = rows_named(path)
    assert named is None or [row for row in named if row] == list(range(1, len([row for row in named if row]) + 1))
