"""Faults that users of such tools reported, as they would meet them here. The letters are those of a list of reports."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import unicodedata
from pathlib import Path

import pytest
from layouts import make_images, write_json, write_lines

from densecap_search.collection.export import export_collection
from densecap_search.collection.readers import read_collection
from densecap_search.collection.records import Collection
from densecap_search.collection.text_files import decode
from densecap_search.collection.walk import find_images
from densecap_search.config import Reading
from densecap_search.errors import CollectionError


def captions_of(collection: Collection) -> dict[str, tuple[str, ...]]:
    return {record.image_id: record.captions for record in collection.records}


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("header", [True, False])
def test_a1_ten_rows_are_read_whatever_sets_them_apart_and_with_or_without_header(tmp_path: Path, delimiter: str, header: bool):
    names = [f"{number}.jpg" for number in range(10)]
    make_images(tmp_path, *names)
    rows = [["Image", "Caption"]] * header + [[name, f"a caption of {name}"] for name in names]
    (tmp_path / "t.csv").write_text("\n".join(delimiter.join(row) for row in rows))
    found = read_collection(tmp_path / "t.csv")
    assert captions_of(found) == {name: (f"a caption of {name}",) for name in names}
    assert found.format == "csv"


def test_a1_a_typo_in_the_header_lists_the_columns_and_names_the_option(tmp_path: Path):
    make_images(tmp_path, "1.jpg")
    (tmp_path / "t.csv").write_text("Image,Captoin\n1.jpg,one\n")
    with pytest.raises(CollectionError, match="columns found: Image, Captoin; say which one with --caption-column NAME"):
        read_collection(tmp_path / "t.csv")


A3 = ("a, b", 'he said "go"', "first paragraph\n\nsecond paragraph", '"', "a\tTAB", "x" * 5000, "\r", "ends with CR\r", "\ufeffmark")


@pytest.mark.parametrize("output", ["out.jsonl", "out.csv", "out"])
def test_a3_captions_with_breaks_commas_and_quotes_have_the_same_sha1_after_import_and_export(tmp_path: Path, output: str):
    names = [f"{number}.jpg" for number in range(len(A3))]
    make_images(tmp_path, *names)
    text = io.StringIO(newline="")
    csv.writer(text).writerows([("image", "caption"), *zip(names, A3, strict=True)])
    (tmp_path / "t.csv").write_bytes(text.getvalue().encode())
    first = read_collection(tmp_path / "t.csv")
    export_collection(first, tmp_path / output)
    second = read_collection(tmp_path / output)
    wanted = {name: hashlib.sha1(caption.encode()).hexdigest() for name, caption in zip(names, A3, strict=True) if caption.strip()}
    for found in (first, second):
        assert {r.image_id: hashlib.sha1(r.captions[0].encode()).hexdigest() for r in found.records if r.captions} == wanted
        assert len(found) == len(A3)


def test_a3_a_stray_quote_swallows_no_row_below_it(tmp_path: Path):
    make_images(tmp_path, *(f"{number}.jpg" for number in range(6)))
    lines = ["image,caption", '0.jpg,"never closed', "1.jpg,one", '2.jpg,"Go" he said', '3.jpg,5" nails', '4.jpg,"', '5.jpg,"two\nlines"']
    (tmp_path / "t.csv").write_text("\n".join(lines))
    assert captions_of(read_collection(tmp_path / "t.csv")) == {
        "0.jpg": ('"never closed',), "1.jpg": ("one",), "2.jpg": ('"Go" he said',), "3.jpg": ('5" nails',), "4.jpg": ('"',),
        "5.jpg": ("two\nlines",)}


def test_a5_metadata_of_any_name_and_key_is_understood_or_refused_with_the_keys_found(tmp_path: Path):
    make_images(tmp_path, "1.jpg")
    for name, keys in (("captions_v2.jsonl", ("image", "text")), ("metadata1000.jsonl", ("path", "description"))):
        path = write_lines(tmp_path / name, [dict(zip(keys, ("1.jpg", "one"), strict=True))])
        assert captions_of(read_collection(path)) == {"1.jpg": ("one",)}
    nested = write_json(tmp_path / "nested.json", [[{"image": "1.jpg", "text": "one"}]])
    (skip,) = read_collection(nested).skipped
    assert str(skip) == "row 1: an object was expected, not list"
    odd = write_lines(tmp_path / "odd.jsonl", [{"bild": "1.jpg", "worte": "one"}])
    with pytest.raises(CollectionError, match="columns found: bild, worte; say which one with --image-column NAME"):
        read_collection(odd)


def test_a6_pictures_and_text_files_meet_by_stem_and_what_is_left_over_is_reported(tmp_path: Path):
    make_images(tmp_path, "a.jpg", "b.png", "f.jpg", "c.TIF", "d.Jpg", "e.jpg")
    for stem in ("a", "b", "g", "e.jpg"):
        (tmp_path / f"{stem}.txt").write_text(f"caption of {stem}")
    found = read_collection(tmp_path)
    assert captions_of(found) == {"a.jpg": ("caption of a",), "b.png": ("caption of b",), "c.TIF": (), "d.Jpg": (),
                                  "e.jpg": ("caption of e.jpg",), "f.jpg": ()}
    assert found.format_reason == ("3 of 6 pictures have a side file; not read: 1 .txt (g.txt)")


A11 = "Müller-Straße"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "cp1252"])
def test_a11_no_encoding_changes_a_caption_or_the_first_column_name(tmp_path: Path, encoding: str):
    text = A11 if encoding in ("cp1252", "utf-16-le", "utf-16-be") else f"{A11}, 東京"
    make_images(tmp_path, "side/1.jpg", "2.jpg")
    (tmp_path / "side" / "1.txt").write_bytes(text.encode(encoding))
    (tmp_path / "t.csv").write_bytes(f'image,caption\n2.jpg,"{text}"\n'.encode(encoding))
    (tmp_path / "t.jsonl").write_bytes(f'{{"image": "2.jpg", "caption": "{text}"}}\n'.encode(encoding))
    assert captions_of(read_collection(tmp_path / "side")) == {"1.jpg": (text,)}
    assert captions_of(read_collection(tmp_path / "t.csv")) == {"2.jpg": (text,)}
    assert captions_of(read_collection(tmp_path / "t.jsonl")) == {"2.jpg": (text,)}


def test_a11_decomposed_unicode_stays_decomposed(tmp_path: Path):
    make_images(tmp_path, "1.jpg")
    decomposed = unicodedata.normalize("NFD", A11)
    (tmp_path / "1.txt").write_text(decomposed, encoding="utf-8")
    assert captions_of(read_collection(tmp_path)) == {"1.jpg": (decomposed,)}


def test_a11_a_table_put_together_from_two_encodings_keeps_both(tmp_path: Path):
    make_images(tmp_path, "1.jpg", "2.jpg")
    (tmp_path / "t.csv").write_bytes(b"image,caption\n1.jpg," + A11.encode() + b"\n2.jpg," + A11.encode("cp1252") + b"\n")
    assert captions_of(read_collection(tmp_path / "t.csv")) == {"1.jpg": (A11,), "2.jpg": (A11,)}


@pytest.mark.parametrize(("data", "text"), [
    ("wide".encode("utf-16-le"), "wide"), ("wide".encode("utf-16-be"), "wide"), (b"", ""), (b"a", "a"), (b"\0", "\0"),
    (b"\xef\xbb\xbf", ""), ("\ufeff\ufeffx".encode(), "\ufeffx"), (b"caf\xe9", "café"), ("cafe\u0301".encode(), "cafe\u0301"),
])
def test_utf_16_without_a_mark_is_taken_where_it_is_plain(data: bytes, text: str):
    assert decode(data) == text


B10 = ("._a.jpg", ".Trashes/x.jpg", "@eaDir/a.jpg/SYNOPHOTO_THUMB_M.jpg", ".hidden.jpg", "$RECYCLE.BIN/y.jpg", "__MACOSX/a.jpg")


def test_b10_what_systems_leave_between_photographs_is_left_out_unless_asked_for(tmp_path: Path):
    make_images(tmp_path, "a.jpg", "@home/b.jpg", *B10)
    (tmp_path / "Thumbs.db").write_bytes(b"\xd0\xcf\x11\xe0")
    (tmp_path / "._b.jpg").write_bytes(b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X        ")
    found = read_collection(tmp_path)
    assert [record.image_id for record in found.records] == ["a.jpg", "@home/b.jpg"]
    assert found.skipped == ()
    everything = read_collection(tmp_path, Reading(hidden=True))
    assert {record.image_id for record in everything.records} == {"a.jpg", "@home/b.jpg", *B10}


def test_b10_a_hidden_folder_that_is_given_itself_is_read(tmp_path: Path):
    make_images(tmp_path, ".archive/a.jpg")
    assert captions_of(read_collection(tmp_path / ".archive")) == {"a.jpg": ()}


def test_b11_one_name_in_several_folders_and_cases_makes_four_rows(tmp_path: Path):
    names = ("x/1.jpg", "y/1.jpg", "z/1.JPG", "z/1.jpeg")
    make_images(tmp_path, *names)
    rows = [{"image": name, "caption": f"caption of {name}"} for name in names]
    found = read_collection(write_lines(tmp_path / "t.jsonl", rows))
    assert captions_of(found) == {name: (f"caption of {name}",) for name in names}
    for name in names:
        (tmp_path / f"{name}.txt").write_text(f"caption of {name}")
    assert captions_of(read_collection(tmp_path)) == {name: (f"caption of {name}",) for name in sorted(names)}


def test_links_in_a_circle_end_and_show_every_picture_once(tmp_path: Path):
    make_images(tmp_path, "a/1.jpg")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "a" / "self").symlink_to(tmp_path / "a")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop.jpg").symlink_to(tmp_path / "loop.jpg")
    (tmp_path / "2.jpg").symlink_to(tmp_path / "a" / "1.jpg")
    assert [path.name for path in find_images(tmp_path)] == ["2.jpg", "loop.jpg", "1.jpg"]


@pytest.mark.parametrize(("in_table", "on_disk"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_names_meet_in_either_unicode_form(tmp_path: Path, in_table: str, on_disk: str):
    name = "Grüße aus Köln .jpg"
    make_images(tmp_path, unicodedata.normalize(on_disk, name))
    (tmp_path / "t.csv").write_text(f"image,caption\n{unicodedata.normalize(in_table, name)},hello\n", encoding="utf-8")
    (record,) = read_collection(tmp_path / "t.csv").records
    assert (record.image_id, record.captions, record.image.exists()) == (unicodedata.normalize("NFC", name), ("hello",), True)


def test_very_long_names_and_deep_folders_are_read(tmp_path: Path):
    long = "n" * 200
    make_images(tmp_path, f"{long}.jpg", "/".join([long] * 5) + "/1.jpg")
    (tmp_path / f"{long}.txt").write_text("long")
    found = read_collection(tmp_path)
    assert captions_of(found) == {f"{long}.jpg": ("long",), "/".join([long] * 5) + "/1.jpg": ()}
    export_collection(found, tmp_path / "out.jsonl")
    assert captions_of(read_collection(tmp_path / "out.jsonl")) == captions_of(found)


@pytest.mark.skipif(os.name != "posix", reason="elsewhere names are Unicode")
def test_a_name_that_is_no_utf_8_is_read_and_exported(tmp_path: Path):
    make_images(tmp_path, "a.png")
    (tmp_path / "a.png").rename(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png"))
    found = read_collection(tmp_path)
    export_collection(found, tmp_path / "out.jsonl")
    again = read_collection(tmp_path / "out.jsonl")
    assert [(r.image_id, r.image.exists()) for r in again.records] == [("caf\udce9.png", True)]


def test_a_folder_that_is_called_like_a_picture_is_no_picture(tmp_path: Path):
    make_images(tmp_path, "x.jpg/inside.png")
    assert captions_of(read_collection(tmp_path)) == {"x.jpg/inside.png": ()}
    (skip,) = read_collection(write_lines(tmp_path / "t.jsonl", [{"image": "x.jpg", "caption": "one"}])).skipped
    assert str(skip) == "row 1: x.jpg: no such file"
