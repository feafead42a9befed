"""What the tool does on real photographs; needs DENSECAP_TEST_DATA and the starter."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from helpers import load
from PIL import Image

from densecap_search.cli import main
from densecap_search.collection.captions import sentences
from densecap_search.collection.images import open_image
from densecap_search.collection.readers import read_collection
from densecap_search.collection.records import Record
from densecap_search.collection.splits import select_splits
from densecap_search.embedding.content import read_contents
from densecap_search.embedding.towers import embed_images, picture_patches
from densecap_search.retrieval.captioned import read_texts
from densecap_search.retrieval.heat import heat, seen
from densecap_search.retrieval.index import load_index
from densecap_search.retrieval.stacks import near_to
from densecap_search.scenes.archive import make_scenes
from tools.starter_heads import measure, read_flickr8k

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_cache")]
SEEDS = (0, 1, 2)


def run(*words: object) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_starters_heads_on_flickr8k_test(real_data: Path):
    table = real_data / "flickr8k" / "captions.jsonl"
    report = json.loads(run("evaluate", table, "--model", "starter", "--split", "test", "--json"))
    t2i, i2t = report["text_to_image"], report["image_to_text"]
    assert (t2i["queries"], t2i["gallery"]) == (992, 992)
    assert t2i["R@1"]["value"] >= 30
    assert t2i["R@10"]["value"] >= 73
    assert i2t["R@1"]["value"] >= 29
    assert i2t["R@10"]["value"] >= 74
    joined = measure(load("starter"), select_splits(read_flickr8k(table), ["test"]), "test")
    assert joined.text_to_image.figures["R@1"].value == t2i["R@1"]["value"]
    card = (Path(__file__).parents[2] / "densecap_search/model/starter/README.md").read_text(encoding="utf-8")
    for direction in (t2i, i2t):
        assert "/".join(f"{direction[metric]['value']:.1f}" for metric in ("R@1", "R@5", "R@10")) in card


def test_the_heat_of_a_sentence_lies_on_the_photograph_that_it_describes(real_data: Path, tmp_path: Path):
    """Two photographs side by side, a sentence of one of them: which half is hotter? By chance in 50 % the right one."""
    records = select_splits(read_collection(real_data / "flickr8k"), ["test"])[:120]
    encoder, right = load("starter"), []
    for left, other in zip(records[::2], records[1::2], strict=True):
        both = Image.new("RGB", (448, 448))
        for place, record in enumerate((left, other)):
            both.paste(Image.open(record.image).convert("RGB").resize((448, 448)).crop((112, 0, 336, 448)), (224 * place, 0))
        both.save(tmp_path / "both.png")
        patches, size, shape = picture_patches(encoder, tmp_path / "both.png")
        box = seen(size, shape, encoder.resize_mode)
        assert box == (0, 0, 1, 1)
        for place, record in enumerate((left, other)):
            sentence = read_texts(encoder, [[sentences(record.captions[0])[0]]], cached=False).vectors[0]
            values = heat(patches, sentence, box).values
            halves = values[:, :3].mean(), values[:, 4:].mean()
            right.append(int(np.argmax(halves)) == place)
    assert np.mean(right) >= 0.85


def test_slightly_cropped_photographs_are_nearly_the_same_and_different_pictures_are_not(real_data: Path, tmp_path: Path):
    records = select_splits(read_collection(real_data / "flickr8k"), ["test"])[:150]
    for number, record in enumerate(records[:30]):
        image = Image.open(record.image)
        left, top = image.width // 40, image.height // 40
        image.crop((left, top, image.width - left, image.height - top)).save(tmp_path / f"{number:03}.jpg", quality=88)
    encoder = load("starter")

    def vectors(records: Sequence[Record]) -> np.ndarray:
        return embed_images(encoder, read_contents(records)[0])[0].vectors

    photographs, small = vectors(records), vectors(read_collection(tmp_path).records)
    mean = photographs.mean(axis=0)
    same = near_to(small, photographs, mean)
    assert all(set(np.flatnonzero(row)) <= {number} for number, row in enumerate(same))
    assert same.any(axis=1).mean() >= 0.8
    scenes = read_collection(make_scenes(tmp_path / "scenes", bursts=30, seed=0)).records
    drawn = vectors(scenes)
    for place, row in enumerate(near_to(drawn, drawn, drawn.mean(axis=0))):
        assert {scenes[other].burst for other in np.flatnonzero(row)} == {scenes[place].burst}


def test_fine_tuning_heads_on_ids_ade(real_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    table = real_data / "ids-ade" / "captions.jsonl"
    before = json.loads(run("evaluate", table, "--model", "starter", "--split", "val,test", "--json"))
    assert before["text_to_image"]["gallery"] == 116
    means = {}
    for objective in ("info_nce", "hn_clip"):
        rows = []
        for seed in SEEDS:
            out = tmp_path / f"{objective}-{seed}"
            started = time.monotonic()
            run("finetune", table, "--model", "starter", "--tune", "heads", "--objective", objective, "--epochs", 30,
                "--checkpoint", "last", "--seed", seed, "-o", out)
            seconds = time.monotonic() - started
            assert seed == 0 or seconds < 60, f"{seconds:.0f} s with cached features"
            report = json.loads(run("evaluate", table, "--model", out, "--split", "val,test", "--json"))
            assert report["trained_on"] == 0
            rows.append([report[d][m]["value"] for d in ("text_to_image", "image_to_text") for m in ("R@1", "R@5", "R@10")])
        means[objective] = np.mean(rows, axis=0)
    with capsys.disabled():
        for name, figures in means.items():
            print(f"\nids-ade, {name}: text→image R@1/5/10 {figures[:3].round(1)}, image→text {figures[3:].round(1)}")  # noqa: T201
    assert means["info_nce"][0] >= 25
    assert means["info_nce"][2] >= 80
    assert means["hn_clip"][0] > 2 * before["text_to_image"]["R@1"]["value"]


READABLE = {
    "animated.gif": (200, 133), "bad_exif.jpg": (500, 500), "black cat sleeping on a chair.JPG": (384, 256),
    "exif6.jpg": (1800, 1200), "exif8.jpg": (1200, 1800), "grey16.tiff": (64, 64), "huge_6440x2500_rgba.png": (6440, 2500),
    "photo.avif": (128, 128), "photo.bmp": (384, 256), "photo.webp": (171, 256),
    "truncated.jpg": (100, 100),  # without its last bytes, as viewers show it
}
REASONS = {
    "bomb_header.gif": "pixels are more than the limit", "truncated.png": "damaged picture",
}
EITHER = {"broken_stream.png", "photo.heic"}  # by the version of Pillow; by the extra


@pytest.mark.parametrize("name", sorted({*READABLE, *REASONS, *EITHER}))
def test_every_awkward_file_is_right_or_named_alone_and_among_good_ones(real_data: Path, tmp_path: Path, name: str):
    source = real_data / "awkward" / name
    alone, among = tmp_path / "alone", tmp_path / "among"
    for folder in (alone, among):
        folder.mkdir()
        (folder / name).write_bytes(source.read_bytes())
    for number in range(3):
        Image.new("RGB", (64, 64), (80 * number, 10, 10)).save(among / f"good{number}.jpg")
    model = ("--model", "starter", "-o")
    result = CliRunner().invoke(main, ["index", str(alone), *model, str(tmp_path / "i")], catch_exceptions=False)
    together = CliRunner().invoke(main, ["index", str(among), *model, str(tmp_path / "j")], catch_exceptions=False)
    assert together.exit_code == 0, together.output
    indexed = {entry.image_id for entry in load_index(tmp_path / "j").rows}
    assert {f"good{number}.jpg" for number in range(3)} <= indexed
    opened = open_image(source)
    if name in READABLE:
        assert isinstance(opened, Image.Image)
        assert opened.size == READABLE[name]
        assert name in indexed
        assert result.exit_code == 0
    elif name in REASONS or not isinstance(opened, Image.Image):
        assert not isinstance(opened, Image.Image)
        assert REASONS.get(name, "") in opened.reason
        assert f"{name}: {opened.reason}" in together.stderr
        assert result.exit_code == 1
        assert "no picture could be indexed; 1 were skipped, the first: " in result.stderr


def test_the_colours_of_awkward_files_are_those_of_an_independent_decoder(real_data: Path):
    import cv2

    for name, turn in (("exif6.jpg", cv2.ROTATE_90_CLOCKWISE), ("exif8.jpg", cv2.ROTATE_90_COUNTERCLOCKWISE)):
        raw = cv2.imread(str(real_data / "awkward" / name), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
        expected = cv2.cvtColor(cv2.rotate(raw, turn), cv2.COLOR_BGR2RGB).astype(int)
        found = np.asarray(open_image(real_data / "awkward" / name)).astype(int)
        assert np.abs(found - expected).mean() < 2
    for name in ("photo.bmp", "photo.webp", "black cat sleeping on a chair.JPG", "bad_exif.jpg"):
        expected = cv2.cvtColor(cv2.imread(str(real_data / "awkward" / name)), cv2.COLOR_BGR2RGB).astype(int)
        assert np.abs(np.asarray(open_image(real_data / "awkward" / name)).astype(int) - expected).mean() < 2
    grey = cv2.imread(str(real_data / "awkward" / "grey16.tiff"), cv2.IMREAD_UNCHANGED).astype(float)
    found = np.asarray(open_image(real_data / "awkward" / "grey16.tiff"))[..., 0].astype(float)
    assert np.abs(found - grey / 257).max() <= 1
