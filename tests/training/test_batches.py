from __future__ import annotations

import numpy as np
import torch
from helpers import make_tiny

from densecap_search.collection.splits import group_numbers
from densecap_search.embedding.content import read_contents
from densecap_search.embedding.towers import open_pictures, read_pixels
from densecap_search.training.batches import PixelBatches, Plan, RowBatches, plan_epoch, steps_per_epoch
from densecap_search.training.distributed import Processes


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
    batches = RowBatches(counts, [0, 1, 2, 3, 4], 2, seed=0, image_rows=image, text_rows=text)
    assert batches.steps == 3
    for epoch in range(1, 6):
        for batch in batches.read(batches.plan(epoch)):
            assert torch.equal(batch.images, batch.tokens)
            assert torch.equal(batch.images[:, 0].long(), batch.groups)


def test_starting_within_an_epoch_gives_its_remaining_batches():
    rows = np.arange(9, dtype=np.float32)[:, None]
    batches = RowBatches([1] * 9, list(range(9)), 3, seed=0, image_rows=rows, text_rows=rows)
    plan = Plan.from_tensors(batches.plan(1).as_tensors())
    whole = [batch.groups.tolist() for batch in batches.read(plan)]
    assert [batch.groups.tolist() for batch in batches.read(plan, start=1)] == whole[1:]


def test_processes_share_each_batch_without_repeats():
    rows = np.arange(11, dtype=np.float32)[:, None]
    shares = []
    for rank in range(3):
        batches = RowBatches([1] * 11, list(range(11)), 4, seed=0, processes=Processes(rank, 3), image_rows=rows, text_rows=rows)
        shares.append([batch.groups.tolist() for batch in batches.read(batches.plan(1))])
    alone = RowBatches([1] * 11, list(range(11)), 4, seed=0, image_rows=rows, text_rows=rows)
    whole = [batch.groups.tolist() for batch in alone.read(alone.plan(1))]
    assert [[row for share in shares for row in share[step]] for step in range(3)] == whole


def test_neighbours_bring_captions_that_are_alike_together_and_repeat_none():
    # 16 themes of 8 captions each, themes orthogonal to each other
    themes = np.repeat(np.eye(16, dtype=np.float32), 8, axis=0) + 0.01 * np.random.default_rng(0).normal(size=(128, 16))
    vectors = (themes / np.linalg.norm(themes, axis=1, keepdims=True)).astype(np.float32)
    plan = plan_epoch([1] * 128, 16, 0, 1, embed_captions=lambda caption: vectors)
    assert sorted(plan.order) == list(range(128))
    assert [len(set((batch // 8).tolist())) for batch in plan.batches] == [2] * 8
    mixed = plan_epoch([1] * 128, 16, 0, 1)
    assert min(len(set((batch // 8).tolist())) for batch in mixed.batches) > 6


def test_micro_batches_are_the_batch_in_order():
    rows = np.arange(10, dtype=np.float32)[:, None]
    batches = RowBatches([1] * 10, list(range(10)), 10, seed=0, reference=rows, image_rows=rows, text_rows=rows)
    (batch,) = batches.read(batches.plan(1))
    parts = batch.split(4)
    assert [len(part) for part in parts] == [4, 4, 2]
    assert torch.equal(torch.cat([part.groups for part in parts]), batch.groups)
    assert torch.equal(batch.reference, batch.images)


def test_a_picture_that_vanishes_leaves_its_batch_and_shifts_no_caption(collection):
    tiny = make_tiny()
    records = collection.records
    records[5].image.write_bytes(b"")
    batches = PixelBatches([1] * 24, group_numbers(records), 10, seed=0, encoder=tiny, records=records,
                           texts=[record.captions[0] for record in records], workers=2)
    seen = {}
    for batch in batches.read(batches.plan(1)):
        for pixels, tokens, group in zip(batch.images, batch.tokens, batch.groups, strict=True):
            seen[int(group)] = (pixels, tokens)
    assert sorted(seen) == [row for row in range(24) if row != 5]
    assert [skip.reason for skip in batches.skipped] == ["empty file"]
    for row in (0, 6, 23):
        pixels, tokens = seen[row]
        assert torch.equal(pixels, read_pixels(tiny, records[row].image))
        ids = tiny.tokenize(records[row].captions).ids[0]
        assert torch.equal(tokens[: len(ids)], ids)


def test_pictures_that_were_opened_before_are_not_decoded_again_and_the_batches_are_the_same(collection):
    tiny = make_tiny()
    opened = open_pictures(tiny, read_contents(collection.records)[0], keep_bytes=20 * 3 * 32 * 32)
    assert len(opened.records) == 24
    assert len(opened.pixels) == 20

    def read(pixels: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        batches = PixelBatches([1] * 24, list(range(24)), 10, seed=0, encoder=tiny, records=opened.records,
                               texts=[record.captions[0] for record in opened.records], workers=2, pixels=pixels)
        return [batch.images for batch in batches.read(batches.plan(1))]

    decoded = read({})
    for record in opened.records:
        if record.hash in opened.pixels:
            record.image.unlink()
    assert all(torch.equal(a, b) for a, b in zip(decoded, read(opened.pixels), strict=True))


def test_a_segment_of_each_long_caption_is_drawn_a_step_and_a_plan_remembers_it():
    # records with 2 and 1 captions; these have 1, 3 and 2 segments
    image, text = np.zeros((2, 1), np.float32), np.arange(6, dtype=np.float32)[:, None]
    batches = RowBatches([2, 1], [0, 1], 2, seed=0, segment_counts=[1, 3, 2], image_rows=image, text_rows=text)
    allowed = {(0, 0): {0}, (0, 1): {1, 2, 3}, (1, 0): {4, 5}}  # record, caption → rows of its segments
    seen = set()
    for epoch in range(1, 40):
        plan = batches.plan(epoch)
        (batch,) = batches.read(plan)
        for row, value in zip(plan.order, batch.tokens[:, 0].int().tolist(), strict=True):
            assert value in allowed[int(row), int(plan.caption[row])]
            seen.add(value)
        again = Plan.from_tensors(plan.as_tensors())
        assert torch.equal(next(batches.read(again)).tokens, batch.tokens)
        assert torch.equal(next(batches.read(batches.plan(epoch))).tokens, batch.tokens)
    assert seen == {0, 1, 2, 3, 4, 5}


def test_segments_change_neither_the_order_nor_the_captions_of_a_plan():
    rows = np.zeros((5, 1), np.float32)
    plain = RowBatches([2, 3], [0, 1], 2, seed=3, image_rows=rows[:2], text_rows=rows)
    split = RowBatches([2, 3], [0, 1], 2, seed=3, segment_counts=[1, 2, 1, 4, 1], image_rows=rows[:2], text_rows=rows)
    for epoch in (1, 2):
        assert plain.plan(epoch).segment is None
        assert set(plain.plan(epoch).as_tensors()) == {"order", "sizes", "caption"}
        assert np.array_equal(plain.plan(epoch).order, split.plan(epoch).order)
        assert np.array_equal(plain.plan(epoch).caption, split.plan(epoch).caption)
