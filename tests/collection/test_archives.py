"""Archives as they lie on people's disks: what is read, by which way, and what is said of the rest."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import sqlite3
import tarfile
import unicodedata
import zipfile
from pathlib import Path

import pytest
from layouts import (
    HARD_CAPTIONS,
    add_member,
    lay_arrow,
    lay_coco,
    lay_docci,
    lay_flickr_tokens,
    make_images,
    picture_bytes,
    write_json,
    write_lines,
)

from densecap_search.collection.readers import read_collection
from densecap_search.collection.records import Collection
from densecap_search.config import Reading
from densecap_search.errors import CollectionError


def captions_of(collection: Collection) -> dict[str, tuple[str, ...]]:
    return {record.image_id: record.captions for record in collection.records}


def said(collection: Collection) -> str:
    return " | ".join(collection.notes)


# ---- nothing is passed over in silence

def test_files_that_are_not_read_are_counted_by_ending_at_any_depth_with_what_would_read_them(tmp_path: Path):
    make_images(tmp_path, "a.jpg", "x/y/b.jpg")
    (tmp_path / "a.txt").write_text("a")
    for name in ("x/y/b.mp4", "x/c.mp4", "x/y/list.csv", "old.zip"):
        (tmp_path / name).write_bytes(b"nothing that is a table")
    assert said(read_collection(tmp_path)) == (
        "not read: 2 .mp4 (x/c.mp4, x/y/b.mp4), 1 .zip (old.zip; unpack it first), "
        "1 .csv (x/y/list.csv; give the file itself to read it as a table)")


def test_a_format_that_is_asked_for_says_what_it_leaves_unread(tmp_path: Path):
    make_images(tmp_path, "a.jpg")
    (tmp_path / "a.txt").write_text("a")
    found = read_collection(tmp_path, Reading(format="embedded"))
    assert "not read: 1 .txt (a.txt; --format folder reads them)" in said(found)
    assert [record.captions for record in found.records] == [()]
    assert [record.captions for record in read_collection(tmp_path, Reading(format="folder")).records] == [("a",)]


@pytest.mark.parametrize("lay", [lay_docci, lay_coco, lay_flickr_tokens, lay_arrow])
def test_a_folder_that_holds_one_table_is_that_table(lay, tmp_path: Path):
    path, expected = lay(tmp_path / "in")
    root = path.parent if lay is not lay_coco else path.parents[1]
    found = read_collection(root)
    assert {record.image_id: (record.captions, record.split) for record in found.records} == expected
    assert found.format_reason.startswith(f"{path.relative_to(root).as_posix()} in the folder")
    assert captions_of(read_collection(root, Reading(format=found.format))) == captions_of(found)


def test_a_table_one_level_down_is_the_folders_table_and_pictures_it_does_not_name_stay(tmp_path: Path):
    make_images(tmp_path, "photos/1.jpg", "photos/2.jpg", "photos/3.jpg")
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "t.csv").write_text("image,caption\n1.jpg,one\n2.jpg,two\ngone.jpg,three\n")
    found = read_collection(tmp_path)
    assert captions_of(found) == {"photos/1.jpg": ("one",), "photos/2.jpg": ("two",), "photos/3.jpg": ()}
    assert [(skip.row, skip.reason) for skip in found.skipped] == [(3, "no such file")]
    assert "1 pictures there are not named, so they have no caption" in said(found)


def test_a_table_that_names_less_than_half_of_its_rows_there_is_not_the_folder(tmp_path: Path):
    make_images(tmp_path, "1.jpg")
    (tmp_path / "t.csv").write_text("image,caption\n1.jpg,one\ngone.jpg,two\naway.jpg,three\n")
    found = read_collection(tmp_path)
    assert (captions_of(found), found.format) == ({"1.jpg": ()}, "embedded")
    assert "1 .csv (t.csv; give the file itself" in said(found)


def test_pictures_that_a_metadata_file_does_not_name_stay_and_are_counted(tmp_path: Path):
    make_images(tmp_path, "1.jpg", "2.jpg")
    (tmp_path / "metadata.csv").write_text("file_name,text\n1.jpg,one\n")
    found = read_collection(tmp_path)
    assert captions_of(found) == {"1.jpg": ("one",), "2.jpg": ()}
    assert "1 pictures there are not named" in said(found)


def test_one_table_in_several_files_has_the_splits_of_their_names(tmp_path: Path):
    make_images(tmp_path, "images/1.jpg", "images/2.jpg", "images/3.jpg")
    for name, number in (("train", 1), ("val", 2), ("test", 3)):
        (tmp_path / f"{name}.csv").write_text(f"image,caption\n{number}.jpg,of {name}\n")
    found = read_collection(tmp_path)
    assert {record.image_id: record.split for record in found.records} == {
        "images/1.jpg": "train", "images/2.jpg": "val", "images/3.jpg": "test"}
    assert sorted(row for record in found.records for row in record.rows) == [1, 2, 3]


def test_two_different_tables_are_named_and_neither_is_taken(tmp_path: Path):
    make_images(tmp_path, "1.jpg")
    (tmp_path / "long.csv").write_text("image,caption\n1.jpg,a long one\n")
    (tmp_path / "short.csv").write_text("image,caption\n1.jpg,short\n")
    found = read_collection(tmp_path)
    assert captions_of(found) == {"1.jpg": ()}
    assert "2 tables lie there (long.csv, short.csv), so none is taken; give one itself" in said(found)


def test_a_format_of_files_is_looked_for_in_a_folder_before_it_is_denied(tmp_path: Path):
    make_images(tmp_path, "1.jpg")
    (tmp_path / "t.csv").write_text("image,caption\n1.jpg,one\n")
    write_json(tmp_path / "t.json", [{"image": "1.jpg", "caption": "other"}])
    assert captions_of(read_collection(tmp_path, Reading(format="csv"))) == {"1.jpg": ("one",)}
    with pytest.raises(CollectionError, match="holds no table of the format coco that names pictures there"):
        read_collection(tmp_path, Reading(format="coco"))
    with pytest.raises(CollectionError, match=r"has no list images.* \(by its content it is of the format json: a JSON list"):
        read_collection(tmp_path / "t.json", Reading(format="coco"))


def test_short_rows_twin_columns_and_blank_cells_are_read_and_told_with_their_rows(tmp_path: Path):
    make_images(tmp_path, "1.jpg", "2.jpg", "3.jpg")
    (tmp_path / "t.csv").write_text("image,caption,caption,place\n1.jpg,one,eins,Bern\n2.jpg,two\n3.jpg,,drei,Rom\n3.jpg,,,Rom\n")
    found = read_collection(tmp_path / "t.csv")
    assert captions_of(found) == {"1.jpg": ("one", "eins"), "2.jpg": ("two",), "3.jpg": ("drei",)}
    assert said(found) == ("several columns are called caption; the second is caption (2) | 1 row shorter than the header, the "
                           "missing cells taken as empty (row 2) | 1 row without a caption beside one with (row 4)")


def test_a_caption_that_is_nan_is_none_and_told(tmp_path: Path):
    make_images(tmp_path, "1.jpg", "2.jpg")
    (tmp_path / "t.jsonl").write_text('{"image": "1.jpg", "caption": NaN, "size": Infinity}\n{"image": "2.jpg", "caption": "two"}\n')
    found = read_collection(tmp_path / "t.jsonl")
    assert captions_of(found) == {"1.jpg": (), "2.jpg": ("two",)}
    assert said(found) == "1 row with NaN for a caption, that is none (row 1)"
    assert dict(found.records[0].columns) == {}


def test_a_blank_caption_leaves_the_place_to_another_column(tmp_path: Path):
    make_images(tmp_path, "1.jpg")
    (tmp_path / "t.csv").write_text("image,caption,description\n1.jpg, ,in the other\n")
    assert captions_of(read_collection(tmp_path / "t.csv")) == {"1.jpg": ("in the other",)}


def test_contradicting_splits_take_the_most_held_out_one_and_keep_all_captions(tmp_path: Path):
    make_images(tmp_path, "1.jpg", "2.jpg", "3.jpg")
    rows = [("1.jpg", "train", "a"), ("1.jpg", "test", "b"), ("1.jpg", "val", "c"), ("2.jpg", "train", "d"), ("2.jpg", "val", "e"),
            ("3.jpg", "train", "f"), ("3.jpg", "", "g")]
    (tmp_path / "t.csv").write_text("image,split,caption\n" + "".join(f"{','.join(row)}\n" for row in rows))
    found = read_collection(tmp_path / "t.csv")
    assert [(record.split, record.captions) for record in found.records] == [
        ("test", ("a", "b", "c")), ("val", ("d", "e")), ("train", ("f", "g"))]
    assert said(found) == ("2 pictures with rows of different splits; the most held-out one is taken (test before val before "
                           "train) (1.jpg, 2.jpg)")


def test_contradicting_ids_keep_the_first_and_are_told(tmp_path: Path):
    make_images(tmp_path, "1.jpg")
    (tmp_path / "t.csv").write_text("image,id,caption\n1.jpg,x,a\n1.jpg,y,b\n")
    found = read_collection(tmp_path / "t.csv")
    assert captions_of(found) == {"x": ("a", "b")}
    assert said(found) == "1 picture with rows of different ids; the first is taken (x)"


def test_members_of_a_shard_that_are_not_read_are_told_and_names_with_dots_keep_their_pictures(tmp_path: Path):
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        for number, name in enumerate(("2020.01.jpg", "2020.02.jpg")):
            add_member(tar, name, picture_bytes(number))
        for name in ("2020.01", "2020.02"):  # not beside their pictures
            add_member(tar, f"{name}.txt", name.encode())
        add_member(tar, "one.png", picture_bytes(7))
        add_member(tar, "one.mask.png", picture_bytes(8))
        add_member(tar, "one.txt", b"of one")
        add_member(tar, "one.cls", b"3")
    found = read_collection(tmp_path / "t.tar")
    assert captions_of(found) == {"t.tar/2020.01.jpg": ("2020.01",), "t.tar/2020.02.jpg": ("2020.02",), "t.tar/one.png": ("of one",)}
    assert said(found) == "t.tar: not read: 1 .png, 1 .cls"


def workbook(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("word/document.xml", "<x/>")


def database(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("create table t (image, caption)")


BINARIES = {
    "t.docx": (workbook, "a ZIP archive; unpack it first"),
    "t.csv.gz": (lambda path: path.write_bytes(gzip.compress(b"image,caption\n")), "compressed by gzip; unpack it first"),
    "t.db": (database, "an SQLite database; write its table as CSV first"),
    "t.jpg": (lambda path: path.write_bytes(picture_bytes()), "a picture; give the folder that it lies in"),
    "t.pkl": (lambda path: path.write_bytes(pickle.dumps([{"image": "a.jpg"}])), "a pickle, which is a program as much as data"),
    "t.csv": (lambda path: path.write_bytes(bytes(range(256)) * 9), "no text; give a table as CSV"),
    "t.pdf": (lambda path: path.write_bytes(b"%PDF-1.7\n"), "a PDF document"),
}


@pytest.mark.parametrize("name", BINARIES)
def test_a_binary_file_is_told_by_what_it_is_in_one_sentence_without_its_bytes(name: str, tmp_path: Path):
    make, reason = BINARIES[name]
    make(tmp_path / name)
    with pytest.raises(CollectionError) as caught:
        read_collection(tmp_path / name)
    assert str(caught.value).startswith(f"{tmp_path / name} is {reason}")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("text", [
    "image_url,caption\nhttps://a.example/1.jpg,one\nhttps://a.example/2.jpg,two\n",  # PixMo
    "a view of the sea\thttps://a.example/1.jpg\na boat\thttps://a.example/2.jpg\n",  # CC3M, without a header
    "image,caption\nhttps://a.example/1.jpg,one\nhttp://a.example/2.jpg,two\n",
])
def test_addresses_instead_of_files_say_to_fetch_them(text: str, tmp_path: Path):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(CollectionError, match="these are addresses, not files; fetch them first, for example with img2dataset"):
        read_collection(tmp_path / "t.csv")


# ---- where the pictures lie

@pytest.mark.parametrize("folder", ["images", "Images", "flickr30k_images", "img", "RSICD_images", "Flicker8k_Dataset", "photos"])
def test_usual_folders_beside_a_table_are_looked_into_and_said(folder: str, tmp_path: Path):
    make_images(tmp_path, f"{folder}/1.jpg", f"{folder}/2.jpg")
    (tmp_path / "t.csv").write_text("image,caption\n1.jpg,one\n2.jpg,two\n")
    found = read_collection(tmp_path / "t.csv")
    assert captions_of(found) == {f"{folder}/1.jpg": ("one",), f"{folder}/2.jpg": ("two",)}
    assert said(found) == f"2 pictures found in {folder}"


def test_images_names_folders_and_then_no_other_is_guessed(tmp_path: Path):
    make_images(tmp_path, "t/images/1.jpg", "a/1.jpg", "b/2.jpg")
    (tmp_path / "t" / "t.csv").write_text("image,caption\n1.jpg,one\n2.jpg,two\n3.jpg,three\n")
    found = read_collection(tmp_path / "t" / "t.csv", Reading(images=(str(tmp_path / "a"), str(tmp_path / "b"))))
    assert [record.image for record in found.records] == [tmp_path / "a" / "1.jpg", tmp_path / "b" / "2.jpg"]
    assert [skip.row for skip in found.skipped] == [3]
    with pytest.raises(CollectionError, match="--images nowhere is not a folder"):
        read_collection(tmp_path / "t" / "t.csv", Reading(images=("nowhere",)))


def test_a_moved_archive_is_found_by_the_ends_of_its_paths(tmp_path: Path):
    make_images(tmp_path, "2020/IMG_1.JPG", "2021/IMG_1.JPG", "2021/IMG_2.JPG")
    rows = ["/mnt/nas/photos/2020/IMG_1.jpg", "D:\\photos\\2021\\IMG_1.jpg", "/mnt/nas/photos/2021/IMG_2.jpg", "/mnt/IMG_1.jpg"]
    found = read_collection(write_lines(tmp_path / "t.jsonl", [{"image": row, "caption": row} for row in rows]))
    assert captions_of(found) == {f"{year}/IMG_{n}.JPG": (row,) for (year, n), row in zip(
        ((2020, 1), (2021, 1), (2021, 2)), rows, strict=False)}
    assert [(skip.row, skip.reason.split(":")[0]) for skip in found.skipped] == [(4, "2 pictures have this name")]
    assert said(found) == f"3 pictures found by their names below {tmp_path}"


def test_one_file_is_never_taken_for_two_pictures_of_its_name(tmp_path: Path):
    make_images(tmp_path, "test/1.jpg", "x/2.jpg")
    rows = [{"image": name, "caption": name} for name in ("train/1.jpg", "test/1.jpg", "a/2.jpg", "b/2.jpg")]
    found = read_collection(write_lines(tmp_path / "t.jsonl", rows))
    assert captions_of(found) == {"test/1.jpg": ("test/1.jpg",)}
    assert [(skip.row, skip.reason) for skip in found.skipped] == [
        (row, "no such file, and the only one of this name is another row's") for row in (1, 3, 4)]


def test_names_without_endings_and_numbers_find_the_picture_of_that_stem(tmp_path: Path):
    make_images(tmp_path, "photos/aar_test_04600.jpg", "photos/17.png")
    rows = [{"image/key": "aar_test_04600", "IIW": "a hyper-detailed one"}, {"image/key": 17, "IIW": "seventeen"}]
    assert captions_of(read_collection(write_lines(tmp_path / "t.jsonl", rows))) == {
        "photos/aar_test_04600.jpg": ("a hyper-detailed one",), "photos/17.png": ("seventeen",)}


def test_a_path_whose_folder_and_file_are_in_different_unicode_forms_is_found(tmp_path: Path):
    folder, name = unicodedata.normalize("NFD", "Grüße"), unicodedata.normalize("NFC", "Köln.jpg")
    make_images(tmp_path, f"{folder}/{name}")
    for form in ("NFC", "NFD"):
        path = write_lines(tmp_path / "t.jsonl", [{"image": unicodedata.normalize(form, f"{folder}/{name}"), "caption": "c"}])
        assert captions_of(read_collection(path)) == {"Grüße/Köln.jpg": ("c",)}


# ---- side files

XMP = """<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
<rdf:Description rdf:about="" xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:exif="http://ns.adobe.com/exif/1.0/"
 xmlns:photoshop="http://ns.adobe.com/photoshop/1.0/" exif:DateTimeOriginal="2020-05-03T12:00:00" photoshop:City="Bern"
 exif:GPSLatitude="46,57.0N" exif:GPSLongitude="7,26,24W"><dc:description><rdf:Alt><rdf:li xml:lang="de">%s auf Deutsch</rdf:li>
