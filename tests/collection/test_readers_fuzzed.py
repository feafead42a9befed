"""Whatever a table holds: no exception but ours, and no row lost."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from densecap_search.collection.readers import decode, read_collection
from densecap_search.errors import DensecapError

NAMES = ("1.jpg", "2.jpg", "sub/3.png")
FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
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


def rows_named(path: Path) -> list[int] | None:
    """Every input row that a record or a skip names; None where the table was refused with a sentence."""
    try:
        found = read_collection(path)
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


@FUZZ
@given(st.lists(st.tuples(names, st.text(max_size=60)), min_size=1, max_size=8), st.sampled_from(",;\t|"))
def test_quoted_csv_loses_no_row_and_changes_no_caption(rows, delimiter):
    path, text = FOLDER / "t.csv", io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_ALL).writerows([("image", "caption"), *rows])
    path.write_bytes(text.getvalue().encode("utf-8", "replace"))
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
    rows_named(path)
