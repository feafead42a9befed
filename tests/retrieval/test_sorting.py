"""Hits in the order of the dates when their pictures were taken."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from made_indexes import MANIFEST, rows_of, vectors
from starlette.testclient import TestClient

from densecap_search.errors import ConfigError
from densecap_search.retrieval.approximate import Asked
from densecap_search.retrieval.index import load_index
from densecap_search.retrieval.queries import Query
from densecap_search.retrieval.searcher import Narrowed, Searcher
from densecap_search.retrieval.writing import write_new
from densecap_search.ui.access import make_access
from densecap_search.ui.app import build_app
from densecap_search.ui.live import LiveIndex
from densecap_search.workflows.search_file import search_file

TAKEN = ("2001-05-05 00:00:00", None, "2019-01-01 12:00:00", "1990-01-01 00:00:00", "2019-01-01 12:00:00", None)


@pytest.fixture
def searcher(tmp_path: Path, tiny) -> Searcher:
    """Six pictures, of which four have a date."""
    matrix = vectors(6, tiny.dim)
    rows = [replace(row, taken=taken) for row, taken in zip(rows_of(6), TAKEN, strict=True)]
    manifest = replace(MANIFEST, dim=tiny.dim, fingerprint=tiny.fingerprint())
    write_new(tmp_path / "i", manifest, [(rows, matrix)], lambda rows, stored, alive: Asked(matrix, "pictures"))
    return Searcher(tiny, load_index(tmp_path / "i"))


def test_the_best_hits_stand_newest_first_with_their_ranks(searcher: Searcher):
    (best,), _ = searcher.find([Query("a tram")], 5)
    (dated,), _ = searcher.find([Query("a tram")], 5, sort="date")
    taken = [TAKEN[hit.number] or "" for hit in dated]
    assert taken == sorted(taken, reverse=True)
    assert sorted(dated, key=lambda hit: hit.rank) == best
    equal = [hit.rank for hit in dated if TAKEN[hit.number] == TAKEN[2]]
    assert equal == sorted(equal)
    with pytest.raises(ConfigError, match="unknown order name; known: score, date"):
        searcher.find([Query("a tram")], 5, sort="name")


def test_what_only_meets_conditions_is_found_newest_first(searcher: Searcher):
    def numbers(k: int, sort: str) -> list[int]:
        return [hit.number for hit in searcher.find([Query()], k, narrowed=Narrowed(where="place >= 0"), sort=sort)[0][0]]

    assert numbers(6, "score") == [0, 1, 2, 3, 4, 5]
    assert numbers(6, "date") == [2, 4, 0, 3, 1, 5]
    assert numbers(3, "date") == [2, 4, 0]


def test_files_of_queries_and_the_api_take_the_order(searcher: Searcher, tmp_path: Path):
    (tmp_path / "q.txt").write_text("a tram\n", encoding="utf-8")
    search_file(searcher, tmp_path / "q.txt", tmp_path / "hits.jsonl", 6, sort="date")
    expected = [hit.image_id for hit in searcher.find([Query("a tram")], 6, sort="date")[0][0]]
    assert [json.loads(line)["image_id"] for line in (tmp_path / "hits.jsonl").read_text().splitlines()] == expected
    app = build_app(LiveIndex(lambda: searcher), make_access("127.0.0.1"), paths=True)
    with TestClient(app, base_url="http://localhost") as page:
        found = page.post("/api/search", json={"caption": "a tram", "sort": "date", "count": 6}).json()
        assert [hit["image_id"] for hit in found["hits"]] == expected
        assert found["message"].startswith("1 to 6 of 6 pictures, newest first.")
        pages = [page.post("/api/search", json={"where": "place >= 0", "sort": "date", "count": 3, "offset": offset}).json()["hits"]
                 for offset in (0, 3)]
        assert [hit["image_id"] for hits in pages for hit in hits] == ["i2", "i4", "i0", "i3", "i1", "i5"]
        assert "sort: Input should be 'score' or 'date'" in page.post("/api/search", json={"caption": "x", "sort": "x"}).text
