"""Folders and tables with odd names, unreadable folders, pipes, devices, programs, and pictures that fill the memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from helpers import make_photos, make_tiny
from PIL import Image

from densecap_search.collection.export import export_collection
from densecap_search.collection.images import IN_FLIGHT, Reserve, not_a_picture, open_image, use_image
from densecap_search.collection.readers import read_collection
from densecap_search.collection.records import Skipped
from densecap_search.embedding.content import read_contents
from densecap_search.embedding.towers import embed_images
from densecap_search.errors import CollectionError
from densecap_search.files import write_text


def picture(path: Path, colour: str = "red") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (32, 32), colour).save(path)
    return path


def not_utf_8(folder: Path) -> Path:
    return picture(folder / os.fsdecode(b"caf\xe9.png"))


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_a_name_that_is_not_utf_8_is_written_and_read_back(tmp_path: Path, suffix: str):
    image = not_utf_8(tmp_path / "photos")
    (tmp_path / "photos" / os.fsdecode(b"caf\xe9.txt")).write_bytes(b"a caption with half a letter \xed\xa0\xbd")
    found = read_collection(tmp_path / "photos")
    assert [(record.image, record.captions) for record in found.records] == [
        (image, ("a caption with half a letter \ud83d",))]
    export_collection(found, tmp_path / f"table{suffix}")
    again = read_collection(tmp_path / f"table{suffix}")
    assert [(record.image, record.captions) for record in again.records] == [
        (image, ("a caption with half a letter \ud83d",))]


def test_a_name_that_is_not_utf_8_is_encoded_and_hashed(tmp_path: Path):
    not_utf_8(tmp_path)
    records, skipped = read_contents(read_collection(tmp_path).records)
    assert not skipped
    embedded, broken = embed_images(make_tiny(), records)
    assert len(embedded.image_ids) == 1
    assert not broken


@pytest.mark.parametrize("name", ["lost+found", "private", "image", "data", "annotations", "text"])
def test_an_unreadable_folder_is_skipped_with_a_reason(tmp_path: Path, name: str):
    """In a process of another user than root, who may read everything."""
    make_photos(tmp_path / "photos")
    picture(tmp_path / "photos" / name / "hidden.png")
    (tmp_path / "photos" / name).chmod(0)
    picture(tmp_path / "first" / "a.png")
    script = ("import os, sys; from pathlib import Path; from densecap_search.collection.readers import read_collection; "
              "read_collection(Path(sys.argv[2])); "  # what is imported late, while it may be
              "os.setgid(65534); os.setuid(65534); found = read_collection(Path(sys.argv[1])); "
              "print(len(found.records)); print(*found.skipped, sep='\\n')")
    for folder in (tmp_path, *tmp_path.parents):  # pytest's own are closed to others
        if not folder.stat().st_mode & 0o001:
            folder.chmod(0o755)
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "photos"), str(tmp_path / "first")],
                          capture_output=True, text=True, check=False)
    (tmp_path / "photos" / name).chmod(0o755)
    assert done.returncode == 0, done.stderr
    count, *skipped = filter(None, done.stdout.splitlines())
    assert count == "24"
    hidden = name == "lost+found"  # which systems add: nobody asked for it
    assert skipped == ([] if hidden else [f"{tmp_path / 'photos' / name}: cannot read this folder: Permission denied"])


def test_pipes_and_devices_are_skipped_and_do_not_hang(tmp_path: Path):
    picture(tmp_path / "a.png")
    for name in ("b.jpg", "a.txt", "c.nef", "._d.jpg"):
        os.mkfifo(tmp_path / name)
    picture(tmp_path / "c.png")
    found = read_collection(tmp_path)
    reasons = {Path(skip.path).name: skip.reason for skip in found.skipped}
    assert reasons == {"a.png": "cannot read its caption file: a pipe, a socket or a device, not a file"}
    read, skipped = read_contents(found.records)
    assert [record.image.name for record in read] == ["c.png"]
    assert {(Path(skip.path).name, skip.reason) for skip in skipped} == {
        (name, "a pipe, a socket or a device, not a file") for name in ("b.jpg", "c.nef")}


@pytest.mark.parametrize("place", ["/dev/zero", "/dev/stdin", "/dev/urandom"])
def test_a_device_in_a_table_is_no_picture(tmp_path: Path, place: str):
    picture(tmp_path / "a.png")
    table = tmp_path / "t.jsonl"
    table.write_text("".join(json.dumps({"image": image, "caption": "one"}) + "\n" for image in ("a.png", place)))
    found = read_collection(table)
    assert [record.image.name for record in found.records] == ["a.png"]
    assert [skip.row for skip in found.skipped] == [2]


@pytest.mark.parametrize("name", ["table.csv", "table.jsonl", "table.json", "table.parquet", "shard.tar"])
def test_a_pipe_for_a_table_is_refused_with_a_sentence(tmp_path: Path, name: str):
    os.mkfifo(tmp_path / name)
    with pytest.raises(CollectionError, match=r"cannot read .*: a pipe, a socket or a device, not a file"):
        read_collection(tmp_path / name)


def test_a_caption_file_without_end_is_skipped(tmp_path: Path):
    picture(tmp_path / "a.png")
    with (tmp_path / "a.txt").open("wb") as file:
        file.truncate(1 << 27)  # sparse: it takes no place on the disk
    assert [skip.reason for skip in read_collection(tmp_path).skipped] == [
        "cannot read its caption file: larger than the 67 MB that are read of such a file"]


def test_a_program_for_printers_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Pillow shows EPS by starting Ghostscript, whatever the file is called."""
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *words, **more: pytest.fail("Ghostscript was started"))
    path = tmp_path / "a.jpg"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n")
    found = open_image(path)
    assert isinstance(found, Skipped)
    assert found.reason == "not a picture that Pillow can read"


