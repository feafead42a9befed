from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import load, make_tiny
from PIL import Image

from densecap_search.collection.readers import read_collection
from densecap_search.config import ModelConfig
from densecap_search.embedding.content import read_contents
from densecap_search.embedding.towers import embed_images, read_pixels
from densecap_search.model.checkpoint import load_run, save_encoder
from densecap_search.model.encoder import RESIZE_MODES, DualEncoder, with_resize
from densecap_search.retrieval.searcher import open_searcher
from densecap_search.retrieval.update import update_index
from densecap_search.training.batches import PixelBatches

RED = (254, 0, 0)


def resized(resize: str) -> DualEncoder:
    tiny = make_tiny()
    return DualEncoder(tiny.model, replace(tiny.spec, preprocess=with_resize(tiny.spec.preprocess, resize)), tiny.tokenizer)


def panorama() -> Image.Image:
    """A red bus at the far left of a grey street, 4:1."""
    image = Image.new("RGB", (400, 100), (120, 120, 120))
    image.paste(RED, (0, 30, 40, 80))
    return image


def sees_red(pixels: torch.Tensor) -> bool:
    red, green, _ = pixels.int()
    return bool(((red - green) > 100).any())


@pytest.mark.parametrize(("resize", "seen"), [("crop", False), ("pad", True), ("squash", True)])
def test_a_bus_at_the_far_left_of_a_panorama_is_seen_unless_the_middle_is_cropped(resize: str, seen: bool):
    assert sees_red(resized(resize).preprocess(panorama())) is seen


def test_pad_keeps_the_shape_and_its_border_is_nearly_0_to_the_tower():
    encoder = resized("pad")
    pixels = encoder.preprocess(panorama())
    assert pixels.shape == (3, 32, 32)
    inside = (pixels.int() - 120).abs().amax(0) < 3
    assert inside[12:20, 8:].all()  # 8 of 32 rows, in the middle
    border = encoder.normalise(pixels[None])[0][:, [0, 5, 11, 20, 31]]
    assert border.abs().max() < 0.01


def test_squash_fills_the_whole_square():
    pixels = resized("squash").preprocess(panorama()).int()
    assert sees_red(pixels[:, 12:24, :3])
    assert (pixels[:, :, 8:] - 120).abs().max() < 4


@pytest.mark.parametrize("resize", RESIZE_MODES)
@pytest.mark.parametrize("size", [(5000, 1), (1, 5000), (1, 1)])
def test_the_thinnest_strips_have_pixels_too(resize: str, size: tuple[int, int]):
    pixels = resized(resize).preprocess(Image.new("RGB", size, RED))
    assert pixels.shape == (3, 32, 32)
    assert sees_red(pixels)


def test_crop_keeps_its_fingerprint_and_the_others_have_their_own(tmp_path: Path):
    base = make_tiny().fingerprint()
    assert resized("crop").fingerprint() == base
    assert len({base, resized("pad").fingerprint(), resized("squash").fingerprint()}) == 3
    tiny = make_tiny()
    old = {key: value for key, value in tiny.spec.preprocess.items() if key not in ("resize_mode", "fill_color")}
    save_encoder(DualEncoder(tiny.model, replace(tiny.spec, preprocess=old), tiny.tokenizer), tmp_path / "old")
    before = load_run(tmp_path / "old")
    assert not sees_red(before.preprocess(panorama()))  # a folder without the key crops
    assert load(str(tmp_path / "old"), resize="crop").fingerprint() == before.fingerprint()


def test_the_setting_is_stored_with_the_model(tmp_path: Path):
    save_encoder(resized("pad"), tmp_path / "run")
    again = load(str(tmp_path / "run"))
    assert again.spec.preprocess["resize_mode"] == "longest"
    assert again.fingerprint() == resized("pad").fingerprint()
    assert sees_red(again.preprocess(panorama()))


@pytest.mark.parametrize("resize", RESIZE_MODES)
def test_training_indexing_and_search_by_picture_see_the_same_pixels(tmp_path: Path, tiny_run: Path, resize: str):
    folder = tmp_path / "photos"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for number in range(3):
        Image.fromarray(generator.integers(0, 255, (30, 120, 3), dtype=np.uint8)).save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text(f"caption {number}")
    model = ModelConfig(str(tiny_run), resize=resize)
    encoder, collection = load(str(tiny_run), resize=resize), read_collection(folder)
    vectors = embed_images(encoder, read_contents(collection.records)[0])[0].vectors
    batches = PixelBatches([1] * 3, [0, 1, 2], 3, seed=0, encoder=encoder, records=collection.records, texts=["a", "b", "c"], workers=0)
    (batch,) = batches.read(batches.plan(1))
    assert torch.equal(batch.images, torch.stack([read_pixels(encoder, collection.records[int(row)].image) for row in batch.groups]))
    with torch.no_grad():
        assert np.allclose(encoder.encode_image(batch.images).numpy(), vectors[batch.groups.numpy()], atol=1e-6)
    update_index(collection, encoder, model, tmp_path / "index")
    hit = open_searcher(tmp_path / "index").by_image(folder / "1.png", 1)[0]
    assert (hit.image_id, hit.score) == ("1.png", pytest.approx(1.0, abs=1e-5))
    # the same weights from elsewhere: how the index was made is kept
    assert open_searcher(tmp_path / "index", model=ModelConfig(str(tiny_run))).encoder.fingerprint() == encoder.fingerprint()


def test_the_size_limit_is_the_encoders_and_says_how_to_raise_it(tmp_path: Path, tiny_run: Path):
    Image.new("RGB", (400, 200), RED).save(tmp_path / "x.png")
    small = read_pixels(load(str(tiny_run), max_pixels=79_999), tmp_path / "x.png")
    assert str(small).endswith("400×200 pixels are more than the limit of 79,999: decoded they take 0.0 GiB of memory; --max-pixels raises it")
    assert isinstance(read_pixels(load(str(tiny_run), max_pixels=80_000), tmp_path / "x.png"), torch.Tensor)
