"""A picture's content goes with its record, from reading to the loss and back into the cache."""

from __future__ import annotations

import inspect
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import load, make_photos
from PIL import Image, ImageOps

from densecap_search.collection.readers import read_collection
from densecap_search.collection.records import Record
from densecap_search.config import ModelConfig, load_config
from densecap_search.embedding.content import read_contents, with_contents
from densecap_search.embedding.towers import embed_images
from densecap_search.files import hash_file
from densecap_search.talk import SILENT
from densecap_search.training import data
from densecap_search.training.loop import finetune


def settings(model: Path, *more: tuple[str, object], **train: object):
    values = {"epochs": 2, "batch_size": 8, "tune": "heads", "objective": "hn_clip", **train}
    return load_config(overrides=[("model.name", str(model)), *((f"train.{key}", value) for key, value in values.items()),
                                  *more])


def test_a_record_that_was_read_knows_hash_size_and_time_of_its_file(photos: Path):
    records = read_collection(photos).records[:3]
    for record in records[:2]:
        os.utime(record.image, (1_600_000_000, 1_600_000_000))
    read, skipped = read_contents(records)
    assert skipped == []
    assert [record.content.modified for record in read] == [1_600_000_000 * 10**9] * 2 + [-1]  # fresh: its time tells nothing
    for record in read:
        assert record.hash == hash_file(record.image)
        assert record.content.size == record.image.stat().st_size


def test_a_record_that_was_not_read_has_no_hash():
    with pytest.raises(AssertionError, match=r"/a\.jpg has not been read yet"):
        Record("a", Path("/a.jpg")).hash  # noqa: B018


def test_a_record_is_read_once(photos: Path):
    first = with_contents(read_collection(photos))
    changed = [replace(record, image=photos / "gone.png") for record in first.records]
    assert read_contents(changed) == (changed, [])


def test_interpolation_with_another_collection_of_the_same_names_leaves_every_picture_its_own_vector(
        photos: Path, tiny_run: Path, tmp_path: Path):
    other = make_photos(tmp_path / "other")
    for path in other.glob("*.png"):  # the same names and captions, other pictures
        ImageOps.invert(Image.open(path)).save(path)
    config = settings(tiny_run, ("data.retain", str(other)), interpolate="auto", checkpoint="last")
    finetune(read_collection(photos), config, tmp_path / "run", talk=SILENT)
    encoder = load(str(tmp_path / "run"))
    for folder in (photos, other):
        records, _ = read_contents(read_collection(folder).records)
        cached, _ = embed_images(encoder, records)
        fresh, _ = embed_images(encoder, records, cached=False)
        assert np.allclose(cached.vectors, fresh.vectors, atol=1e-6)


@pytest.mark.parametrize(("tune", "visits"), [("heads", 3), ("full", 2)])
def test_from_a_collection_to_batches_embeddings_are_visited_at_most_three_times(
        collection, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tune: str, visits: int):
    counted: Counter[str] = Counter()

    def count(name: str, function):
        def counting(*args, **kwargs):
            counted[name] += 1
            return function(*args, **kwargs)
        return counting

    for name, value in list(vars(data).items()):
        if inspect.isfunction(value) and value.__module__.startswith("densecap_search.embedding"):
            monkeypatch.setattr(data, name, count(name, value))
    finetune(collection, settings(tiny_run, tune=tune, epochs=1), tmp_path / "run", talk=SILENT)
    assert counted.total() == visits, counted


def test_the_starter_is_the_embedded_model_whatever_lies_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "starter").mkdir()
    (tmp_path / "weights.pt").touch()
    monkeypatch.chdir(tmp_path)
    assert ModelConfig(" starter\n").resolved() == ModelConfig("starter")
    assert ModelConfig("./starter").resolved().name == str(tmp_path / "starter")
    assert ModelConfig("ViT-B-16", "weights.pt").resolved() == ModelConfig("ViT-B-16", str(tmp_path / "weights.pt"))
    assert ModelConfig("ViT-B-16", "openai").resolved() == ModelConfig("ViT-B-16", "openai")


def test_a_run_names_the_model_it_began_from_by_its_whole_path(collection, tiny_run: Path, tmp_path: Path,
                                                               monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tiny_run.parent)
    finetune(collection, settings(Path(tiny_run.name), epochs=1), tmp_path / "run", talk=SILENT)
    assert load_config(tmp_path / "run" / "config.yaml").model.name == str(tiny_run)
