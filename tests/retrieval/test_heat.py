"""Where in a picture a sentence fits: what the tower sees of it, and which part is hottest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import make_mixed, make_tiny
from made_indexes import index_of, vectors
from PIL import Image

from densecap_search.errors import DensecapError, ModelError
from densecap_search.model.tokens import forward_with_patches
from densecap_search.retrieval.heat import heat, seen
from densecap_search.retrieval.searcher import Searcher


@pytest.mark.parametrize(("mode", "shape", "box"), [
    ("shortest", (224, 224), (0.25, 0, 0.75, 1)),  # of 400 × 200 the middle 200 × 200
    ("longest", (224, 224), (0, -0.5, 1, 1.5)),  # 400 × 400 around it
    ("squash", (224, 224), (0, 0, 1, 1)),
    ("shortest", (100, 300), (0, 1 / 6, 1, 5 / 6)),  # three times as wide as high: 400 × 133.3
])
def test_what_a_tower_sees_of_a_picture_of_400_by_200(mode: str, shape: tuple[int, int], box: tuple[float, ...]):
    assert seen((400, 200), shape, mode) == pytest.approx(box)


def test_heat_is_the_cosine_with_each_part_from_the_least_to_the_most():
    patches = np.array([[[1, 0], [0, 1]], [[0.6, 0.8], [-1, 0]]], np.float32)  # cosines 1, 0, 0.6, −1
    assert heat(patches, np.array([1, 0], np.float32), (0, 0, 1, 1)).values == pytest.approx(np.array([[1, 0.5], [0.8, 0]]))
    assert (heat(patches, np.zeros(2, np.float32), (0, 0, 1, 1)).values == 0).all()  # nothing is hotter than the rest


@pytest.mark.parametrize(("trunk", "parts"), [(None, 4), ("test_efficientnet", 2), ("test_vit", 4)])
def test_parts_lie_where_they_are_in_the_picture(trunk: str | None, parts: int, tmp_path: Path):
    """A change in the second row of parts, at the right edge, changes the part there most."""
    encoder = make_mixed(tmp_path, trunk) if trunk else make_tiny()
    encoder.model.eval()
    side = encoder.image_size
    step = side // parts
    blank = torch.full((1, 3, side, side), 128, dtype=torch.uint8)
    other = blank.clone()
    other[:, 0, step:2 * step, side - step:] = 255
    before, after = encoder.patches(blank)[0], encoder.patches(other)[0]
    assert before.shape == (parts, parts, 16)
    assert torch.allclose(after.norm(dim=-1), torch.ones(parts, parts))
    moved = (after - before).norm(dim=-1)
    assert divmod(int(moved.argmax()), parts) == (1, parts - 1)


def test_a_searcher_looks_at_the_picture_and_the_sentence_with_the_same_encoder(tiny, tmp_path: Path):
    searcher = Searcher(tiny, index_of(vectors(3), tmp_path / "i"))
    Image.new("RGB", (64, 32), "red").save(tmp_path / "a.png")
    found = searcher.heat(tmp_path / "a.png", "a red ball")
    assert (found.values.shape, found.box) == ((4, 4), (0.25, 0, 0.75, 1))
    assert (found.values.min(), found.values.max()) == (0, 1)
    (tmp_path / "b.png").write_bytes(b"no picture")
    with pytest.raises(DensecapError, match="cannot look into"):
        searcher.heat(tmp_path / "b.png", "a red ball")


def test_a_tower_that_tells_no_parts_apart_says_so():
    with pytest.raises(ModelError, match="no head"):
        forward_with_patches(torch.nn.Linear(2, 2), torch.zeros(1, 3, 4, 4))
