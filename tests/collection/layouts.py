"""Every format in miniature: a function that lays it out, and what must be read from it."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from densecap_search.files import hash_file

HARD_CAPTIONS = (
    "a, b; c\td|e", 'he said "go"', "first paragraph\n\nsecond paragraph", '"', "Müller-Straße, 東京 🚌",
    "x" * 5000, "line\u2028separator", "  spaces around  ", "carriage\r\nreturn",
)
Expected = dict[str, tuple[tuple[str, ...], str | None]]  # image_id → captions, split


def make_images(folder: Path, *names: str) -> None:
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (number, 0, 0)).save(path, "PNG")


def write_json(path: Path, value: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def write_lines(path: Path, rows: list) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def hard_expected(suffix: str = ".jpg") -> Expected:
    return {f"{number}{suffix}": ((caption,), None) for number, caption in enumerate(HARD_CAPTIONS)}


def lay_csv(folder: Path) -> tuple[Path, Expected]:
    make_images(folder, *hard_expected())
    text = io.StringIO(newline="")
    csv.writer(text).writerows([("image", "caption"), *((name, captions[0]) for name, (captions, _) in hard_expected().items())])
    (folder / "t.csv").write_bytes(text.getvalue().encode())
    return folder / "t.csv", hard_expected()


def lay_json(folder: Path) -> tuple[Path, Expected]:
    make_images(folder, *hard_expected())
    rows = [{"image": name, "caption": captions[0]} for name, (captions, _) in hard_expected().items()]
    return write_json(folder / "t.json", rows), hard_expected()


def lay_jsonl(folder: Path) -> tuple[Path, Expected]:
    make_images(folder, "a b/1.jpg", "2.jpg", "3.jpg")
    rows = [{"image": "a b/1.jpg", "captions": ["one", "eins"], "split": "train", "group": "g", "year": 1984, "lat": 47.5},
            {"image": "2.jpg", "caption": "two", "burst": "b", "split": "dev"}, {"image": "3.jpg", "caption": None}]
    return write_lines(folder / "t.jsonl", rows), {
        "a b/1.jpg": (("one", "eins"), "train"), "2.jpg": (("two",), "val"), "3.jpg": ((), None)}


def lay_parquet(folder: Path) -> tuple[Path, Expected]:
    import pyarrow
    import pyarrow.parquet

    make_images(folder, *hard_expected())
    rows = [{"image": name, "caption": captions[0]} for name, (captions, _) in hard_expected().items()]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "captions.data")
    return folder / "captions.data", hard_expected()


def lay_folder(folder: Path) -> tuple[Path, Expected]:
    make_images(folder, *hard_expected(), "alone.png")
    for name, (captions, _) in hard_expected().items():
        (folder / name).with_suffix(".txt").write_bytes(captions[0].encode())
    return folder, {**hard_expected(), "alone.png": ((), None)}


def lay_embedded(folder: Path) -> tuple[Path, Expected]:
    make_images(folder, "b.png")
    exif = Image.Exif()
    exif[270] = "a caption in the file"
    Image.new("RGB", (4, 4)).save(folder / "a.jpg", exif=exif)
    return folder, {"a.jpg": (("a caption in the file",), None), "b.png": ((), None)}


def lay_imagefolder(folder: Path) -> tuple[Path, Expected]:
    make_images(folder, "train/1.jpg", "test/1.jpg")
    write_lines(folder / "train" / "metadata.jsonl", [{"file_name": "1.jpg", "text": "one"}])
    (folder / "test" / "metadata.csv").write_text("file_name,text\n1.jpg,two\n")
    return folder, {"train/1.jpg": (("one",), "train"), "test/1.jpg": (("two",), "test")}


def lay_coco(folder: Path) -> tuple[Path, Expected]:
    make_images(folder, "val2017/7.jpg", "val2017/9.jpg")
    images = [{"id": 9, "file_name": "9.jpg", "height": 4}, {"id": 7, "file_name": "7.jpg", "height": 4}]
    annotations = [{"id": 1, "image_id": 7, "caption": "seven"}, {"id": 2, "image_id": 9, "caption": "nine"},
                   {"id": 3, "image_id": 7, "caption": "sept"}]
    path = write_json(folder / "annotations" / "captions.json", {"info": {}, "images": images, "annotations": annotations})
    return path, {"val2017/9.jpg": (("nine",), None), "val2017/7.jpg": (("seven", "sept"), None)}


def lay_karpathy(folder: Path) -> tuple[Path, Expected]:
    make_images(folder, "val2014/1.jpg", "val2014/2.jpg")
    images = [{"filepath": "val2014", "filename": f"{n}.jpg", "split": split, "sentences": [{"raw": f"{n} a"}, {"raw": f"{n} b"}]}
              for n, split in ((1, "restval"), (2, "test"))]
    return write_json(folder / "dataset.json", {"dataset": "coco", "images": images}), {
        "val2014/1.jpg": (("1 a", "1 b"), "restval"), "val2014/2.jpg": (("2 a", "2 b"), "test")}


def lay_docci(folder: Path) -> tuple[Path, Expected]:
    splits = ("train", "test", "qual_dev", "qual_test")
    make_images(folder, *(f"images/{split}_0.jpg" for split in splits))
    rows = [{"split": split, "type": "image", "description": f"of {split}", "image_file": f"{split}_0.jpg",
             "example_id": f"{split}_0"} for split in splits]
    return write_lines(folder / "descriptions", rows), {
        f"images/{split}_0.jpg": ((f"of {split}",), split) for split in splits}


def lay_goal(folder: Path) -> tuple[Path, Expected]:
    make_images(folder, "sa_1.jpg", "sa_2.jpg")
    segment = [{"filename": "sa_1_0.jpg", "caption": "a part", "similarity_score": 0.3}]
    rows = [{"original_filename": f"sa_{n}.jpg", "original_caption": f"long {n}", "segment": segment} for n in (1, 2)]
    return write_json(folder / "dci_train.json", rows), {f"sa_{n}.jpg": ((f"long {n}",), None) for n in (1, 2)}


def lay_sharegpt4v(folder: Path) -> tuple[Path, Expected]:
    make_images(folder, "coco/train2017/1.jpg", "2.jpg")
    rows = [{"id": "1", "image": image, "conversations": [
        {"from": "human", "value": "<image>\nDescribe it."}, {"from": "gpt", "value": f"an answer about {image}"}]}
        for image in ("coco/train2017/1.jpg", "2.jpg")]
    return write_json(folder / "cap.json", rows), {
        row["image"]: ((row["conversations"][1]["value"],), None) for row in rows}


def lay_vg_paragraphs(folder: Path) -> tuple[Path, Expected]:
    make_images(folder, "VG_100K/1.jpg", "VG_100K_2/2.jpg")
    rows = [{"url": f"https://example.org/{n}.jpg", "image_id": n, "paragraph": f"paragraph {n}"} for n in (1, 2)]
    write_json(folder / "train_split.json", [1])
    write_json(folder / "test_split.json", [2])
    return write_json(folder / "paragraphs_v1.json", rows), {
        "VG_100K/1.jpg": (("paragraph 1",), "train"), "VG_100K_2/2.jpg": (("paragraph 2",), "test")}


def lay_localized_narratives(folder: Path) -> tuple[Path, Expected]:
    make_images(folder, "val2017/000000000139.jpg", "val2017/000000000285.jpg")
    rows = [{"dataset_id": "mscoco_val2017", "image_id": image, "annotator_id": who, "caption": f"{who} on {image}", "traces": [[]]}
            for image, who in (("139", 1), ("285", 1), ("139", 2))]
    return write_lines(folder / "coco_val_localized_narratives.jsonl", rows), {
        "val2017/000000000139.jpg": (("1 on 139", "2 on 139"), "val"), "val2017/000000000285.jpg": (("1 on 285",), "val")}


def lay_urban1k(folder: Path) -> tuple[Path, Expected]:
    make_images(folder, "image/1.jpg", "image/2.jpg")
    (folder / "caption").mkdir()
    for number in (1, 2):
        (folder / "caption" / f"{number}.txt").write_text(f"street {number}\n")
    return folder, {f"image/{number}.jpg": ((f"street {number}",), None) for number in (1, 2)}


def lay_dci(folder: Path) -> tuple[Path, Expected]:
    make_images(folder, "photos/sa_1.jpg", "photos/sa_2.jpg")
    for number, extra in ((1, "long one"), (2, "")):
        write_json(folder / "annotations" / f"{number}.json", {
            "image": f"sa_{number}.jpg", "short_caption": f"short {number}", "extra_caption": extra,
            "mask_data": {"0": {"caption": f"a mask of {number}", "label": "mask"}, "1": {"label": "none"}}})
    write_json(folder / "splits.json", {"train": ["sa_1.json"], "valid": [{"image": "sa_2.jpg"}]})
    return folder, {"photos/sa_1.jpg": (("long one",), "train"), "photos/sa_2.jpg": ((), "val")}


def lay_arrow(folder: Path, first: int = 0) -> tuple[Path, Expected]:
    """As save_to_disk writes it: a stream, with pictures in it."""
    import pyarrow

    folder.mkdir(parents=True)
    rows = [{"image": {"bytes": picture_bytes(number), "path": f"{number}.png"}, "caption": caption}
            for number, caption in enumerate(HARD_CAPTIONS, start=first)]
    table = pyarrow.Table.from_pylist(rows)
    with pyarrow.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as out:
        out.write_table(table)
    return folder / "data-00000-of-00001.arrow", {
        f"data-00000-of-00001.arrow/{number}.png": ((caption,), None) for number, caption in enumerate(HARD_CAPTIONS, start=first)}


def lay_excel(folder: Path) -> tuple[Path, Expected]:
    import openpyxl

    captions = HARD_CAPTIONS[:-1]  # a workbook has no lone carriage return
    make_images(folder, *(f"{number}.jpg" for number in range(len(captions))))
    book = openpyxl.Workbook()
    for row in [("image", "caption", "year"), *((f"{number}.jpg", caption, 1984) for number, caption in enumerate(captions))]:
        book.active.append(row)
    book.save(folder / "t.xlsx")
    return folder / "t.xlsx", {f"{number}.jpg": ((caption,), None) for number, caption in enumerate(captions)}


def lay_label_studio(folder: Path) -> tuple[Path, Expected]:
    make_images(folder, "images/1.jpg", "images/2.jpg")

    def written(*texts: str) -> dict:
        return {"result": [{"type": "textarea", "from_name": "caption", "value": {"text": list(texts)}}]}

    tasks = [{"id": 1, "data": {"image": "/data/upload/3/0a1b2c3d-1.jpg"}, "annotations": [written("one", "eins"), written("un")]},
             {"id": 2, "data": {"image": "/data/local-files/?d=images/2.jpg"}, "annotations": [
                 {**written("taken back"), "was_cancelled": True}, written("two")]}]
    return write_json(folder / "project-1.json", tasks), {
        "images/1.jpg": (("one", "eins", "un"), None), "images/2.jpg": (("two",), None)}


def lay_cvat(folder: Path) -> tuple[Path, Expected]:
    make_images(folder, "images/1.jpg", "images/2.jpg")
    (folder / "annotations.xml").write_text("""<?xml version="1.0" encoding="utf-8"?>
