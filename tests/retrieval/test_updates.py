from __future__ import annotations

import os
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from helpers import draw_photo, make_photos, make_tiny
from PIL import Image

from densecap_search.collection.dates import date_taken
from densecap_search.collection.readers import read_collection
from densecap_search.collection.records import Record, Skipped
from densecap_search.config import ModelConfig
from densecap_search.errors import CollectionError, FolderBusy, IndexFolderError, NewerIndex
from densecap_search.files import hash_file
from densecap_search.locks import locked
from densecap_search.model.encoder import DualEncoder
from densecap_search.retrieval import contents
from densecap_search.retrieval.changes import Changes, plan_update, signature
from densecap_search.retrieval.index import load_index
from densecap_search.retrieval.index_folder import undo
from densecap_search.retrieval.rows import Known
from densecap_search.retrieval.update import IndexSummary, Wanted, bring_up_to_date, preview_update, remove_collection
from densecap_search.talk import Talk

MODEL, AS_IT_IS = ModelConfig("tiny"), Wanted()


def record(name: str, caption: str = "") -> Record:
    return Record(name, Path("/p") / name, (caption,) if caption else ())


def known(number: int, name: str, content: str, caption: str = "") -> Known:
    return Known(number, "c", name, f"/p/{name}", content, 1, 1, signature(record(name, caption)))


def plan(old: list[Known], new: list[tuple[Record, str]], elsewhere: dict[str, int] | None = None) -> Changes:
    return plan_update(old, [found for found, _ in new], [content for _, content in new], elsewhere)


@pytest.mark.parametrize("near", [1, 3, 1000])
@pytest.mark.parametrize("order", ["as known", "some gone", "some new", "reversed", "shuffled"])
def test_what_is_known_of_a_path_is_found_whatever_the_order(order: str, near: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(contents, "NEAR", near)
    rows = [known(number, f"{number}.jpg", "A") for number in range(20)]
    paths = {"as known": [*range(20)], "some gone": [0, 5, 6, 12, 19], "some new": [50, 0, 51, *range(1, 20), 52],
             "reversed": [*range(20)][::-1], "shuffled": np.random.default_rng(0).permutation(25).tolist()}[order]
    found = contents.known_of([record(f"{number}.jpg") for number in paths], rows)
    assert found == [rows[number] if number < 20 else None for number in paths]


def test_a_plan_that_is_told_what_stands_at_each_path_is_the_same_plan():
    old = [known(0, "a", "A"), known(1, "b", "B"), known(2, "c", "C"), known(3, "d", "D")]
    new = [record("b"), record("a", "said"), record("e"), record("f"), record("g")]
    hashes = ["B", "A", "C", "B", "G"]
    before = [old[1], old[0], None, old[3], old[2]]  # two paths have other pictures now
    told = plan_update(old, new, hashes, before=before)
    assert told == plan_update(old, new, hashes)
    assert (names(told.restated), names(told.copied), [one.image_id for one in told.new], told.gone) == (
        [(0, "a"), (2, "e")], [(1, "f")], ["g"], (3,))


def names(records: tuple[tuple[int, Record], ...]) -> list[tuple[int, str]]:
    return [(number, found.image_id) for number, found in records]


def test_a_plan_tells_new_changed_moved_described_copied_and_gone_apart():
    old = [known(0, "same", "A"), known(1, "edited", "B"), known(2, "old name", "C"), known(3, "described", "D"),
           known(4, "gone", "E"), known(7, "copied", "F")]
    found = plan(old, [(record("same"), "A"), (record("edited"), "B2"), (record("new name"), "C"),
                       (record("described", "a caption"), "D"), (record("copied"), "F"), (record("copy"), "F"),
                       (record("new"), "G"), (record("elsewhere"), "H")], {"H": 99})
    assert (found.kept, found.moved, found.before, found.recurring) == (2, 1, 6, 4)
    assert names(found.restated) == [(3, "described"), (2, "new name")]
    assert names(found.copied) == [(7, "copy"), (99, "elsewhere")]
    assert [new.image_id for new in found.new] == ["edited", "new"]
    assert (found.gone, found.lost, found.vanished) == ((1, 4), 1, 2)


def test_names_that_trade_their_contents_are_two_moves():
    found = plan([known(0, "a", "A"), known(1, "b", "B")], [(record("a"), "B"), (record("b"), "A")])
    assert (names(found.restated), found.new, found.gone) == ([(1, "a"), (0, "b")], (), ())


def test_a_renamed_case_and_copies_of_one_content_keep_their_numbers():
    old = [known(0, "A.jpg", "X"), known(1, "b.jpg", "X")]
    found = plan(old, [(record("a.jpg"), "X"), (record("b.jpg"), "X"), (record("c.jpg"), "X")])
    assert (found.kept, names(found.restated), names(found.copied), found.gone) == (1, [(0, "a.jpg")], [(1, "c.jpg")], ())


def test_pictures_below_a_folder_that_cannot_be_read_are_kept_and_not_taken_for_moved():
    old = [known(0, "shut/a", "A"), known(1, "shut/deep/b", "B"), known(2, "shutter/c", "C"), known(3, "shut/d", "D")]
    found = plan_update(old, [record("copy of a"), Record("shut/d", Path("/p/d"))], ["A", "D2"], closed=["/p/shut"])
    assert (found.kept, found.unseen, found.gone, found.lost) == (2, (0, 1), (2, 3), 1)
    assert (names(found.restated), names(found.copied)) == ([], [(0, "copy of a")])
    assert [new.image_id for new in found.new] == ["shut/d"]  # its name is another file's now


@cache
def tiny() -> DualEncoder:
    return make_tiny()


def no_encoder() -> object:
    raise AssertionError("no model is needed")


def aged(folder: Path) -> Path:
    """Files written long enough ago for their times to tell that they have not changed."""
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (1_600_000_000, 1_600_000_000))
    return folder


