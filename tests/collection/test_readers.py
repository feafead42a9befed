from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from densecap_search.collection.export import export_jsonl
from densecap_search.collection.readers import decode, read_collection
from densecap_search.config import Reading
from densecap_search.errors import CollectionError

HARD_CAPTIONS = (
    "a, b; c\td|e", 'he said "go"', "first paragraph\n\nsecond paragraph", '"', "Müller-Straße, 東京 🚌",
    "x" * 5000, "line\u2028separator", "  spaces around  ", "carriage\r\nreturn",
)


def make_images(folder: Path, *names: str) -> None:
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (number, 0, 0)).save(path, "PNG")


def captions_of(collection) -> dict[str, tuple[str, ...]]:
    return {record.image_id: record.captions for record in collection.records}


def test_a_folder_pairs_pictures_with_side_files_by_stem(tmp_path: Path):
    make_images(tmp_path, "a.jpg", "sub/b.PNG", "alone.jpg", ".hidden.jpg", "._a.jpg", "@eaDir/a.jpg")
    (tmp_path / "a.txt").write_text("caption a\n", encoding="utf-8")
    (tmp_path / "sub" / "b.txt").write_text("caption b", encoding="utf-8")
    (tmp_path / "nobody.txt").write_text("no picture")
    assert captions_of(read_collection(tmp_path)) == {
        "a.jpg": ("caption a",), "alone.jpg": (), "sub/b.PNG": ("caption b",),
    }


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiter_and_header_are_found(tmp_path: Path, delimiter: str):
    make_images(tmp_path, "1.jpg", "2.jpg")
    rows = [("Image", "Caption"), ("1.jpg", "one"), ("2.jpg", "two")]
    (tmp_path / "t.csv").write_text("\n".join(delimiter.join(row) for row in rows))
    assert captions_of(read_collection(tmp_path / "t.csv")) == {"1.jpg": ("one",), "2.jpg": ("two",)}


def test_a_table_without_header_is_understood(tmp_path: Path):
    make_images(tmp_path, "1.jpg", "2.jpg")
    (tmp_path / "t.csv").write_text("7,1.jpg,the first caption\n8,2.jpg,the second caption\n")
    found = read_collection(tmp_path / "t.csv")
    assert captions_of(found) == {"1.jpg": ("the first caption",), "2.jpg": ("the second caption",)}


def test_a_typo_in_the_header_lists_the_columns_and_the_option(tmp_path: Path):
    make_images(tmp_path, "1.jpg")
    (tmp_path / "t.csv").write_text("imge,caption\n1,one\n")
    with pytest.raises(CollectionError, match="columns found: imge, caption; say which one with --image-column NAME"):
        read_collection(tmp_path / "t.csv")


def test_columns_can_be_named(tmp_path: Path):
    make_images(tmp_path, "1.jpg")
    (tmp_path / "t.csv").write_text("bild,beschreibung,caption\n1.jpg,eins,one\n")
    found = read_collection(tmp_path / "t.csv", Reading(image_column="bild", caption_column=("Beschreibung",)))
    assert captions_of(found) == {"1.jpg": ("eins",)}
    with pytest.raises(CollectionError, match="--caption-column nope is not there; columns found: bild"):
        read_collection(tmp_path / "t.csv", Reading(image_column="bild", caption_column=("nope",)))


def test_rows_of_one_picture_become_one_record_with_all_captions(tmp_path: Path):
    make_images(tmp_path, "1.jpg", "2.jpg")
    (tmp_path / "t.csv").write_text("image,caption\n1.jpg,a\n2.jpg,b\n./1.jpg,c\n1.jpg,a\n")
    found = read_collection(tmp_path / "t.csv")
    assert captions_of(found) == {"1.jpg": ("a", "c"), "2.jpg": ("b",)}
    assert [record.rows for record in found.records] == [(1, 3, 4), (2,)]


def test_caption_wins_over_captions_unless_captions_is_asked_for(tmp_path: Path):
    make_images(tmp_path, "1.jpg")
    (tmp_path / "t.jsonl").write_text(json.dumps({"image": "1.jpg", "caption": "joined", "captions": ["a", "b"]}))
    assert captions_of(read_collection(tmp_path / "t.jsonl")) == {"1.jpg": ("joined",)}
    assert captions_of(read_collection(tmp_path / "t.jsonl", Reading(caption_column=("captions",)))) == {"1.jpg": ("a", "b")}


@pytest.mark.parametrize(("image_key", "caption_key"), [
    ("image", "text"), ("filename", "caption"), ("file_name", "text"), ("filepath", "title"), ("path", "description"),
    ("original_filename", "original_caption"),
])
def test_json_keys_are_known(tmp_path: Path, image_key: str, caption_key: str):
    make_images(tmp_path, "1.jpg")
    (tmp_path / "captions_v2.json").write_text(json.dumps([{image_key: "1.jpg", caption_key: "one"}]))
    assert captions_of(read_collection(tmp_path / "captions_v2.json")) == {"1.jpg": ("one",)}


def test_bad_rows_are_skipped_by_number_and_shift_nothing(tmp_path: Path):
    make_images(tmp_path, "1.jpg", "5.jpg")
    lines = ['{"image": "1.jpg", "caption": "one"}', "not json", '{"image": "gone.jpg", "caption": "two"}',
             '{"caption": "no picture"}', '{"image": "5.jpg", "caption": "five"}', '{"image": "5.jpg", "caption": 5}', "[1]"]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    found = read_collection(tmp_path / "t.jsonl")
    assert captions_of(found) == {"1.jpg": ("one",), "5.jpg": ("five",)}
    assert [(skip.row, skip.reason.split(" (")[0]) for skip in found.skipped] == [
        (2, "not JSON"), (3, "no such file"), (4, "the column image is empty"), (6, "the column caption holds no text"),
        (7, "an object was expected, not list"),
    ]


