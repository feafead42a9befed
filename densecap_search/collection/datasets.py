"""Public caption collections in the layouts that they are published in. Each reader yields plain rows."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from densecap_search.collection.json_tables import as_row, read_json, read_jsonl
from densecap_search.collection.records import Skipped
from densecap_search.collection.source import Row, Rows, Source
from densecap_search.collection.splits import normal_split
from densecap_search.collection.text_files import TABLE_BYTES, decode, parse_json
from densecap_search.collection.walk import find_images
from densecap_search.errors import CollectionError
from densecap_search.files import is_file, is_folder, read_bytes


def _changed(rows: Rows, change: Callable[[int, Row], Row | Skipped]) -> Rows:
    """Rows made anew; what was skipped already stays so."""
    for number, row in rows:
        yield number, row if isinstance(row, Skipped) else change(number, row)


def is_coco(source: Source) -> str | None:
    """One object: `images` with file names, `annotations` of which any has a caption (boxes may come first)."""
    value = source.value if isinstance(source.value, dict) else {}
    annotations = value.get("annotations")
    told = isinstance(annotations, list) and any(isinstance(item, dict) and "caption" in item for item in annotations)
    named = told and "file_name" in _first_of(value, "images")
    return "the keys images (file_name) and annotations (caption)" if named else None


def read_coco(source: Source) -> Rows:
    """COCO captions: an image is a row, its captions in the order of the annotations. Ids may be numbers or text.

    Annotations that cannot be used are rows after the images: their number is that of the images plus their own.
    Boxes and areas are no rows.
    """
    images, annotations = (_list_of(source, key) for key in ("images", "annotations"))
    captions: dict[str, list[str]] = {_id(image["id"]): [] for image in images if _has_key(image, "id")}
    lost: list[Skipped] = []
    boxes = 0
    for number, item in enumerate(annotations, start=len(images) + 1):
        key = _id(item["image_id"]) if isinstance(item, dict) and _has_key(item, "image_id") else None
        caption = item.get("caption") if isinstance(item, dict) else None
        if key is None or key not in captions:
            said = repr(item["image_id"]) if key is not None else None
            lost.append(Skipped("", f"an annotation whose image_id {said} is not among the images", number))
        elif isinstance(caption, str):
            captions[key].append(caption)
        elif "bbox" in item or "segmentation" in item:
            boxes += 1
        else:
            lost.append(Skipped("", "an annotation without a caption", number))
    if boxes:
        source.notes.append(f"{boxes} annotations are boxes or areas without a caption")
    for number, image in enumerate(images, start=1):
        row = as_row(image, number)
        if not isinstance(row, Skipped):
            known = {("coco_id" if key == "id" else key): value for key, value in row.items()}
            row = {**known, "captions": captions.get(_id(row["id"]), []) if _has_key(row, "id") else []}
        yield number, row
    yield from ((skip.row or 0, skip) for skip in lost)


def _id(value: str | float) -> str:
    """One word for 7, 7.0 and "7"."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def is_karpathy(source: Source) -> str | None:
    """One object: `images` with `sentences`, as in Karpathy's splits of COCO and Flickr."""
    value = source.value if isinstance(source.value, dict) else {}
    first = _first_of(value, "images")
    return "the key images with filename and sentences" if "filename" in first and "sentences" in first else None


def read_karpathy(source: Source) -> Rows:
    """The sentences of an image are its captions. `restval` stays a split of its own: `--split train,restval`."""
    for number, item in enumerate(_list_of(source, "images"), start=1):
        row = as_row(item, number)
        if not isinstance(row, Skipped):
            sentences = row.get("sentences") if isinstance(row.get("sentences"), list) else []
            raw = [sentence["raw"] for sentence in sentences or [] if isinstance(sentence, dict) and "raw" in sentence]
            name = "/".join(str(row[key]) for key in ("filepath", "filename") if row.get(key))
            row = {"image": name, "captions": raw, "split": row.get("split")}
        yield number, row