def update(photos: Path, folder: Path, wanted: Wanted = AS_IT_IS, load=tiny) -> IndexSummary:
    wanted = replace(wanted, place=photos, trust_files=True)
    return bring_up_to_date(read_collection(photos), load, MODEL, folder, wanted)


def state(folder: Path) -> list[tuple[str, tuple[str, ...], str, bytes]]:
    """All that a search shows, whatever the numbers."""
    index = load_index(folder)
    vectors = index.stored.take(index.numbers)
    return sorted((row.image_id, row.captions, row.hash, vector.tobytes()) for row, vector in zip(index.rows, vectors, strict=True))


def test_an_unchanged_archive_opens_no_picture_and_loads_no_model(photos: Path, tmp_path: Path, monkeypatch):
    (photos / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n half")
    first = update(aged(photos), tmp_path / "i")
    assert (len(first.index), first.encoded, [Path(skip.path).name for skip in first.skipped]) == (24, 24, ["broken.png"])
    opened: list[Path] = []
    whole_open = Path.open
    monkeypatch.setattr(Path, "open", lambda path, *args, **more: opened.append(path) or whole_open(path, *args, **more))
    again = update(photos, tmp_path / "i", load=no_encoder)
    assert (again.changed, again.encoded, again.skipped) == (False, 0, first.skipped)
    assert not [path for path in opened if path.suffix == ".png"]


def test_a_touched_file_is_read_once_more_and_changes_nothing(photos: Path, tmp_path: Path):
    update(aged(photos), tmp_path / "i")
    touched = photos / "red-left-ball.png"
    os.utime(touched, (1_600_000_005, 1_600_000_005))
    again = update(photos, tmp_path / "i", load=no_encoder)
    row = next(row for row in again.index.rows if row.image_id == touched.name)
    assert (again.changed, row.modified) == (False, 1_600_000_005 * 10**9)


def test_a_file_of_the_same_size_that_changed_a_moment_ago_is_read_again(photos: Path, tmp_path: Path):
    path = photos / "red-left-ball.png"
    update(photos, tmp_path / "i")
    status, data = path.stat(), bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert update(photos, tmp_path / "i").changes.new[0].image == path


def test_moved_files_and_folders_cost_no_model_and_vectors_are_not_written_again(photos: Path, tmp_path: Path):
    update(aged(photos), tmp_path / "i")
    files = sorted((tmp_path / "i" / "vectors").iterdir())
    (photos / "one").mkdir()
    for name in ("red-left-ball", "red-left-box"):
        for suffix in (".png", ".txt"):
            shutil.move(photos / f"{name}{suffix}", photos / "one" / f"{name}{suffix}")
    moved = update(photos, tmp_path / "i", load=no_encoder)
    assert (moved.changes.moved, moved.changed, len(moved.index)) == (2, True, 24)
    (photos / "one").rename(photos / "Two")
    again = update(photos, tmp_path / "i", load=no_encoder)
    assert sorted((tmp_path / "i" / "vectors").iterdir()) == files
    ids = [row.image_id for row in again.index.rows]
    assert sorted(ids) == sorted({*ids})
    assert "Two/red-left-ball.png" in ids
    assert {row.folder for row in again.index.rows} == {".", "Two"}
    update(photos, tmp_path / "fresh")
    assert state(tmp_path / "i") == state(tmp_path / "fresh")


def test_removed_pictures_are_hidden_at_once_and_compacted_when_a_quarter_is_dead(photos: Path, tmp_path: Path):
    update(photos, tmp_path / "i")
    pictures = sorted(photos.glob("*.png"))
    for count in range(1, 9):
        pictures[count - 1].unlink()
        index = update(photos, tmp_path / "i").index
        assert (len(index), len(list(index.rows))) == (24 - count, 24 - count)
        assert len(index.dead) == (count if count <= 6 else count - 7)  # 6 of 24 are a quarter
        assert not {path.name for path in pictures[:count]} & {row.image_id for row in index.rows}
    assert index.manifest.total == 17


def test_a_folder_that_cannot_be_read_keeps_its_pictures_in_the_index(photos: Path, tmp_path: Path):
    (photos / "shut").mkdir()
    for path in [path for path in photos.iterdir() if path.name.startswith("red")]:
        path.rename(photos / "shut" / path.name)
    update(aged(photos), tmp_path / "i")
    before, whole = state(tmp_path / "i"), read_collection(photos)
    open_ones = tuple(found for found in whole.records if not found.image_id.startswith("shut/"))
    closed = Skipped(str(photos / "shut"), "cannot read this folder: Permission denied", folder=True)
    partly = replace(whole, records=open_ones, skipped=(closed,))
    assert (len(whole.records), len(open_ones)) == (24, 18)
    wanted = Wanted(place=photos, trust_files=True)
    same = bring_up_to_date(partly, no_encoder, MODEL, tmp_path / "i", wanted)
    assert (len(same.index), same.encoded, same.removed, same.skipped) == (24, 0, 0, (closed,))
    fewer = replace(partly, records=open_ones[1:])  # a picture is gone where the folder can be read
    less = bring_up_to_date(fewer, tiny, MODEL, tmp_path / "i", wanted)
    assert (less.reused, less.removed) == (23, 1)
    assert state(tmp_path / "i") == [row for row in before if row[0] != open_ones[0].image_id]
    anew = bring_up_to_date(fewer, tiny, MODEL, tmp_path / "i", replace(wanted, rebuild=True))
    assert (len(anew.index), anew.removed) == (23, 0)
    gone = bring_up_to_date(replace(fewer, skipped=()), tiny, MODEL, tmp_path / "i", wanted)
    assert (len(gone.index), gone.removed) == (17, 6)  # it can be read, and is empty


def test_losing_much_is_refused_unless_it_is_said(tmp_path: Path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(40):
        Image.new("RGB", (32, 32), (6 * number, 0, 0)).save(photos / f"{number:02}.png")
    update(photos, tmp_path / "i")
    for number in range(11):
        (photos / f"{number:02}.png").unlink()
        if number == 9:
            assert len(update(photos, tmp_path / "ten").index) == 30
    with pytest.raises(IndexFolderError, match=r"11 of the 40 pictures that .* holds of photos are missing .*--prune"):
        update(photos, tmp_path / "i")
    assert len(load_index(tmp_path / "i")) == 40
    for number in range(11, 39):
        (photos / f"{number:02}.png").unlink()
    with pytest.raises(IndexFolderError, match=r"only 1 of them are in photos: add it beside them with --add"):
        update(photos, tmp_path / "i")
    assert len(update(photos, tmp_path / "i", Wanted(prune=True)).index) == 1


def test_another_collection_is_refused_added_listed_updated_and_removed_by_name(photos: Path, tmp_path: Path):
    update(photos, tmp_path / "i")
    other = tmp_path / "other"
    other.mkdir()
    draw_photo(other / "red-left-ball.png", "green", "left", "box")  # a content that the index knows
    Image.new("RGB", (32, 32), (9, 9, 9)).save(other / "new.png")
    with pytest.raises(IndexFolderError, match="holds 24 pictures of photos, and only 1 of them are in other"):
        update(other, tmp_path / "i")
    added = update(other, tmp_path / "i", Wanted(add=True))
    assert ([origin.name for origin in added.index.manifest.origins], len(added.index), added.encoded) == (["photos", "other"], 26, 1)
    rows = {row.image_id: row for row in added.index.rows}
    assert (rows["other/red-left-ball.png"].source, rows["red-left-ball.png"].source) == ("other", "photos")
    assert not update(photos, tmp_path / "i").changed  # each is known by its place
    (other / "new.png").unlink()
    assert len(update(other, tmp_path / "i").index) == 25
    with pytest.raises(IndexFolderError, match=r"holds the collections photos, other, none of them from .*--name"):
        update(make_photos(tmp_path / "third"), tmp_path / "i")
    with pytest.raises(IndexFolderError, match="holds no collection 'x'; it holds: photos, other"):
        remove_collection(tmp_path / "i", "x")
    assert {row.source for row in remove_collection(tmp_path / "i", "photos").rows} == {"other"}
    with pytest.raises(IndexFolderError, match="other is all that"):
        remove_collection(tmp_path / "i", "other")
    assert len(load_index(tmp_path / "i")) == 1


def test_another_model_encodes_the_other_collections_as_well(photos: Path, tmp_path: Path):
    update(photos, tmp_path / "i")
    other = make_photos(tmp_path / "other")
    update(other, tmp_path / "i", Wanted(add=True))
    made = bring_up_to_date(read_collection(other), lambda: make_tiny(seed=1), ModelConfig("new"), tmp_path / "i", Wanted(place=other))
    assert (made.encoded, len(made.index), made.rebuilt_for) == (48, 48, "tiny")
    assert {row.source for row in made.index.rows} == {"photos", "other"}


def test_undo_goes_back_one_generation_and_the_next_update_goes_on_from_there(photos: Path, tmp_path: Path):
    update(photos, tmp_path / "i")
    before = state(tmp_path / "i")
    (photos / "red-left-ball.txt").write_text("other words")
    (photos / "red-left-box.png").unlink()
    Image.new("RGB", (32, 32), (9, 9, 9)).save(photos / "new.png")
    update(photos, tmp_path / "i")
    after = state(tmp_path / "i")
    undo(tmp_path / "i")
    assert state(tmp_path / "i") == before
    with pytest.raises(IndexFolderError, match="nothing to undo"):
        undo(tmp_path / "i")
    update(photos, tmp_path / "i")
    assert state(tmp_path / "i") == after


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(photos: Path, tmp_path: Path):
    collection = read_collection(photos)
    assert str(preview_update(collection, MODEL, tmp_path / "i", Wanted())).startswith("24 to encode, 0 unchanged")
    assert not (tmp_path / "i").exists()
    update(photos, tmp_path / "i")
    before = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "i").rglob("*"))
    (photos / "red-left-ball.png").rename(photos / "r.png")
    (photos / "red-left-box.txt").write_text("other words")
    (photos / "blue-left-box.png").unlink()
    found = preview_update(read_collection(photos), MODEL, tmp_path / "i", Wanted())
    assert str(found) == ("0 to encode, 21 unchanged, 1 moved or renamed, 1 described anew, 0 copies of known pictures, "
                          "1 removed or replaced")
    assert sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "i").rglob("*")) == before


