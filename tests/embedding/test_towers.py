from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import draw_photo, make_mixed, make_tiny
from PIL import Image

from densecap_search.collection.readers import read_collection
from densecap_search.collection.records import Record
from densecap_search.embedding import towers as embeddings
from densecap_search.embedding.cache import FLUSH_ROWS, RowCache
from densecap_search.embedding.content import ahead, read_contents
from densecap_search.embedding.texts import embed_texts
from densecap_search.embedding.towers import PASS, embed_images, pixel_batches
from densecap_search.errors import ModelError
from densecap_search.model.encoder import DualEncoder
from densecap_search.talk import Talk


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many inputs have gone through each tower."""
    count = {"image": 0, "text": 0}
    original = DualEncoder.tower_outputs

    def tower_outputs(self, tower, batch):
        count[tower] += len(batch)
        return original(self, tower, batch)

    monkeypatch.setattr(DualEncoder, "tower_outputs", tower_outputs)
    return count


def test_embeddings_are_those_of_the_encoder(collection, tiny):
    records, _ = read_contents(collection.records)
    found, skipped = embed_images(tiny, records)
    assert skipped == ()
    assert found.image_ids == tuple(record.image_id for record in collection.records)
    pixels = torch.stack([embeddings.read_pixels(tiny, record.image) for record in collection.records])
    assert np.allclose(found.vectors, tiny.encode_image(pixels).detach().numpy(), atol=1e-6)


def test_what_was_encoded_once_is_read_from_the_cache(collection, tiny, counted):
    records, _ = read_contents(collection.records)
    first, _ = embed_images(tiny, records)
    again, _ = embed_images(tiny, records)
    captions = [record.captions[0] for record in collection.records]
    texts, _ = embed_texts(tiny, captions + captions[:3])
    texts_again, _ = embed_texts(make_tiny(), captions)
    assert counted == {"image": 24, "text": 24}
    assert np.array_equal(first.vectors, again.vectors)
    assert np.array_equal(texts[:24], texts_again)
    assert np.array_equal(texts[24:], texts[:3])
    embed_images(make_tiny(seed=1), records)
    assert counted["image"] == 48


def test_a_new_head_reuses_the_tower(collection, tiny, counted):
    records, _ = read_contents(collection.records)
    before, _ = embed_images(tiny, records)
    with torch.no_grad():
        tiny.model.visual.proj.normal_()
    after, _ = embed_images(tiny, records)
    assert counted["image"] == 24
    assert not np.allclose(before.vectors, after.vectors)


def test_broken_pictures_are_left_out_and_the_others_stay_aligned(photos: Path, tiny):
    whole = read_collection(photos)
    records, _ = read_contents(whole.records)
    good, _ = embed_images(tiny, records)
    for name in ("green-left-box.png", "blue-right-ball.png"):
        (photos / name).write_bytes((photos / name).read_bytes()[:70])
    records, _ = read_contents(whole.records)
    found, skipped = embed_images(tiny, records, cached=False)
    assert sorted(Path(skip.path).name for skip in skipped) == ["blue-right-ball.png", "green-left-box.png"]
    assert len(found.image_ids) == 22
    expected = dict(zip(good.image_ids, good.vectors, strict=True))
    for name, vector in zip(found.image_ids, found.vectors, strict=True):
        assert np.allclose(vector, expected[name], atol=1e-6)


def test_vectors_that_are_not_finite_are_refused_by_name(collection, tiny):
    records, _ = read_contents(collection.records)
    with torch.no_grad():
        tiny.model.visual.proj.fill_(float("nan"))
    with pytest.raises(ModelError, match=r"not finite for 24 inputs, the first is 'blue-left-ball\.png'"):
        embed_images(tiny, records)


def test_a_damaged_cache_is_computed_again(tmp_path: Path):
    cache = RowCache(tmp_path)
    cache.add(["a", "b"], np.array([[1.0], [2.0]], np.float32))
    cache.flush()
    cache.add(["c"], np.array([[3.0]], np.float32))
    cache.flush()
    again = RowCache(tmp_path)
    assert [float(again[key][0]) for key in "abc"] == [1.0, 2.0, 3.0]
    part = next(path for path in tmp_path.glob("*.keys") if path.read_text() == "a\nb")
    part.with_suffix(".npy").write_bytes(b"half")
    left = RowCache(tmp_path)
    assert ("a" in left, "c" in left) == (False, True)


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_threads_keep_the_order(workers: int):
    assert list(ahead(lambda n: n * n, range(100), workers, window=7)) == [n * n for n in range(100)]


@pytest.fixture
def told() -> tuple[Talk, list[list[Any]]]:
    """A listener, and of each progress what was counted: words, total, the sum of what was done."""
    seen: list[list[Any]] = []

    @contextmanager
    def progress(what: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
        row = [what, total, 0]
        seen.append(row)

        def advance(steps: int) -> None:
            row[2] += steps

        yield advance

    return Talk(progress=progress), seen


def test_progress_counts_every_input_once_broken_and_double_ones_too(photos: Path, tiny: DualEncoder, told):
    talk, seen = told
    for number in range(30):  # 54 pictures: a batch of 32 and one of 22
        draw_photo(photos / f"more-{number}.png", "red", "left", "ball")
        with (photos / f"more-{number}.png").open("ab") as file:
            file.write(bytes([number]))
    (photos / "broken.png").write_bytes((photos / "red-left-box.png").read_bytes()[:70])
    (photos / "copy.png").write_bytes((photos / "red-left-box.png").read_bytes())
    records, _ = read_contents(read_collection(photos).records)
    found, skipped = embed_images(tiny, records, talk=talk)
    embed_texts(tiny, [f"caption {number}" for number in range(150)] * 2, talk=talk)
    assert seen == [["encoding pictures", 55, 55], ["encoding captions", 150, 150]]
    assert (len(found.image_ids), found.encoded, len(skipped)) == (55, 54, 1)
    again, _ = embed_images(tiny, records, talk=talk)
    assert (len(again.image_ids), again.encoded) == (55, 0)
    assert seen[2] == ["encoding pictures", 1, 1]  # the broken one is tried again


def test_rows_that_are_on_the_disk_are_no_longer_held_in_memory(tmp_path: Path):
    cache = RowCache(tmp_path)
    cache.add([f"{number}" for number in range(FLUSH_ROWS)], np.arange(FLUSH_ROWS * 2, dtype=np.float32).reshape(-1, 2))
    assert isinstance(cache["3"].base, np.memmap) or isinstance(cache["3"], np.memmap)
    assert cache["3"].tolist() == [6.0, 7.0]


def test_all_batches_of_pictures_lie_in_the_same_memory(tiny, collection):
    places = [pixels.untyped_storage().data_ptr() for _, pixels, _ in pixel_batches(tiny, collection.records, 5, 0)]
    assert len(places) == 5  # of 24 pictures
    assert len(set(places)) == 1


def test_vectors_of_many_pictures_are_those_of_one_at_a_time(tiny, collection):
    records, _ = read_contents(collection.records)
    embeddings, _ = embed_images(tiny, records, cached=False)
    for record, vector in zip(records, embeddings.vectors, strict=True):
        alone = tiny.encode_image(tiny.preprocess(Image.open(record.image).convert("RGB"))[None])[0]
        assert float(alone.detach().numpy() @ vector) >= 0.999999


@pytest.mark.parametrize("make", [lambda folder: make_tiny(), make_mixed], ids=["ViT", "convolutions"])
def test_streams_return_the_vectors_of_one_batch_after_the_other_and_leave_torchs_threads_as_they_were(
        make: Callable[[Path], DualEncoder], tmp_path: Path):
    encoder, threads = make(tmp_path / "bert"), torch.get_num_threads()
    generator = np.random.default_rng(0)
    records = []
    for number in range(PASS + 8):
        Image.fromarray(generator.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(tmp_path / f"{number}.png")
        records.append(Record(f"{number}", tmp_path / f"{number}.png"))
    (tmp_path / "7.png").write_bytes(b"no picture")
    records, _ = read_contents([record for record in records if record.image_id != "7"])
    (tmp_path / "9.png").write_bytes(b"no longer a picture")
    (in_streams, skipped), (alone, _) = (embed_images(encoder, records, cached=False, workers=workers) for workers in (None, 0))
    assert [skip.path for skip in skipped] == [str(tmp_path / "9.png")]
    assert in_streams.image_ids == alone.image_ids
    assert (in_streams.vectors * alone.vectors).sum(axis=1).min() >= 0.99999
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert seen == [threads] == [torch.get_num_threads()]
