"""Shared fixtures: a tiny encoder, a folder of photographs-in-miniature, and where real data lie."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from helpers import make_photos, make_tiny

from densecap_search.collection.readers import read_collection
from densecap_search.collection.records import Collection
from densecap_search.model.checkpoint import save_encoder
from densecap_search.model.encoder import DualEncoder


@pytest.fixture(autouse=True)
def _few_threads(request: pytest.FixtureRequest) -> None:
    """Tiny models are faster without threads, and tests then do not wait for each other's."""
    torch.set_num_threads(1 if request.node.get_closest_marker("slow") is None else os.cpu_count() or 1)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DENSECAP_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(autouse=True)
def _no_curves(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots take longer than training a tiny model; tests marked curves, and the slow ones, draw them."""
    if not any(map(request.node.get_closest_marker, ("curves", "slow"))):
        monkeypatch.setattr("densecap_search.training.plots.draw_run", lambda run, log: None)


@pytest.fixture
def tiny() -> DualEncoder:
    return make_tiny()


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    save_encoder(make_tiny(), folder)
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return make_photos(tmp_path / "photos")


@pytest.fixture
def collection(photos: Path) -> Collection:
    return read_collection(photos)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real collections. Skips where none is named; fails where it is named and not there."""
    named = os.environ.get("DENSECAP_TEST_DATA")
    if not named:
        pytest.skip("real collections are not on this machine: set DENSECAP_TEST_DATA to their folder")
    folder = Path(named)
    assert folder.is_dir(), f"DENSECAP_TEST_DATA names {folder}, which is not there"
    return folder.resolve()