def test_unquoted_commas_are_reported_not_cut(tmp_path: Path):
    make_images(tmp_path, "1.jpg", "2.jpg")
    (tmp_path / "t.csv").write_text("image,caption\n1.jpg,one, two\n2.jpg,fine\n")
    found = read_collection(tmp_path / "t.csv")
    assert captions_of(found) == {"2.jpg": ("fine",)}
    assert str(found.skipped[0]) == "row 1: 1.jpg: 3 cells where the header has 2; put captions in quotes"


def test_split_group_burst_and_id_are_taken_and_other_columns_kept(tmp_path: Path):
    make_images(tmp_path, "1.jpg")
    (tmp_path / "t.csv").write_text("image,caption,Split,group,burst,id,year\n1.jpg,one,Validation,g,b,x7,1984\n")
    (record,) = read_collection(tmp_path / "t.csv").records
    assert (record.image_id, record.split, record.group, record.burst) == ("x7", "val", "g", "b")
    assert record.columns == {"year": "1984"}


def test_one_id_for_two_pictures_names_both(tmp_path: Path):
    make_images(tmp_path, "1.jpg", "2.jpg")
    (tmp_path / "t.csv").write_text("image,caption,id\n1.jpg,a,x\n2.jpg,b,x\n")
    with pytest.raises(CollectionError, match=r"the id 'x' names two pictures, .*1\.jpg and .*2\.jpg"):
        read_collection(tmp_path / "t.csv")


def test_windows_separators_and_decomposed_names_are_found(tmp_path: Path):
    make_images(tmp_path, "img/1.jpg", "Mu\u0308ller.jpg")
    (tmp_path / "t.csv").write_text("image,caption\nimg\\1.jpg,one\nM\u00fcller.jpg,two\n", encoding="utf-8")
    assert captions_of(read_collection(tmp_path / "t.csv")) == {"img/1.jpg": ("one",), "M\u00fcller.jpg": ("two",)}


@pytest.mark.parametrize(("data", "text"), [
    ("Müller, 東京".encode(), "Müller, 東京"),
    ("Müller, 東京".encode("utf-8-sig"), "Müller, 東京"),
    ("Müller, 東京".encode("utf-16"), "Müller, 東京"),
    ("Müller-Straße é".encode("cp1252"), "Müller-Straße é"),
])
def test_encodings_are_told_apart(data: bytes, text: str):
    assert decode(data) == text


def test_hard_captions_survive_export_and_import(tmp_path: Path):
    make_images(tmp_path, *(f"{number}.jpg" for number in range(len(HARD_CAPTIONS))))
    rows = [{"image": f"{n}.jpg", "caption": c, "split": "test"} for n, c in enumerate(HARD_CAPTIONS)]
    (tmp_path / "in.json").write_text(json.dumps(rows))
    first = read_collection(tmp_path / "in.json")
    export_jsonl(first, tmp_path / "elsewhere" / "out.jsonl")
    second = read_collection(tmp_path / "elsewhere" / "out.jsonl")
    assert [record.captions for record in first.records] == [(caption,) for caption in HARD_CAPTIONS]
    assert [(r.image_id, r.image, r.captions, r.split) for r in second.records] == [
        (r.image_id, r.image, r.captions, r.split) for r in first.records
    ]


def test_what_is_not_there_is_said():
    with pytest.raises(CollectionError, match=r"nowhere\.csv does not exist"):
        read_collection(Path("nowhere.csv"))


def test_rows_may_have_one_caption_or_several_or_none_and_survive_export(tmp_path: Path):
    make_images(tmp_path, "1.jpg", "2.jpg", "3.jpg")
    rows = [{"image": "1.jpg", "captions": ["a", "b"]}, {"image": "2.jpg", "caption": "c"}, {"image": "3.jpg", "caption": None}]
    (tmp_path / "t.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    expected = {"1.jpg": ("a", "b"), "2.jpg": ("c",), "3.jpg": ()}
    first = read_collection(tmp_path / "t.jsonl")
    assert captions_of(first) == expected
    export_jsonl(first, tmp_path / "out.jsonl")
    assert captions_of(read_collection(tmp_path / "out.jsonl")) == expected


def test_a_side_file_in_the_other_unicode_form_is_found(tmp_path: Path):
    make_images(tmp_path, "Gr\u00fc\u00dfe.jpg")
    (tmp_path / "Gru\u0308\u00dfe.txt").write_text("hello", encoding="utf-8")
    assert captions_of(read_collection(tmp_path)) == {"Gr\u00fc\u00dfe.jpg": ("hello",)}


def test_an_index_or_run_within_the_folder_is_not_taken_for_photographs(tmp_path: Path):
    make_images(tmp_path, "1.jpg", "idx/thumbnails/h.jpg", "run/curves.png")
    (tmp_path / "idx" / "CURRENT").write_text("gen-000001")
    (tmp_path / "run" / "model.json").write_text("{}")
    assert captions_of(read_collection(tmp_path)) == {"1.jpg": ()}


def test_one_json_object_is_named_as_such(tmp_path: Path):
    (tmp_path / "t.json").write_text(json.dumps({"images": [], "annotations": []}, indent=1))
    with pytest.raises(CollectionError, match=r"t\.json is one JSON object; a list of objects"):
        read_collection(tmp_path / "t.json")