<annotations><version>1.1</version>
  <image id="0" name="1.jpg" subset="Train" width="4" height="4"><tag label="scene"><attribute name="caption">one &amp; all</attribute></tag></image>
  <image id="1" name="2.jpg" subset="Validation" width="4" height="4"><box label="boat"><attribute name="colour">red</attribute></box></image>
</annotations>""")
    return folder / "annotations.xml", {"images/1.jpg": (("one & all",), "train"), "images/2.jpg": ((), "val")}


def lay_captions_by_name(folder: Path) -> tuple[Path, Expected]:
    make_images(folder, "1.jpg", "2.jpg", "3.jpg")
    return write_json(folder / "t.json", {"1.jpg": "one", "2.jpg": ["two", "zwei"], "3.jpg": {"caption": "three", "split": "test"}}), {
        "1.jpg": (("one",), None), "2.jpg": (("two", "zwei"), None), "3.jpg": (("three",), "test")}


def lay_flickr_tokens(folder: Path) -> tuple[Path, Expected]:
    make_images(folder, "Flicker8k_Dataset/1.jpg", "Flicker8k_Dataset/2.jpg")
    (folder / "Flickr8k.token.txt").write_text("1.jpg#0\ta dog .\n1.jpg#1\tthe dog .\n2.jpg#0\ta\tcat .\n")
    return folder / "Flickr8k.token.txt", {
        "Flicker8k_Dataset/1.jpg": (("a dog .", "the dog ."), None), "Flicker8k_Dataset/2.jpg": (("a\tcat .",), None)}


def add_member(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def picture_bytes(red: int = 0) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (4, 4), (red, 0, 0)).save(file, "PNG")
    return file.getvalue()


def lay_webdataset(folder: Path) -> tuple[Path, Expected]:
    folder.mkdir(parents=True, exist_ok=True)
    expected: Expected = {}
    for shard, captions in (("000.tar", HARD_CAPTIONS[:5]), ("001.tar", HARD_CAPTIONS[5:])):
        with tarfile.open(folder / shard, "w") as tar:
            for number, caption in enumerate(captions):
                add_member(tar, f"{number:03d}.png", picture_bytes(number))
                add_member(tar, f"{number:03d}.json", json.dumps({"split": "test", "year": number}).encode())
                add_member(tar, f"{number:03d}.txt", caption.encode())
                expected[f"{shard}/{number:03d}.png"] = ((caption,), "test")
    return folder, expected


def lay_feedback(folder: Path) -> tuple[Path, Expected]:
    make_images(folder, "a/1.jpg", "a/2.jpg")
    ours = [{"densecap": "feedback", "answer": "this", "query": f"query {number}", "image": str(path), "hash": hash_file(path)}
            for number, path in enumerate(sorted((folder / "a").iterdir()), start=1)]
    split = ["test" if int(row["hash"][:8], 16) % 5 < 2 else "train" for row in ours]
    return write_lines(folder / "mine.feedback.jsonl", ours), {
        "a/1.jpg": (("query 1",), split[0]), "a/2.jpg": (("query 2",), split[1])}


LAYOUTS: dict[str, Callable[[Path], tuple[Path, Expected]]] = {
    "parquet": lay_parquet, "arrow": lay_arrow, "excel": lay_excel, "label-studio": lay_label_studio, "cvat": lay_cvat,
    "captions-by-name": lay_captions_by_name, "flickr-tokens": lay_flickr_tokens, "webdataset": lay_webdataset, "imagefolder": lay_imagefolder, "dci": lay_dci,
    "urban1k": lay_urban1k, "folder": lay_folder, "embedded": lay_embedded, "coco": lay_coco, "karpathy": lay_karpathy,
    "docci": lay_docci, "goal": lay_goal, "sharegpt4v": lay_sharegpt4v, "vg-paragraphs": lay_vg_paragraphs,
    "feedback": lay_feedback,
    "localized-narratives": lay_localized_narratives, "json": lay_json, "jsonl": lay_jsonl, "csv": lay_csv,
}
