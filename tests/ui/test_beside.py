"""Another index beside the one that is served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from helpers import make_photos, make_tiny
from starlette.testclient import TestClient

from densecap_search.cli import main
from densecap_search.collection.readers import read_collection
from densecap_search.config import ModelConfig
from densecap_search.retrieval.index import load_index
from densecap_search.retrieval.searcher import Searcher
from densecap_search.retrieval.update import update_index
from densecap_search.ui.access import make_access
from densecap_search.ui.app import build_app
from densecap_search.ui.live import LiveIndex

CAPTION = "A red ball lies on the left of a white table."


@pytest.fixture(scope="module")
def searchers(tmp_path_factory: pytest.TempPathFactory) -> list[Searcher]:
    """Of two models; the second has one picture less."""
    folder, made = tmp_path_factory.mktemp("beside"), []
    photos = make_photos(folder / "photos")
    for seed, name in enumerate(("first", "second")):
        encoder = make_tiny(seed=seed)
        update_index(read_collection(photos), encoder, ModelConfig(name), folder / name)
        made.append(Searcher(encoder, load_index(folder / name)))
        (photos / "red-left-ball.png").unlink(missing_ok=True)
    return made


@pytest.fixture(scope="module")
def served(searchers: list[Searcher]) -> Iterator[TestClient]:
    first, second = (LiveIndex(lambda one=one: one) for one in searchers)
    app = build_app(first, make_access("127.0.0.1"), paths=True, edit=True, beside=second)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client


def test_both_are_searched_each_by_its_own_model(served: TestClient, searchers: list[Searcher]):
    assert served.get("/api/index").json()["beside"] is True
    for base, searcher, count in (("", searchers[0], 24), ("/beside", searchers[1], 23)):
        about = served.get(f"{base}/api/index").json()
        assert (about["pictures"], about["model"]) == (count, searcher.index.manifest.model.name)
        found = served.post(f"{base}/api/search", json={"caption": CAPTION, "count": 24}).json()["hits"]
        (expected,), _ = searcher.by_captions([CAPTION], 24)
        assert [hit["image_id"] for hit in found] == [hit.image_id for hit in expected]
    assert len(found) == 23
    picture = served.get(f"/beside/pictures/{found[0]['picture']}/small")
    assert (picture.status_code, picture.headers["content-type"]) == (200, "image/jpeg")


def test_nothing_is_taught_there_and_no_other_route_is_open(served: TestClient):
    answer = served.post("/beside/api/feedback", json={"caption": "x", "answer": "none"})
    assert (answer.status_code, answer.json()["error"]) == (
        403, "nothing is kept here; densecap serve --edit lets people teach")
    assert served.get("/beside/api/index").json()["edit"] is False
    assert [served.get(path).status_code for path in ("/beside", "/beside/", "/beside/page/page.js", "/besides/api/index",
                                                      "/beside/beside/api/index")] == [404] * 5
    assert served.post("/beside/pictures/0-x/small", json={}).status_code == 405


def test_an_index_that_is_not_there_is_told_before_anything_is_loaded(searchers: list[Searcher], tmp_path: Path):
    done = CliRunner().invoke(main, ["serve", str(searchers[0].index.folder), "--beside", str(tmp_path / "none")])
    assert done.exit_code == 1
    assert str(tmp_path / "none") in done.output
