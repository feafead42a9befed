"""An index of 24 drawn pictures behind the whole page, asked without a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import make_photos
from starlette.testclient import TestClient

from densecap_search.collection.readers import read_collection
from densecap_search.config import ModelConfig
from densecap_search.model.checkpoint import load_run
from densecap_search.retrieval.index import load_index
from densecap_search.retrieval.searcher import Searcher
from densecap_search.retrieval.update import update_index
from densecap_search.ui.access import make_access
from densecap_search.ui.app import build_app
from densecap_search.ui.live import LiveIndex


@pytest.fixture(scope="module")
def searcher(tmp_path_factory: pytest.TempPathFactory, tiny_run: Path) -> Searcher:
    folder = tmp_path_factory.mktemp("page")
    tiny = load_run(tiny_run)
    update_index(read_collection(make_photos(folder / "photos")), tiny, ModelConfig(str(tiny_run)), folder / "index")
    return Searcher(tiny, load_index(folder / "index"))


@pytest.fixture(scope="module")
def page(searcher: Searcher) -> Iterator[TestClient]:
    app = build_app(LiveIndex(lambda: searcher), make_access("127.0.0.1"), paths=True)
    with TestClient(app, base_url="http://localhost") as client:
        yield client