SECRETS = ("passwd", "environ", "key.pem")


def table_of_secrets(folder: Path) -> Path:
    """A table that names a picture beside it, one elsewhere, and files that are no pictures."""
    picture(folder / "table" / "a.png")
    picture(folder / "elsewhere" / "b.png", "blue")
    for name in SECRETS:
        (folder / "elsewhere" / name).write_text("root:secret")
    images = ["a.png", "../elsewhere/b.png", *(f"../elsewhere/{name}" for name in SECRETS)]
    write_text(folder / "table" / "t.jsonl", "".join(json.dumps({"image": image, "caption": image}) + "\n" for image in images))
    return folder / "table" / "t.jsonl"


def test_what_is_no_picture_is_not_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = read_collection(table_of_secrets(tmp_path))
    hashed: list[str] = []
    monkeypatch.setattr("densecap_search.embedding.content.hash_file", lambda path: hashed.append(path.name) or "0")
    _, skipped = read_contents(found.records)
    assert sorted(hashed) == ["a.png", "b.png"]
    assert {Path(skip.path).name for skip in skipped} == set(SECRETS)


@pytest.mark.parametrize("outside", [False, True])
def test_export_copies_no_secret_and_nothing_from_elsewhere_unless_asked(tmp_path: Path, outside: bool):
    table = table_of_secrets(tmp_path)
    found = read_collection(table)
    if not outside:
        with pytest.raises(CollectionError, match=r"4 of 5 pictures lie outside .*table, the first is .*; --outside copies"):
            export_collection(found, tmp_path / "out", inside=table.parent)
        assert not (tmp_path / "out").exists()
        return
    left = export_collection(found, tmp_path / "out")
    assert sorted(Path(skip.path).name for skip in left) == sorted(SECRETS)
    assert sorted(path.name for path in (tmp_path / "out").rglob("*.*")) == ["a.png", "a.txt", "b.png", "b.txt", "metadata.jsonl"]


def test_a_link_out_of_the_folder_is_outside(tmp_path: Path):
    picture(tmp_path / "elsewhere" / "b.png")
    picture(tmp_path / "photos" / "a.png", "blue")
    (tmp_path / "photos" / "b.png").symlink_to(tmp_path / "elsewhere" / "b.png")
    with pytest.raises(CollectionError, match="1 of 2 pictures lie outside"):
        export_collection(read_collection(tmp_path / "photos"), tmp_path / "out", inside=tmp_path / "photos")


def test_linked_files_give_what_they_point_to_or_a_reason(tmp_path: Path):
    (tmp_path / "a.png").symlink_to("/etc/passwd")
    found = not_a_picture(tmp_path / "a.png")
    assert found is not None
    assert found.reason == "not a picture that Pillow can read"


def test_large_pictures_wait_for_each_other():
    """Of 10 threads that hold 40 bytes each of 100, never more than two hold them at once; one of 400 goes alone."""
    reserve, held, most, lock = Reserve(100), 0, 0, threading.Lock()

    def hold(count: int) -> None:
        nonlocal held, most
        with reserve.reserved(count):
            with lock:
                held += count
                most = max(most, held)
            time.sleep(0.002)
            with lock:
                held -= count

    threads = [threading.Thread(target=hold, args=(count,)) for count in [40] * 10 + [400]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert held == 0
    assert most == 400


def test_a_failing_use_gives_its_memory_back(tmp_path: Path):
    path = picture(tmp_path / "a.png")
    with pytest.raises(ZeroDivisionError):
        use_image(path, lambda image: 1 // 0)
    assert IN_FLIGHT._held == 0


def test_transparency_in_bands_is_transparency_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    image = Image.effect_noise((60, 50), 90).convert("RGBA")
    image.putalpha(Image.linear_gradient("L").resize((60, 50)))
    image.save(tmp_path / "a.png")
    whole = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    monkeypatch.setattr("densecap_search.collection.images._BAND_PIXELS", 60 * 7)
    found = open_image(tmp_path / "a.png")
    assert not isinstance(found, Skipped)
    assert found.tobytes() == whole.tobytes()
