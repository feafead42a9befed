from __future__ import annotations

import numpy as np
import torch
from helpers import make_tiny

from densecap_search.collection.splits import group_numbers
from densecap_search.training.batches import PixelBatches, RowBatches, plan_epoch, steps_per_epoch


def test_an_epoch_sees_every_pair_once_in_equal_batches():
    plan = plan_epoch([1] * 17, 16, seed=0, epoch=1)
    assert [len(batch) for batch in plan.batches] == [9, 8]
    assert sorted(np.concatenate(plan.batches)) == list(range(17))


def test_fewer_pairs_than_a_batch_make_one_step():
    assert steps_per_epoch(10, 64) == 1
    assert steps_per_epoch(64, 64) == 1
    assert steps_per_epoch(65, 64) == 2
    assert [len(batch) for batch in plan_epoch([1] * 10, 64, 0, 1).batches] == [10]


def test_epochs_differ_and_repeat_by_seed():
    first = plan_epoch([3] * 50, 8, seed=1, epoch=1)
    again, later = plan_epoch([3] * 50, 8, seed=1, epoch=1), plan_epoch([3] * 50, 8, seed=1, epoch=2)
    assert all((a == b).all() for a, b in zip(first.batches, again.batches, strict=True))
    assert (first.caption == again.caption).all()
    assert not all((a == b).all() for a, b in zip(first.batches, later.batches, strict=True))
    assert set(first.caption) == {0, 1, 2}


def test_row_batches_keep_picture_caption_and_group_together():
    counts = [1, 3, 2, 1, 1]
    image = np.arange(5, dtype=np.float32)[:, None]
    text = np.repeat(np.arange(5, dtype=np.float32), counts)[:, None]
    batches = RowBatches(image, text, counts, [0, 1, 2, 3, 4], 2, seed=0)
    assert batches.steps == 3
    for epoch in range(1, 6):
        for batch in batches.epoch(epoch):
            assert torch.equal(batch.images, batch.tokens)
            assert torch.equal(batch.images[:, 0].long(), batch.groups)


def test_starting_within_an_epoch_gives_its_remaining_batches():
    batches = RowBatches(np.arange(9, dtype=np.float32)[:, None], np.arange(9, dtype=np.float32)[:, None], [1] * 9,
                         list(range(9)), 3, seed=0)
    whole = [batch.groups.tolist() for batch in batches.epoch(1)]
    assert [batch.groups.tolist() for batch in batches.epoch(1, start=1)] == whole[1:]


def test_a_picture_that_vanishes_leaves_its_batch_and_shifts_no_caption(collection):
    tiny = make_tiny()
    records = collection.records
    records[5].image.write_bytes(b"")
    batches = PixelBatches(tiny, records, group_numbers(records), batch_size=10, seed=0, workers=2)
    seen = {}
    for batch in batches.epoch(1):
        for pixels, tokens, group in zip(batch.images, batch.tokens, batch.groups, strict=True):
            seen[int(group)] = (pixels, tokens)
    assert sorted(seen) == [row for row in range(24) if row != 5]
    assert [skip.reason for skip in batches.skipped] == ["empty file"]
    for row in (0, 6, 23):
        from densecap_search.retrieval.embeddings import read_pixels

        pixels, tokens = seen[row]
        assert torch.equal(pixels, read_pixels(tiny, records[row].image))
        ids = tiny.tokenize(records[row].captions).ids[0]
        assert torch.equal(tokens[: len(ids)], ids)