def is_docci(source: Source) -> str | None:
    """JSON Lines with image_file and description."""
    keys = {"image_file", "description"}
    return "JSON Lines with image_file and description" if keys <= set(source.first) and not _one(source) else None


def read_docci(source: Source) -> Rows:
    """DOCCI's descriptions. Its four splits keep their names: qual_dev and qual_test are no part of val and test."""
    for number, row in read_jsonl(source):
        if isinstance(row, Skipped) or not isinstance(row.get("example_id"), str):
            yield number, row
        else:  # the picture's name without its ending: nothing that a column would add
            yield number, {key: value for key, value in row.items() if key != "example_id"}
    source.notes.append("splits as in the file; DOCCI's own test is test, GOAL's 5,100 are test,qual_test")


def is_goal(source: Source) -> str | None:
    """A list with original_filename, or with segments beside the caption."""
    if not isinstance(source.value, list):
        return None
    keys = set(source.first)
    named = "original_filename" in keys or {"filename", "caption", "segment"} <= keys
    return "a JSON list with original_filename, or with segments" if named else None


def read_goal(source: Source) -> Rows:
    """GOAL's and StructXLIP's lists: picture and long caption; the segments are left where they are."""
    yield from _changed(read_json(source), lambda number, row: {
        key: value for key, value in row.items() if key != "segment" and not key.endswith("_structure")})
    source.notes.append("segments are not read; the file is one split of its own")


def is_vg_paragraphs(source: Source) -> str | None:
    """A list with `paragraph` and `image_id`."""
    named = isinstance(source.value, list) and {"image_id", "paragraph"} <= set(source.first)
    return "a JSON list with image_id and paragraph" if named else None


def read_vg_paragraphs(source: Source) -> Rows:
    """Visual Genome's paragraphs. A split comes from train_split.json and its like, where they lie beside the file."""
    splits = {str(name): split for split in ("train", "val", "test")
              for name in _optional_list(source.folder / f"{split}_split.json")}
    files = _stems(source)

    def with_picture(number: int, row: Row) -> Row | Skipped:
        name = str(row.get("image_id"))
        return _found(files, name, number) or {
            "image": files[name][0], "caption": row.get("paragraph"), "split": splits.get(name), "url": row.get("url")}

    yield from _changed(read_json(source), with_picture)
    if splits:
        source.notes.append("splits from train_split.json and its like")


def is_localized_narratives(source: Source) -> str | None:
    """JSON Lines with annotator_id, image_id and caption."""
    named = {"dataset_id", "image_id", "caption"} <= set(source.first) and not isinstance(source.value, list)
    return "JSON Lines with dataset_id, image_id and caption" if named else None


def read_localized_narratives(source: Source) -> Rows:
    """Narratives of one picture become its captions; files are found by their stem, COCO's with twelve digits."""
    files = _stems(source)

    def with_picture(number: int, row: Row) -> Row | Skipped:
        name = str(row.get("image_id"))
        name = next((word for word in (name, name.zfill(12)) if word in files), name)
        split = re.search("train|val|test", str(row.get("dataset_id")))
        return _found(files, name, number) or {
            "image": files[name][0], "caption": row.get("caption"), "split": split[0] if split else None}

    yield from _changed(read_jsonl(source), with_picture)
    source.notes.append("splits from dataset_id")


def is_dci(source: Source) -> str | None:
    """A folder of JSON files, or one that holds annotations/ with them, with short_caption and extra_caption."""
    files = _annotations(source)
    first = _object(files[0]) if files else None
    named = isinstance(first, dict) and {"short_caption", "extra_caption"} <= set(first)
    return f"{len(files)} JSON files with short_caption and extra_caption" if named else None