<rdf:li xml:lang="x-default">%s</rdf:li></rdf:Alt></dc:description></rdf:Description></rdf:RDF></x:xmpmeta>"""


@pytest.mark.parametrize("name", ["a.xmp", "a.jpg.xmp", "A.XMP".replace("A", "a")])
def test_xmp_beside_a_picture_gives_its_caption_date_and_place(name: str, tmp_path: Path):
    make_images(tmp_path, "a.jpg")
    (tmp_path / name).write_text(XMP % ("a boat", "a boat"))
    found = read_collection(tmp_path)
    assert captions_of(found) == {"a.jpg": ("a boat",)}
    assert dict(found.records[0].columns) == {"date": "2020-05-03T12:00:00", "place": "Bern", "latitude": 46.95,
                                              "longitude": -7.44}
    assert said(found) == "captions from .xmp files"


def takeout(text: str, **more: object) -> str:
    return json.dumps({"title": "x", "description": text, "photoTakenTime": {"timestamp": "1588507200", "formatted": "x"},
                       "geoData": {"latitude": 0.0, "longitude": 0.0, "altitude": 0.0}, **more})


def test_google_takeouts_files_meet_their_pictures_whatever_was_done_to_the_names(tmp_path: Path):
    long = "a_very_long_name_of_a_picture_that_was_taken_on_holiday"
    files = {  # picture → its JSON
        "old.jpg": "old.jpg.json", "new.jpg": "new.jpg.supplemental-metadata.json", "IMG(1).jpg": "IMG.jpg(1).json",
        "NEW(2).jpg": "NEW.jpg.supplemental-metadata(2).json", f"{long[:47]}.jpg": f"{long[:46]}.json",
        "shortened_but_long_enough_name_2021.jpg": "shortened_but_long_enough_name_2021.jpg.supple.json",
    }
    make_images(tmp_path, *files, "old-edited.jpg")
    for name in files.values():
        (tmp_path / name).write_text(takeout(f"of {name}"))
    (tmp_path / "metadata.json").write_text('{"title": "Album", "description": ""}')
    found = read_collection(tmp_path)
    assert captions_of(found) == {**{name: (f"of {side}",) for name, side in files.items()}, "old-edited.jpg": ("of old.jpg.json",)}
    assert {tuple(record.columns.items()) for record in found.records} == {(("date", "2020-05-03T12:00:00Z"),)}
    assert said(found) == "captions from .json files | not read: 1 .json (metadata.json)"


def test_several_side_files_give_the_first_caption_and_all_columns(tmp_path: Path):
    make_images(tmp_path, "a.jpg", "b.jpg")
    (tmp_path / "a.txt").write_text("from text")
    (tmp_path / "a.xmp").write_text(XMP % ("from xmp", "from xmp"))
    (tmp_path / "b.json").write_text('{"caption": "from json", "width": 4, "url": "https://a.example"}')
    found = read_collection(tmp_path)
    assert captions_of(found) == {"a.jpg": ("from text",), "b.jpg": ("from json",)}
    assert [sorted(record.columns) for record in found.records] == [["date", "latitude", "longitude", "place"], ["width"]]
    assert "captions: 1 from .txt files, 1 from .json files; of several places the first counts" in said(found)


@pytest.mark.parametrize(("images", "texts", "ending"), [("images", "text", ".txt"), ("img", "captions", ".caption"), ("Photos", "txt", ".txt")])
def test_texts_in_a_folder_beside_that_of_the_pictures_are_read(images: str, texts: str, ending: str, tmp_path: Path):
    make_images(tmp_path, f"{images}/x/1.jpg")
    (tmp_path / texts / "x").mkdir(parents=True)
    (tmp_path / texts / "x" / f"1{ending}").write_text("one")
    assert captions_of(read_collection(tmp_path)) == {f"{images}/x/1.jpg": ("one",)}


# ---- tables

def test_save_to_disk_of_several_splits_is_one_collection(tmp_path: Path):
    for number, split in enumerate(("train", "test")):
        lay_arrow(tmp_path / split, first=100 * number)
        (tmp_path / split / "state.json").write_text("{}")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    found = read_collection(tmp_path)
    assert {record.image_id: record.split for record in found.records} == {
        f"{split}/data-00000-of-00001.arrow/{100 * (split == 'test') + number}.png": split
        for split in ("train", "test") for number in range(len(HARD_CAPTIONS))}
    assert said(found).endswith("not read: 3 .json (dataset_dict.json, test/state.json, train/state.json)")


def test_parquet_with_pictures_keeps_columns_and_names_rows_without_one(tmp_path: Path):
    import pyarrow
    import pyarrow.parquet

    rows = [{"image": {"bytes": picture_bytes(), "path": None}, "text": "one", "id": "x1", "year": 1984},
            {"image": None, "text": "two", "id": "x2", "year": 1985}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    found = read_collection(tmp_path / "t.parquet")
    assert [(r.image_id, r.captions, dict(r.columns)) for r in found.records] == [
        ("t.parquet/00000001.png", ("one",), {"own_id": "x1", "year": 1984})]
    assert [(skip.row, skip.reason) for skip in found.skipped] == [(2, "a row without a picture")]


@pytest.mark.parametrize("as_lines", [True, False])
@pytest.mark.parametrize("talk", [
    {"conversations": [{"from": "human", "value": "<image>\nDescribe."}, {"from": "gpt", "value": "a boat"}], "image": "1.jpg"},
    {"messages": [{"role": "user", "content": "<image>Describe."}, {"role": "assistant", "content": "a boat"}], "images": ["1.jpg"]},
    {"messages": [{"role": "user", "content": [{"type": "image", "image": "1.jpg"}, {"type": "text", "text": "Describe."}]},
                  {"role": "assistant", "content": [{"type": "text", "text": "a boat"}]}]},
])
def test_conversations_and_messages_are_read_as_a_list_or_as_lines(talk: dict, as_lines: bool, tmp_path: Path):
    make_images(tmp_path, "1.jpg")
    path = write_lines(tmp_path / "t.jsonl", [talk]) if as_lines else write_json(tmp_path / "t.json", [talk])
    assert captions_of(read_collection(path)) == {"1.jpg": ("a boat",)}


def test_several_caption_columns_are_several_captions(tmp_path: Path):
    make_images(tmp_path, "1.jpg")
    (tmp_path / "t.csv").write_text("image,short,long,caption\n1.jpg,s,l,c\n")
    assert captions_of(read_collection(tmp_path / "t.csv", Reading(caption_column=("long", "short")))) == {"1.jpg": ("l", "s")}
    (tmp_path / "u.csv").write_text("image,caption_1,caption_2\n1.jpg,a,b\n")
    assert captions_of(read_collection(tmp_path / "u.csv")) == {"1.jpg": ("a", "b")}


@pytest.mark.parametrize("above", ["sep=;\n", "Export of 3 May\n\n", "# made by hand\n# twice\n"])
def test_lines_above_a_header_are_passed_over_and_shown(above: str, tmp_path: Path):
    make_images(tmp_path, "1.jpg")
    (tmp_path / "t.csv").write_text(f"{above}image;caption\n1.jpg;one, two\n")
    found = read_collection(tmp_path / "t.csv")
    assert (captions_of(found), found.records[0].rows) == ({"1.jpg": ("one, two",)}, (1,))
    assert "above the header" in said(found)


def test_skip_lines_says_how_many_stand_above_a_header(tmp_path: Path):
    make_images(tmp_path, "1.jpg")
    (tmp_path / "t.csv").write_text("image,caption\nold,header\nbild,worte\n1.jpg,one\n")
    found = read_collection(tmp_path / "t.csv", Reading(skip_lines=2, image_column="bild", caption_column=("worte",)))
    assert captions_of(found) == {"1.jpg": ("one",)}


def test_coco_ids_may_be_text_and_boxes_may_come_first(tmp_path: Path):
    make_images(tmp_path, "9.jpg")
    value = {"images": [{"id": "9", "file_name": "9.jpg"}], "annotations": [
        {"id": 1, "image_id": 9, "bbox": [0, 0, 1, 1], "category_id": 3}, {"id": 2, "image_id": 9, "caption": "nine"}]}
    found = read_collection(write_json(tmp_path / "t.json", value))
    assert (captions_of(found), found.format, found.skipped) == ({"9.jpg": ("nine",)}, "coco", ())
    assert said(found) == "1 annotations are boxes or areas without a caption"


def test_labelme_files_give_the_description_where_they_have_one(tmp_path: Path):
    make_images(tmp_path, "a.jpg", "b.jpg")
    write_json(tmp_path / "a.json", {"version": "5.2", "imagePath": "a.jpg", "description": "a boat", "shapes": [], "imageHeight": 4})
    write_json(tmp_path / "b.json", {"version": "5.2", "imagePath": "b.jpg", "shapes": []})
    found = read_collection(tmp_path)
    assert captions_of(found) == {"a.jpg": ("a boat",), "b.jpg": ()}
    assert "not read: 1 .json (b.json)" in said(found)


def test_sixteen_thousand_captions_of_one_picture_are_all_kept(tmp_path: Path):
    """Comparing each with all before it took 41 s."""
    make_images(tmp_path, "1.jpg")
    captions = [f"caption {number}" for number in range(16_000)]
    path = write_lines(tmp_path / "t.jsonl", [{"image": "1.jpg", "caption": caption} for caption in captions])
    assert captions_of(read_collection(path)) == {"1.jpg": tuple(captions)}


# ---- leaving out

def test_patterns_an_ignore_file_and_nomedia_leave_files_and_folders_out(tmp_path: Path):
    make_images(tmp_path, "a.jpg", "b.gif", "drafts/c.jpg", "x/drafts/d.jpg", "phone/e.jpg", "secret/f.jpg")
    (tmp_path / "phone" / ".nomedia").touch()
    (tmp_path / ".densecapignore").write_text("# not yet\nsecret/\n")
    assert set(captions_of(read_collection(tmp_path))) == {"a.jpg", "b.gif", "drafts/c.jpg", "x/drafts/d.jpg"}
    found = read_collection(tmp_path, Reading(exclude=("drafts/", "*.gif")))
    assert set(captions_of(found)) == {"a.jpg"}
    assert said(found).endswith("left out, as asked for: b.gif, drafts, secret, … (5)")
    assert "phone/e.jpg" in captions_of(read_collection(tmp_path, Reading(hidden=True)))
    assert set(captions_of(read_collection(tmp_path / "phone"))) == {"e.jpg"}


def test_rows_of_pictures_that_are_left_out_are_told(tmp_path: Path):
    make_images(tmp_path, "a.jpg", "drafts/c.jpg")
    (tmp_path / "t.csv").write_text("image,caption\na.jpg,a\ndrafts/c.jpg,c\n")
    found = read_collection(tmp_path / "t.csv", Reading(exclude=("drafts/",)))
    assert captions_of(found) == {"a.jpg": ("a",)}
    assert [(skip.row, skip.reason) for skip in found.skipped] == [(2, "left out, as asked for")]


def test_a_pattern_that_is_none_is_refused(tmp_path: Path):
    make_images(tmp_path, "a.jpg")
    with pytest.raises(CollectionError, match="a pattern to leave files out cannot be read"):
        read_collection(tmp_path, Reading(exclude=("!",)))


def test_links_to_pictures_that_are_there_are_counted_once(tmp_path: Path):
    make_images(tmp_path, "originals/1.jpg", "away/2.jpg")
    (tmp_path / "best.jpg").symlink_to(tmp_path / "originals" / "1.jpg")
    inside = tmp_path / "in"
    inside.mkdir()
    (inside / "x.jpg").symlink_to(tmp_path / "away" / "2.jpg")
    (inside / "y.jpg").symlink_to(tmp_path / "away" / "2.jpg")
    assert set(captions_of(read_collection(inside))) == {"x.jpg"}
    found = read_collection(tmp_path)
    assert set(captions_of(found)) == {"away/2.jpg", "originals/1.jpg"}
    assert said(found).startswith("3 links to pictures that are there already")


def test_a_workbook_of_several_sheets_is_read_by_its_first_and_a_damaged_one_is_named(tmp_path: Path):
    import openpyxl

    make_images(tmp_path, "1.jpg")
    book = openpyxl.Workbook()
    book.active.append(["image", "caption"])
    book.active.append(["1.jpg", "one"])
    book.create_sheet("notes").append(["remember the milk"])
    book.save(tmp_path / "t.xlsx")
    found = read_collection(tmp_path / "t.xlsx")
    assert captions_of(found) == {"1.jpg": ("one",)}
    assert said(found) == "only the first of 2 sheets is read, Sheet"
    data = io.BytesIO((tmp_path / "t.xlsx").read_bytes()).getvalue()
    (tmp_path / "cut.xlsx").write_bytes(data[: len(data) // 2])
    with pytest.raises(CollectionError, match=r"cannot read .*cut\.xlsx as an Excel workbook: "):
        read_collection(tmp_path / "cut.xlsx")
