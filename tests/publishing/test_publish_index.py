"""An index as a table that other programs read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from helpers import make_tiny

from densecap_search import config
from densecap_search.cli import main
from densecap_search.collection.records import Collection
from densecap_search.config import ModelConfig
from densecap_search.errors import DensecapError
from densecap_search.retrieval.index import ImageIndex, load_index
from densecap_search.retrieval.update import update_index
from densecap_search.workflows.publish_index import INDEX_FORMATS, publish_index


@pytest.fixture
def index(collection: Collection, tiny_run: Path, tmp_path: Path) -> ImageIndex:
    update_index(collection, make_tiny(), ModelConfig(str(tiny_run)), tmp_path / "index")
    return load_index(tmp_path / "index")


def test_the_command_line_knows_every_format_of_an_index():
    assert tuple(INDEX_FORMATS) == config.INDEX_PUBLISHED_AS


def test_parquet_holds_ids_captions_and_vectors(index: ImageIndex, tmp_path: Path):
    import pandas

    result = CliRunner().invoke(main, ["publish", str(index.folder), "-o", str(tmp_path / "out"), "--as", "parquet"], catch_exceptions=False)
    assert "holds 24 pictures" in result.output
    table = pandas.read_parquet(tmp_path / "out" / "index.parquet")
    assert list(table.columns) == ["image_id", "image", "captions", "hash", "vector"]
    assert np.array_equal(np.stack(table.vector), index.vectors())
    row = next(iter(index.rows))
    assert (table.image_id[0], table.image[0], list(table.captions[0])) == (row.image_id, row.image, list(row.captions))


def test_npy_holds_the_same_and_is_not_overwritten(index: ImageIndex, tmp_path: Path):
    assert publish_index(index.folder, tmp_path / "out", "npy") == 24
    assert np.array_equal(np.load(tmp_path / "out" / "vectors.npy"), index.vectors())
    rows = [json.loads(line) for line in (tmp_path / "out" / "rows.jsonl").read_text().splitlines()]
    assert [row["image_id"] for row in rows] == [row.image_id for row in index.rows]
    assert index.manifest.fingerprint in (tmp_path / "out" / "README.md").read_text()
    with pytest.raises(DensecapError, match="is not empty; name a new folder with -o"):
        publish_index(index.folder, tmp_path / "out", "npy")