def test_a_second_writer_is_told_who_writes(photos: Path, tmp_path: Path):
    with locked(tmp_path / "i", "densecap index"), pytest.raises(FolderBusy, match=rf"process {os.getpid()} on"):
        update(photos, tmp_path / "i")


def test_an_update_that_fails_leaves_the_index_as_it_was(photos: Path, tmp_path: Path):
    update(photos, tmp_path / "i")
    before = state(tmp_path / "i")
    (photos / "red-left-ball.txt").write_text("other words")
    (photos / "new.png").write_bytes(b"broken")
    with pytest.raises(CollectionError, match="1 pictures cannot be used"):
        update(photos, tmp_path / "i", Wanted(strict=True))
    assert state(tmp_path / "i") == before
    found = update(photos, tmp_path / "i")
    assert (len(found.index), found.changed) == (24, True)
    update(photos, tmp_path / "fresh")
    assert state(tmp_path / "i") == state(tmp_path / "fresh")


def test_many_small_updates_keep_few_files_of_vectors(photos: Path, tmp_path: Path):
    update(photos, tmp_path / "i")
    for number in range(20):
        Image.new("RGB", (32, 32), (9, 9, number)).save(photos / f"n{number}.png")
        index = update(photos, tmp_path / "i").index
        assert len(index.manifest.vectors) <= 16
    assert len(index) == 44
    index.check_files()
    update(photos, tmp_path / "fresh")
    assert [entry[:3] for entry in state(tmp_path / "i")] == [entry[:3] for entry in state(tmp_path / "fresh")]


