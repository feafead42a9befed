from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import make_tiny

from densecap_search.collection.readers import read_collection
from densecap_search.collection.records import Skipped
from densecap_search.embedding.content import read_contents
from densecap_search.embedding.towers import read_pixels
from densecap_search.errors import CollectionError, ConfigError
from densecap_search.evaluation.compare import compare
from densecap_search.evaluation.confusions import image_confusions, text_confusions
from densecap_search.evaluation.evaluate import evaluate
from densecap_search.evaluation.outcome import EvaluationOutcome
from densecap_search.evaluation.per_query import per_query_rows
from densecap_search.evaluation.report import as_markdown
from densecap_search.evaluation.slices import hardest_companion


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
    seven, _ = read_contents(collection.records[:7])
    assert report_of(tiny, collection.records, trained=frozenset(record.hash for record in seven)).trained_on == 7


def test_the_json_has_the_promised_shape(collection, tiny):
    report = report_of(tiny, collection.records).as_json()
    assert set(report) >= {"model", "collection", "splits", "rule", "truncated", "text_to_image", "image_to_text"}
    assert list(report["text_to_image"]) == [
        "queries", "gallery", "ties", "R@1", "R@5", "R@10", "R@25", "R@50", "MRR", "nDCG@10", "mAP@10", "mean_rank",
        "median_rank", "median_rank_interval"]
    assert set(report["text_to_image"]["R@1"]) == {"value", "low", "high"}
    assert isinstance(report["text_to_image"]["median_rank"], float)
    assert "half of the wrong ones that score the same" in report["ranking"]
    json.dumps(report)


def test_f3_the_same_picture_and_the_same_caption_twice_are_right_answers_together(photos: Path, tiny):
    (photos / "copy.png").write_bytes((photos / "red-left-ball.png").read_bytes())
    (photos / "copy.txt").write_text("Another caption of the red ball.")
    (photos / "red-left-box.txt").write_text((photos / "blue-right-box.txt").read_text())
    report = report_of(tiny, read_collection(photos).records)
    ids = [record.image_id for record in report.pairs.records]
    copy, ball, box, twin = (ids.index(f"{name}.png") for name in ("copy", "red-left-ball", "red-left-box", "blue-right-box"))
    of_captions, of_pictures = report.pairs.pictures_of_captions, report.pairs.captions_of_pictures
    for relevance in (of_captions, of_pictures):  # one caption a picture: their numbers are the same
        right = np.split(relevance.columns, relevance.starts[1:-1])
        assert right[copy].tolist() == right[ball].tolist() == sorted([copy, ball])
        assert right[box].tolist() == right[twin].tolist() == sorted([box, twin])
        assert relevance.counts.sum() == 25 + 4
    assert report.text_to_image.ties == report.image_to_text.ties == 0
    clusters = report.text_to_image.clusters
    assert clusters[copy] == clusters[ball] != clusters[box]
    assert clusters[box] != clusters[twin]


def test_an_identical_caption_of_two_pictures_does_not_lend_the_others_of_one_to_the_other(collection, tiny):
    records = list(collection.records[:3])
    records[0] = replace(records[0], captions=("shared", "only of the first"))
    records[1] = replace(records[1], captions=("only of the second", "shared "))
    report = report_of(tiny, records)
    right = np.split(report.pairs.pictures_of_captions.columns, report.pairs.pictures_of_captions.starts[1:-1])
    assert [found.tolist() for found in right] == [[0, 1], [0], [1], [0, 1], [2]]


def test_two_models_on_the_same_records_can_be_compared(collection, tiny):
    first, second = report_of(tiny, collection.records), report_of(make_tiny(seed=1), collection.records)
    found = compare(first.text_to_image, second.text_to_image)["mean_rank"]
    assert found.value == pytest.approx(np.mean(first.text_to_image.ranks.rank - second.text_to_image.ranks.rank))
    assert found.wins + found.losses + found.equal == 24


def test_slices_part_the_queries_and_their_mean_is_the_whole(collection, tiny):
    records = [replace(record, columns={"kind": "ball" if "ball" in record.image_id else "box", "year": 1900 + number},
                       captions=(record.captions[0] + " word" * number,)) for number, record in enumerate(collection.records)]
    report = report_of(tiny, records, slices=("words", "truncated", "hardness", "kind", "year"))
    by = {name: [part for part in report.slices if part.by == name] for name in ("words", "truncated", "hardness", "kind", "year")}
    for parts in by.values():
        for direction, whole in report.directions().items():
            weighted = sum(part.queries[direction] * part.figures[direction]["R@5"].value for part in parts if part.queries[direction])
            assert sum(part.queries[direction] for part in parts) == 24
            assert weighted / 24 == pytest.approx(whole.figures["R@5"].value)
    assert [part.label for part in by["words"]] == ["up to 24 words", "25 to 32 words", "33 words and more"]
    assert [part.queries["text_to_image"] for part in by["words"]] == [8, 8, 8]
    assert [(part.label, part.queries["text_to_image"]) for part in by["truncated"]] == [
        ("read whole by the window of 248 tokens", 24), ("cut by the window of 248 tokens", 0)]
    assert [(part.label, part.queries["text_to_image"]) for part in by["kind"]] == [("ball", 12), ("box", 12)]
    assert [part.label for part in by["year"]] == ["up to 1907", "1908 to 1915", "1916 and more"]
    assert report.as_json()["slices"][0]["text_to_image"]["queries"] == 8