def read_dci(source: Source) -> Rows:
    """Densely Captioned Images: extra_caption is the caption; full_caption (both) and mask_captions by option."""
    files = _annotations(source)
    if not files:
        raise CollectionError(f"{source.path} holds no JSON annotations, nor does its annotations/; "
                              "choose another --format")
    splits = _dci_splits(source)
    source.done.update(files)
    for number, file in enumerate(files, start=1):
        item = _object(file)
        if not isinstance(item, dict):
            yield number, Skipped(file.name, f"not a JSON object ({item})" if item else "not a JSON object", number)
            continue
        short, extra = (item.get(key) for key in ("short_caption", "extra_caption"))
        masks = item.get("mask_data")
        yield number, {
            "image": item.get("image"), "caption": extra, "short_caption": short,
            "full_caption": "\n".join(text for text in (short, extra) if isinstance(text, str) and text.strip()),
            "mask_captions": [mask["caption"] for mask in masks.values() if _has_caption(mask)]
            if isinstance(masks, dict) else [],
            "split": splits.get(Path(str(item.get("image"))).stem) or splits.get(file.stem),
        }
    cut = ("splits from splits.json (Meta's, 112 test), which are not GOAL's 5,445/1,999 nor Long-DCI" if splits else
           "no splits.json, so no splits: the cuts of 112, 1,999, 7,444, 7,602 and 7,805 pictures are not told apart")
    source.notes.append(f"the caption is extra_caption; {cut}")


def _dci_splits(source: Source) -> dict[str, str]:
    """The stem of a photo or annotation → its split."""
    file = next((place / "splits.json" for place in (source.path, source.path.parent)
                 if is_file(place / "splits.json")), None)
    splits = _object(file) if file else None
    if not isinstance(splits, dict):
        return {}
    return {
        Path(str(item.get("image") or item.get("annotation") if isinstance(item, dict) else item)).stem: split
        for name, items in splits.items() if isinstance(items, list) and (split := normal_split(name))
        for item in items
    }


def _annotations(source: Source) -> list[Path]:
    for folder in (source.path / "annotations", source.path):
        if source.path.is_dir() and is_folder(folder):
            files = [folder / name for name in replace(source, path=folder).names_if_readable
                     if name.lower().endswith(".json") and not name.startswith(".") and name != "splits.json"]
            if files:
                return files
    return []


def _object(file: Path) -> Any:
    """The JSON value of a small file; the reason, as text, where there is none."""
    try:
        return parse_json(decode(read_bytes(file, TABLE_BYTES)))
    except ValueError as error:
        return str(error)
    except OSError as error:
        return error.strerror


def _optional_list(file: Path) -> list[Any]:
    value = _object(file) if is_file(file) else None
    return value if isinstance(value, list) else []


def _stems(source: Source) -> Mapping[str, list[str]]:
    """The pictures below the file's folder by their stem, as paths relative to it."""
    files: dict[str, list[str]] = {}
    for image in find_images(source.folder, hidden=source.reading.hidden, exclude=source.reading.exclude):
        files.setdefault(image.stem, []).append(os.path.relpath(image, source.folder))
    return files


def _found(files: Mapping[str, list[str]], name: str, number: int) -> Skipped | None:
    """Nothing where just one picture has the name; else the reason."""
    count = len(files.get(name, ()))
    if count == 1:
        return None
    return Skipped(name, f"{count} pictures have this name: {', '.join(files[name][:3])}" if count else "no such file",
                   number)


def _list_of(source: Source, key: str) -> list[Any]:
    items = source.value.get(key) if isinstance(source.value, dict) else None
    if not isinstance(items, list):
        raise CollectionError(f"{source.path} has no list {key}; choose another --format")
    return items


def _first_of(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    items = value.get(key)
    return items[0] if isinstance(items, list) and items and isinstance(items[0], dict) else {}


def _has_key(item: Any, key: str) -> bool:
    """Whether an object has a value there that can be looked up."""
    return isinstance(item, dict) and isinstance(item.get(key), (str, int, float))


def _has_caption(mask: Any) -> bool:
    return isinstance(mask, dict) and isinstance(mask.get("caption"), str)


def _one(source: Source) -> bool:
    return isinstance(source.value, list)