def test_an_index_of_a_newer_version_is_not_built_anew(photos: Path, tmp_path: Path):
    update(photos, tmp_path / "i")
    manifest = tmp_path / "i" / "gen-000001" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 2', '"format": 3'))
    with pytest.raises(NewerIndex):
        update(photos, tmp_path / "i")


FORMAT_1 = Path(__file__).parent / "format1"


def old_index(tmp_path: Path, encoder) -> Path:
    shutil.copytree(FORMAT_1 / "index", tmp_path / "i")
    manifest = tmp_path / "i" / "gen-000001" / "manifest.json"
    made_by = '"110a4545e063358e364d12bfcea3fc76"'
    assert made_by in manifest.read_text()
    manifest.write_text(manifest.read_text().replace(made_by, f'"{encoder.fingerprint()}"'))
    return tmp_path / "i"


def test_an_index_of_format_1_is_brought_over_without_encoding(tmp_path: Path):
    said: list[str] = []
    folder = old_index(tmp_path, tiny())
    vectors = np.load(folder / "gen-000001" / "vectors.npy")
    index = load_index(folder, talk=Talk(say=said.append))
    assert len(said) == 1
    assert "nothing was encoded; vectors made by a model of --interpolate auto in that version may be wrong" in said[0]
    assert np.array_equal(index.vectors(), vectors)
    assert (len(index), index.rows[0].image_id, index.rows[0].image) == (6, "blue-left.png", "/srv/photos/blue-left.png")
    assert index.rows[0].captions == ("A blue ball lies on the left of a white table, and nothing else can be seen.",)
    assert index.search(vectors[2:3], 1)[0][0][0] == 2
    index.check_files()
    shutil.copytree(FORMAT_1 / "photos", tmp_path / "photos")
    found = update(tmp_path / "photos", folder, load=tiny)
    assert (found.encoded, found.changes.moved, found.index.rows[0].folder) == (0, 6, ".")
    undo(folder)
    assert load_index(folder).rows[0].image == "/srv/photos/blue-left.png"


