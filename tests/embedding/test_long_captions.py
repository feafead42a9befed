from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import make_tiny

from densecap_search.collection.readers import read_collection
from densecap_search.config import ModelConfig
from densecap_search.embedding.texts import embed_segments
from densecap_search.evaluation.evaluate import evaluate
from densecap_search.evaluation.metrics import Relevance, rank_queries
from densecap_search.model.encoder import DualEncoder
from densecap_search.retrieval.searcher import Searcher
from densecap_search.retrieval.update import update_index
from densecap_search.ui.finding import reading

LONG = " ".join(f"Sentence {number} speaks of a red ball and of a blue box." for number in range(25))  # 300 words


def treated(long_text: str, context_length: int = 77) -> DualEncoder:
    tiny = make_tiny(context_length)
    return DualEncoder(tiny.model, replace(tiny.spec, long_text=long_text), tiny.tokenizer)


@pytest.fixture
def searchers(photos: Path, tmp_path: Path) -> dict[str, Searcher]:
    """One index, searched by each treatment."""
    index = update_index(read_collection(photos), treated("cut"), ModelConfig("tiny"), tmp_path / "index").index
    return {name: Searcher(treated(name), index) for name in ("cut", "mean", "best")}


@pytest.mark.parametrize("k", [1, 5, 24, 99])
def test_the_best_segments_hits_are_those_of_a_full_comparison(searchers: dict[str, Searcher], k: int):
    searcher = searchers["best"]
    hits, truncation = searcher.by_captions(["a red ball", LONG], k)
    vectors = embed_segments(searcher.encoder, [LONG], cached=False).rows
    assert len(vectors) == truncation.segments >= 4
    scores = (vectors @ np.asarray(searcher.index.vectors()).T).max(axis=0)
    order = sorted(range(24), key=lambda row: (-scores[row], row))[:k]
    assert [hit.image_id for hit in hits[1]] == [searcher.index.rows[row].image_id for row in order]
    assert [hit.score for hit in hits[1]] == pytest.approx(scores[order].tolist(), abs=1e-6)
    assert [hit.rank for hit in hits[1]] == list(range(1, len(order) + 1))
    fits = searchers["cut"].by_captions(["a red ball"], k)[0][0]
    assert [hit.image_id for hit in hits[0]] == [hit.image_id for hit in fits]
    assert [hit.score for hit in hits[0]] == pytest.approx([hit.score for hit in fits], abs=1e-6)


def test_the_mean_of_segments_is_searched_with_as_one_vector(searchers: dict[str, Searcher]):
    searcher = searchers["mean"]
    hits, truncation = searcher.by_captions([LONG], 24)
    total = embed_segments(searcher.encoder, [LONG], cached=False).rows.astype(float).sum(axis=0)
    scores = np.asarray(searcher.index.vectors()) @ (total / np.linalg.norm(total))
    assert [hit.score for hit in hits[0]] == pytest.approx(sorted(scores, reverse=True), abs=1e-5)
    assert (truncation.truncated, truncation.split) == (0, 1)


def test_the_page_says_where_a_caption_is_cut_or_in_how_many_segments_it_is_read():
    tokens = treated("cut").lengths([LONG])[0]
    cut = reading(treated("cut"), LONG)
    assert (cut.words, cut.tokens, cut.context_length, cut.segments) == (300, tokens, 77, 1)
    assert treated("cut").lengths([LONG[:cut.end]])[0] <= 77 < treated("cut").lengths([LONG[:cut.end + 8]])[0]
    split = reading(treated("best"), LONG)
    assert (split.tokens, split.end, split.segments) == (tokens, None, len(treated("best").segments([LONG]).texts[0]))


def ranks_by_loops(queries, query_counts, gallery, gallery_counts, query_labels, gallery_labels):
    """Every score by itself, and the rank by counting."""
    query_ends, gallery_ends = np.cumsum(query_counts), np.cumsum(gallery_counts)
    found = []
    for query, label in enumerate(query_labels):
        scores = []
        for item in range(len(gallery_labels)):
            scores.append(max(
                float(queries[i] @ gallery[j])
                for i in range(query_ends[query] - query_counts[query], query_ends[query])
                for j in range(gallery_ends[item] - gallery_counts[item], gallery_ends[item])))
        best = max(score for score, other in zip(scores, gallery_labels, strict=True) if other == label)
        found.append(1 + sum(score > best + 1e-9 for score, other in zip(scores, gallery_labels, strict=True) if other != label))
    return found


@pytest.mark.parametrize("scores_in_memory", [1 << 24, 40])
def test_ranks_by_the_best_segment_are_those_of_loops(monkeypatch: pytest.MonkeyPatch, scores_in_memory: int):
    monkeypatch.setattr("densecap_search.evaluation.metrics.BLOCK_SCORES", scores_in_memory)
    generator = np.random.default_rng(0)
    counts = np.array([1, 3, 2, 1, 4])
    text = generator.normal(size=(11, 6)).astype(np.float32)
    image = generator.normal(size=(5, 6)).astype(np.float32)
    labels, ones = np.arange(5), np.ones(5, np.int64)
    right = Relevance.of_labels(labels, labels)
    to_image = rank_queries(text, image, right, query_counts=counts).rank
    to_text = rank_queries(image, text, right, gallery_counts=counts).rank
    assert to_image.tolist() == ranks_by_loops(text, counts, image, ones, labels, labels)
    assert to_text.tolist() == ranks_by_loops(image, ones, text, counts, labels, labels)


@pytest.mark.parametrize("treatment", ["cut", "mean", "best"])
def test_evaluation_treats_long_captions_as_search_does(photos: Path, searchers: dict[str, Searcher], treatment: str):
    for path in photos.glob("*.txt"):
        path.write_text(f"{path.read_text()} {LONG} {path.read_text()}")
    records = read_collection(photos).records
    report = evaluate(treated(treatment), records, model="tiny", collection="photos", splits=["all"],
                      slices=["truncated"])
    hits, truncation = searchers[treatment].by_captions([record.captions[0] for record in records], 24)
    first = [found[0].image_id == record.image_id for found, record in zip(hits, records, strict=True)]
    assert report.text_to_image.figures["R@1"].value == pytest.approx(100 * np.mean(first))
    assert report.truncation == truncation
    assert report.truncation.longer == 24
    assert (report.truncation.segments > 24 * 4) is (treatment != "cut")
    word = "cut by" if treatment == "cut" else "split, longer than"
    assert [(part.label, part.queries["text_to_image"]) for part in report.slices] == [
        ("read whole by the window of 77 tokens", 0), (f"{word} the window of 77 tokens", 24)]
