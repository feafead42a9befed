"""Every format is told by its content, read, exported and read again unchanged."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path

import pytest
from layouts import (
    HARD_CAPTIONS,
    LAYOUTS,
    add_member,
    lay_coco,
    lay_dci,
    lay_imagefolder,
    lay_jsonl,
    lay_webdataset,
    make_images,
    picture_bytes,
    write_json,
    write_lines,
)

from densecap_search.collection.export import export_collection
from densecap_search.collection.images import open_image
from densecap_search.collection.readers import READERS, read_collection
from densecap_search.collection.records import Collection, Skipped
from densecap_search.config import Reading
from densecap_search.errors import CollectionError, MissingPackage
from densecap_search.files import cache_folder


def content(collection: Collection) -> dict:
    return {r.image_id: (r.captions, r.split, r.group, r.burst, dict(r.columns)) for r in collection.records}


def captions_of(collection: Collection) -> dict[str, tuple[str, ...]]:
    return {record.image_id: record.captions for record in collection.records}


def test_every_format_has_a_layout_here():
    assert set(LAYOUTS) == set(READERS)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_format_is_told_by_its_content(name: str, tmp_path: Path):
    path, expected = LAYOUTS[name](tmp_path / "in")
    found = read_collection(path)
    assert found.format == name
    assert found.format_reason
    assert found.skipped == ()
    assert {record.image_id: (record.captions, record.split) for record in found.records} == expected


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_format_can_be_asked_for(name: str, tmp_path: Path):
    path, expected = LAYOUTS[name](tmp_path / "in")
    found = read_collection(path, Reading(format=name))
    assert (found.format_reason.split(";")[0], len(found)) == ("as asked for", len(expected))


@pytest.mark.parametrize("output", ["out.jsonl", "out.csv", "out"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_format_survives_export_and_import(name: str, output: str, tmp_path: Path):
    first = read_collection(LAYOUTS[name](tmp_path / "in")[0])
    export_collection(first, tmp_path / "elsewhere" / output)
    second = read_collection(tmp_path / "elsewhere" / output)
    expected = content(first)
    if output == "out.csv":  # CSV knows only text
        expected = {key: (*own, {name: str(value) for name, value in columns.items()}) for key, (*own, columns) in expected.items()}
    assert content(second) == expected
    for before, after in zip(first.records, second.records, strict=True):
        if output != "out":
            assert after.image == before.image
    assert sorted(r.image.read_bytes() for r in first.records) == sorted(r.image.read_bytes() for r in second.records)


@pytest.mark.parametrize("path_kind", ["file", "folder"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_wrong_format_is_refused_with_a_sentence_or_skips_every_row(name: str, path_kind: str, tmp_path: Path):
    path = lay_imagefolder(tmp_path / "f")[0] if path_kind == "folder" else lay_jsonl(tmp_path / "j")[0]
    try:
        found = read_collection(path, Reading(format=name))
    except CollectionError as error:
        refusal, rows = str(error), []
    else:
        refusal = ""
        rows = [row for record in found.records for row in record.rows] + [skip.row for skip in found.skipped if skip.row]
    assert str(path.parent) in refusal or not refusal
    assert sorted(rows) == list(range(1, len(rows) + 1))


def test_an_unknown_format_lists_the_known_ones(tmp_path: Path):
    with pytest.raises(CollectionError, match=r"unknown format 'yolo'; known formats: parquet, arrow, .*, csv"):
        read_collection(tmp_path, Reading(format="yolo"))


def test_a_missing_parquet_reader_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, _ = LAYOUTS["parquet"](tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackage, match=r"needs the extra `parquet` \(pip install 'densecap-search\[parquet\]'\)"):
        read_collection(path)


def test_a_broken_parquet_file_is_named(tmp_path: Path):
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and then nothing of the kind")
    with pytest.raises(CollectionError, match=r"cannot read .*t\.parquet as Parquet"):
        read_collection(tmp_path / "t.parquet")


def test_a_list_below_one_key_is_read(tmp_path: Path):
    make_images(tmp_path, "1.jpg")
    write_json(tmp_path / "t.json", {"version": 2, "data": [{"image": "1.jpg", "text": "one"}]})
    found = read_collection(tmp_path / "t.json")
    assert (captions_of(found), found.format_reason) == ({"1.jpg": ("one",)}, "a JSON list of objects, below the key 'data'")


def test_coco_annotations_without_an_image_are_named(tmp_path: Path):
    path, _ = lay_coco(tmp_path)
    value = json.loads(path.read_text())
    value["annotations"] += [{"image_id": 5, "caption": "of nobody"}, {"image_id": 7}, "junk"]
    found = read_collection(write_json(path, value))
    assert [(skip.row, skip.reason) for skip in found.skipped] == [
        (6, "an annotation whose image_id 5 is not among the images"), (7, "an annotation without a caption"),
        (8, "an annotation whose image_id None is not among the images")]


def test_docci_keeps_its_four_splits_apart(tmp_path: Path):
    found = read_collection(LAYOUTS["docci"](tmp_path)[0])
    assert [record.split for record in found.records] == ["train", "test", "qual_dev", "qual_test"]
    assert "GOAL's 5,100 are test,qual_test" in found.format_reason


def test_dci_says_which_caption_and_whose_splits(tmp_path: Path):
    path, _ = lay_dci(tmp_path)
    assert "the caption is extra_caption; splits from splits.json (Meta's" in read_collection(path).format_reason
    assert captions_of(read_collection(path, Reading(caption_column=("mask_captions",))))["photos/sa_1.jpg"] == ("a mask of 1",)
    assert captions_of(read_collection(path, Reading(caption_column=("full_caption",)))) == {
        "photos/sa_1.jpg": ("short 1\nlong one",), "photos/sa_2.jpg": ("short 2",)}
    (path / "splits.json").unlink()
    found = read_collection(path / "annotations")
    assert len(found) == 2
    assert "no splits.json" in found.format_reason


def test_a_narrative_that_two_pictures_could_mean_is_skipped(tmp_path: Path):
    make_images(tmp_path, "a/x.jpg", "b/x.jpg")
    row = {"dataset_id": "flickr30k_train", "image_id": "x", "annotator_id": 0, "caption": "two of them"}
    (skip,) = read_collection(write_lines(tmp_path / "t.jsonl", [row])).skipped
    assert (skip.row, skip.reason) == (1, "2 pictures have this name: a/x.jpg, b/x.jpg")


def test_text_only_conversations_are_skipped(tmp_path: Path):
    path, _ = LAYOUTS["sharegpt4v"](tmp_path)
    rows = [*json.loads(path.read_text()), {"id": "3", "conversations": [{"from": "human", "value": "Hi"}]}]
    (skip,) = read_collection(write_json(path, rows)).skipped
    assert (skip.row, skip.reason) == (3, "the column image is empty")


def test_metadata_beside_pictures_goes_before_text_files(tmp_path: Path):
    make_images(tmp_path, "1.jpg")
    (tmp_path / "1.txt").write_text("from the text file")
    (tmp_path / "metadata.csv").write_text("file_name,text\n1.jpg,from the metadata\n")
    assert captions_of(read_collection(tmp_path)) == {"1.jpg": ("from the metadata",)}
    assert captions_of(read_collection(tmp_path, Reading(format="folder"))) == {"1.jpg": ("from the text file",)}


def test_pictures_in_shards_are_files_that_open(tmp_path: Path):
    found = read_collection(lay_webdataset(tmp_path)[0])
    assert [open_image(record.image).getpixel((0, 0)) for record in found.records[:2]] == [(0, 0, 0), (1, 0, 0)]
    assert all(record.image.is_relative_to(cache_folder()) for record in found.records)


def test_a_shard_is_taken_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, _ = lay_webdataset(tmp_path)
    before = read_collection(path)
    monkeypatch.setattr(tarfile, "open", lambda *_: pytest.fail("the shard was opened again"))
    (path / "000.tar").rename(path / "renamed.tar")  # the same content
    after = read_collection(path)
    assert {record.image for record in before.records} == {record.image for record in after.records}


def test_names_in_a_shard_lead_nowhere(tmp_path: Path):
    with tarfile.open(tmp_path / "evil.tar", "w") as tar:
        add_member(tar, "../../escaped.png", picture_bytes())
        add_member(tar, "../../escaped.txt", b"caption")
        add_member(tar, str(tmp_path / "absolute.png"), picture_bytes())
        link = tarfile.TarInfo("link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    found = read_collection(tmp_path / "evil.tar")
    assert [record.captions for record in found.records] == [("caption",), ()]
    assert all(record.image.resolve().is_relative_to(cache_folder().resolve()) for record in found.records)
    assert not list(tmp_path.glob("*.png"))
    assert not list(cache_folder().rglob("escaped*"))


def test_a_shard_that_is_cut_short_keeps_its_whole_samples(tmp_path: Path):
    path, _ = lay_webdataset(tmp_path / "in")
    data = (path / "000.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(data[: 3 * 512 * 4 + 600])
    found = read_collection(tmp_path / "cut.tar")
    assert captions_of(found)["cut.tar/000.png"] == (HARD_CAPTIONS[0],)
    assert any("cannot be read to its end" in skip.reason for skip in found.skipped)


def test_samples_without_a_picture_are_named(tmp_path: Path):
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        add_member(tar, "a.txt", b"words only")
        add_member(tar, "b.png", picture_bytes())
        add_member(tar, "b.mask.png", picture_bytes(9))
        add_member(tar, "b.json", json.dumps({"description": "from json", "key": "k"}).encode())
    found = read_collection(tmp_path / "t.tar")
    assert [(skip.row, skip.path, skip.reason) for skip in found.skipped] == [(1, "t.tar/a", "a sample without a picture")]
    (record,) = found.records
    assert (record.captions, record.columns, open_image(record.image).getpixel((0, 0))) == (
        ("from json",), {"key": "k"}, (0, 0, 0))


def test_a_folder_export_writes_text_files_that_other_trainers_read(tmp_path: Path):
    first = read_collection(LAYOUTS["folder"](tmp_path / "in")[0])
    export_collection(first, tmp_path / "out")
    assert (tmp_path / "out" / "4.txt").read_bytes() == (HARD_CAPTIONS[4] + "\n").encode()
    assert not (tmp_path / "out" / "metadata.jsonl").exists()


@pytest.mark.parametrize("ids", [("../x.jpg", "/abs/x.jpg"), ("A.jpg", "a.jpg"), (".hidden.jpg", "@eaDir/x.jpg"), ("seven", "x.txt")])
def test_ids_that_are_no_file_names_survive_a_folder_export(ids: tuple[str, str], tmp_path: Path):
    make_images(tmp_path, "one.jpg", "two.jpg")
    rows = [{"image": name, "caption": name, "id": own} for name, own in zip(("one.jpg", "two.jpg"), ids, strict=True)]
    first = read_collection(write_lines(tmp_path / "t.jsonl", rows))
    export_collection(first, tmp_path / "out")
    assert content(read_collection(tmp_path / "out")) == content(first)
    assert all(record.image.is_relative_to(tmp_path / "out") for record in read_collection(tmp_path / "out").records)


def test_twins_in_stem_keep_their_captions_in_a_folder_export(tmp_path: Path):
    make_images(tmp_path, "z/1.JPG", "z/1.jpeg")
    rows = [{"image": "z/1.JPG", "caption": "upper"}, {"image": "z/1.jpeg", "caption": "lower"}]
    first = read_collection(write_lines(tmp_path / "t.jsonl", rows))
    export_collection(first, tmp_path / "out")
    assert captions_of(read_collection(tmp_path / "out")) == {"z/1.JPG": ("upper",), "z/1.jpeg": ("lower",)}


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_half_a_character_is_exported_and_read_back(suffix: str, tmp_path: Path):
    make_images(tmp_path, "1.jpg")
    (tmp_path / "t.jsonl").write_text('{"image": "1.jpg", "caption": "half \\ud83d"}')
    export_collection(read_collection(tmp_path / "t.jsonl"), tmp_path / f"out{suffix}")
    assert captions_of(read_collection(tmp_path / f"out{suffix}")) == {"1.jpg": ("half \ud83d",)}


def test_an_export_overwrites_no_folder_and_no_other_kind_of_file(tmp_path: Path):
    found = read_collection(lay_jsonl(tmp_path / "in")[0])
    with pytest.raises(CollectionError, match="is not an empty folder"):
        export_collection(found, tmp_path / "in")
    with pytest.raises(CollectionError, match=r"must end in \.jsonl or \.csv, or be that of a folder"):
        export_collection(found, tmp_path / "out.parquet")


def test_an_unreadable_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import os

    make_images(tmp_path, "ok/1.jpg", "shut/2.jpg")
    scandir = os.scandir

    def refusing(place):
        if Path(place).name == "shut":
            raise PermissionError(13, "Permission denied", str(place))
        return scandir(place)

    monkeypatch.setattr(os, "scandir", refusing)
    found = read_collection(tmp_path, Reading(format="folder"))
    assert [record.image_id for record in found.records] == ["ok/1.jpg"]
    assert found.skipped == (Skipped(str(tmp_path / "shut"), "cannot read this folder: Permission denied", folder=True),)
