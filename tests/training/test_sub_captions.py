"""Random runs of sentences in the place of captions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from densecap_search.collection.records import Collection
from densecap_search.config import load_config
from densecap_search.errors import ConfigError
from densecap_search.talk import SILENT
from densecap_search.training.batches import RowBatches
from densecap_search.training.loop import finetune
from densecap_search.training.sub_captions import RUNS, interleaved, runs_of_sentences


def words(texts: list[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def test_the_proper_runs_of_three_sentences_are_five():
    (found,) = runs_of_sentences(["A dog runs. It is brown. Two trees stand."], 0, words, 100)
    assert sorted(found) == ["A dog runs.", "A dog runs. It is brown.", "It is brown.", "It is brown. Two trees stand.", "Two trees stand."]


def test_what_several_captions_have_does_not_fit_or_is_whole_is_no_run():
    found = runs_of_sentences(["A dog runs. The sky is blue.", "Two cats sleep. The sky is blue.", "A ball lies."], 0, words, 100)
    assert found == [["A dog runs."], ["Two cats sleep."], []]
    (short,) = runs_of_sentences(["A dog runs. It is brown. Two trees stand."], 0, words, 3)
    assert sorted(short) == ["A dog runs.", "It is brown.", "Two trees stand."]
    (long,) = runs_of_sentences([" ".join(f"Thing {name} stands here." for name in "abcdefghij")], 0, words, 100)
    assert len(set(long)) == len(long) == RUNS


def test_rows_of_a_caption_come_together_as_worked_by_hand():
    """Two texts and one of the first kind are rows 0 to 2; one and two of the second are rows 3 to 5."""
    assert interleaved(np.array([2, 1]), np.array([1, 2])).tolist() == [0, 1, 3, 2, 4, 5]
    assert interleaved(np.array([], np.int64), np.array([], np.int64)).tolist() == []


@pytest.mark.parametrize("segments", [None, [1, 2] * 500])
def test_the_share_is_drawn_and_each_row_reads_a_text_of_its_own_caption(segments: list[int] | None):
    whole, subs = np.array(segments or [1] * 1000), np.array([3, 3, 0, 3] * 250)
    texts = np.array([(caption, kind) for caption in range(1000) for kind in [0] * whole[caption] + [1] * subs[caption]], np.float32)
    batches = RowBatches([1] * 1000, list(range(1000)), 100, 0, segment_counts=segments, sub_counts=subs.tolist(), sub_share=0.4,
                         image_rows=np.arange(1000, dtype=np.float32)[:, None], text_rows=texts)
    read = list(batches.read(batches.plan(1)))
    images, tokens = torch.cat([batch.images for batch in read]), torch.cat([batch.tokens for batch in read])
    assert torch.equal(tokens[:, :1], images)
    has = torch.from_numpy(subs)[images[:, 0].long()] > 0
    assert not tokens[~has, 1].any()
    assert tokens[has, 1].mean().item() == pytest.approx(0.4, abs=0.06)  # three deviations of 750 draws


@pytest.mark.parametrize("tune", ["heads", "full"])
def test_a_run_with_sub_captions_is_another_and_the_same_every_time(collection: Collection, tiny_run: Path, tmp_path: Path, tune: str):
    told = replace(collection, records=tuple(replace(record, captions=(f"{record.captions[0]} It is called {record.image_id}.",))
                                             for record in collection.records))

    def trained(name: str, share: float) -> dict[str, torch.Tensor]:
        config = load_config(overrides=[("model.name", str(tiny_run)), ("train.tune", tune), ("train.epochs", 1), ("train.lr", 1e-2),
                                        ("train.objective", "info_nce"), ("train.checkpoint", "last"), ("train.sub_captions", share)])
        finetune(told, config, tmp_path / name, talk=SILENT)
        return load_file(tmp_path / name / "weights.safetensors")

    none, some, again = trained("none", 0), trained("some", 0.5), trained("again", 0.5)
    assert all(torch.equal(some[name], again[name]) for name in some)
    assert not all(torch.equal(some[name], none[name]) for name in some)


def test_a_share_is_a_share():
    with pytest.raises(ConfigError, match=r"train\.sub_captions must be from 0 to 1, not 1\.5"):
        load_config(overrides=[("train.sub_captions", 1.5)])
