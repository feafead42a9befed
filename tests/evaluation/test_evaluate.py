from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from densecap_search.collection.readers import read_collection
from densecap_search.errors import CollectionError
from densecap_search.evaluation.evaluate import evaluate
from densecap_search.retrieval.embeddings import hash_images, read_pixels


def report_of(tiny, records, **options):
    return evaluate(tiny, records, model="tiny", collection="photos", splits=["all"], **options)


def test_a_report_agrees_with_an_independent_recomputation(collection, tiny):
    report = report_of(tiny, collection.records)
    image = tiny.encode_image(torch.stack([read_pixels(tiny, r.image) for r in collection.records])).detach()
    text = tiny.encode_text(tiny.tokenize([r.captions[0] for r in collection.records]).ids).detach()
    scores = (text @ image.T).numpy()
    order = np.argsort(-scores, axis=1)
    positions = np.array([list(row).index(number) for number, row in enumerate(order)])
    assert report.text_to_image.figures["R@5"].value == pytest.approx(100 * np.mean(positions < 5), abs=1e-9)
    assert report.text_to_image.median_rank == np.median(positions + 1)
    assert (report.text_to_image.queries, report.image_to_text.gallery) == (24, 24)


def test_skipped_pictures_take_their_captions_along(photos: Path, tiny):
    whole = read_collection(photos)
    good = report_of(tiny, [r for r in whole.records if r.image_id != "green-left-box.png"])
    (photos / "green-left-box.png").write_bytes(b"")
    found = report_of(tiny, whole.records)
    assert [skip.reason for skip in found.skipped] == ["empty file"]
    assert found.text_to_image == good.text_to_image
    assert found.image_to_text == good.image_to_text


def test_several_captions_are_each_a_query_and_the_best_counts_for_the_picture(collection, tiny):
    records = [replace(record, captions=(*record.captions, "something else")) for record in collection.records]
    report = report_of(tiny, records)
    assert (report.text_to_image.queries, report.text_to_image.gallery) == (48, 24)
    assert (report.image_to_text.queries, report.image_to_text.gallery) == (24, 48)
    assert report.as_json()["rule"] == "every caption is a query; a picture's rank is that of its best caption"


def test_pictures_that_were_trained_on_are_counted(collection, tiny):
    hashes, _ = hash_images(collection.records[:7])
    assert report_of(tiny, collection.records, trained_hashes=frozenset(hashes.values())).trained_on == 7


def test_the_json_has_the_promised_shape(collection, tiny):
    report = report_of(tiny, collection.records).as_json()
    assert set(report) >= {"model", "collection", "splits", "rule", "truncated", "text_to_image", "image_to_text"}
    assert list(report["text_to_image"]) == ["queries", "gallery", "ties", "R@1", "R@5", "R@10", "MRR", "median_rank"]
    assert set(report["text_to_image"]["R@1"]) == {"value", "low", "high"}


def test_nothing_that_can_be_opened_is_an_error(photos: Path, tiny):
    whole = read_collection(photos)
    for path in photos.glob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(CollectionError, match=r"none of the 24 pictures could be opened; the first: .*empty file"):
        report_of(tiny, whole.records)