def test_queries_of_a_split_search_all_pictures_where_these_are_the_gallery(collection, tiny):
    order = [*collection.records[4:9], *collection.records[:4], *collection.records[9:]]
    asked, others = order[:5], order[5:]
    bare = replace(others[-1], captions=())  # a picture without a caption is found, too
    options = {"model": "tiny", "collection": "photos", "splits": ["test"], "slices": ("words", "hardness")}
    report = evaluate(tiny, asked, others=[*others[:-1], bare], skipped=[Skipped("gone.png", "no such file", 7)], **options)
    assert (report.gallery, report.text_to_image.queries, report.text_to_image.gallery) == ("all", 5, 24)
    assert (report.image_to_text.queries, report.image_to_text.gallery, report.as_json()["skipped"]) == (5, 23, 1)
    whole = evaluate(tiny, order, **options)
    assert report.text_to_image.ranks.rank.tolist() == whole.text_to_image.ranks.rank[:5].tolist()
    scores = report.pairs.image[:5] @ report.pairs.text.T  # [5, 23]: each picture's own caption has its number
    assert report.image_to_text.ranks.rank.tolist() == [
        1 + sum(score > row[number] for score in row) for number, row in enumerate(scores.tolist())]
    assert sum(part.queries["text_to_image"] for part in report.slices if part.by == "hardness") == 5
    assert len(list(per_query_rows([report]))) == 10
    for confusion in text_confusions(report.pairs, report.text_to_image.ranks):
        assert (confusion.caption_cosine is None) == (confusion.found == bare.image_id)
    text = as_markdown(EvaluationOutcome((report,)))
    assert "5 captions search 24 pictures (text→image), and 5 pictures search 23 captions" in text
    assert evaluate(tiny, asked, **options).gallery == "split"


def test_hardness_is_the_cosine_of_the_most_similar_caption_of_another_picture(collection, tiny):
    records = [replace(record, captions=(*record.captions, f"{record.captions[0]} It is {number}."))
               for number, record in enumerate(collection.records)]
    pairs = report_of(tiny, records).pairs
    for caption, found in enumerate(hardest_companion(pairs)):
        others = [float(pairs.text[caption] @ pairs.text[other]) for other in range(48) if other // 2 != caption // 2]
        assert found == pytest.approx(max(others), abs=1e-6)


def test_a_slice_by_an_unknown_column_names_the_known_ones(collection, tiny):
    records = [replace(record, columns={"place": "x"}) for record in collection.records]
    with pytest.raises(ConfigError, match=r"--slice plac: no such column; built in are words, truncated, hardness; columns here: place"):
        report_of(tiny, records, slices=("plac",))


def test_confusions_are_the_wrong_first_answers_worst_first(collection, tiny):
    report = report_of(tiny, collection.records)
    found = text_confusions(report.pairs, report.text_to_image.ranks, limit=100)
    ranks = report.text_to_image.ranks.rank
    assert len(found) == (ranks > 1).sum()
    assert [confusion.rank for confusion in found] == sorted((rank for rank in ranks if rank > 1), reverse=True)
    scores = report.pairs.text @ report.pairs.image.T
    captions = {record.image_id: record.captions[0] for record in collection.records}
    for confusion in found:
        assert confusion.found == report.pairs.records[scores[confusion.query - 1].argmax()].image_id != confusion.wanted
        assert captions[confusion.wanted] == confusion.wanted_caption
        assert captions[confusion.found] == confusion.found_caption
        assert confusion.found_score == pytest.approx(scores[confusion.query - 1].max())
    pictures = image_confusions(report.pairs, report.image_to_text.ranks, limit=3)
    assert len(pictures) == 3
    assert all(captions[confusion.wanted] == confusion.wanted_caption for confusion in pictures)


def test_nothing_that_can_be_opened_is_an_error(photos: Path, tiny):
    whole = read_collection(photos)
    for path in photos.glob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(CollectionError, match=r"none of the 24 pictures could be opened; the first: .*empty file"):
        report_of(tiny, whole.records)