def test_an_index_of_format_1_is_brought_up_to_date_at_once(tmp_path: Path):
    folder = old_index(tmp_path, tiny())
    shutil.copytree(FORMAT_1 / "photos", tmp_path / "photos")
    found = update(tmp_path / "photos", folder, load=tiny)
    assert (found.encoded, found.changes.moved, len(found.index)) == (0, 6, 6)


def test_an_index_of_format_1_with_other_rows_than_its_manifest_says_is_refused(tmp_path: Path):
    folder = old_index(tmp_path, tiny())
    images, manifest = (folder / "gen-000001" / name for name in ("images.jsonl", "manifest.json"))
    before = hash_file(images)
    images.write_text(images.read_text().replace("f74ba4f7c99faa1cc4b654b392df75bb", "../../x"))
    with pytest.raises(IndexFolderError, match=r"images\.jsonl is damaged"):
        load_index(folder)
    manifest.write_text(manifest.read_text().replace(before, hash_file(images)))
    with pytest.raises(IndexFolderError, match=r"the hash of picture 0 is '\.\./\.\./x'"):
        list(load_index(folder).rows)


@pytest.mark.parametrize(("written", "found"), [("2019:05:31 14:03:59", "2019-05-31 14:03:59"), ("2019-05-31", "2019-05-31"),
                                                ("0000:00:00 00:00:00", None), ("yesterday", None)])
def test_the_date_of_a_picture_is_that_of_its_exif(written: str, found: str | None, tmp_path: Path):
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0x9003] = written
    Image.new("RGB", (8, 8)).save(tmp_path / "a.jpg", exif=exif)
    assert date_taken(tmp_path / "a.jpg") == found
