"""How alike captions are, how long, and what is predicted from them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import draw_photo, make_tiny

from densecap_search.collection.readers import read_collection
from densecap_search.inspection.findings import of_geometry
from densecap_search.inspection.geometry import (
    Spelled,
    advise,
    histogram,
    ideal_loss,
    look_at_captions,
    predict,
    spelled,
)
from densecap_search.model.encoder import DualEncoder
from densecap_search.training.objectives import info_nce


def test_the_ideal_loss_is_info_nce_of_pictures_that_lie_on_their_captions():
    vectors = torch.nn.functional.normalize(torch.randn(9, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    groups = torch.tensor([0, 1, 2, 3, 0, 4, 5, 6, 7])
    expected = info_nce(vectors, vectors, torch.tensor(12.0), groups=groups).item()
    assert ideal_loss(vectors.numpy(), groups.numpy(), 12.0) == pytest.approx(expected, rel=1e-5)
    # two captions at 60°: gap s/2
    two = np.array([[1.0, 0.0], [0.5, 3**0.5 / 2]], np.float32)
    assert ideal_loss(two, np.arange(2), 4.0) == pytest.approx(math.log1p(math.exp(-2.0)), rel=1e-6)


def test_a_high_scale_is_predicted_to_saturate_and_a_low_one_not(collection):
    tiny = make_tiny()
    hot = look_at_captions(collection, tiny, model="tiny", batch_size=4, logit_scale=1e6)
    cold = look_at_captions(collection, tiny, model="tiny", batch_size=4, logit_scale=1.0)
    assert (hot.solved, cold.solved) == (100.0, 0.0)
    assert "hn_clip with gamma 0.5" in advise(hot.solved)
    assert "enough to teach" in advise(cold.solved)
    assert hot.similarity["p1"] <= hot.mean <= hot.hardest["p100"] <= 1.0 + 1e-6
    assert hot.hardest_in_batch <= hot.hardest["p100"]
    by_size = {(cell.batch_size, cell.logit_scale): cell.solved for cell in hot.predictions}
    assert by_size[4, 1e6] == by_size[16, 1e6] == 100.0
    assert by_size[128, 1e6] is None  # 24 captions


def test_a_predictions_loss_is_that_of_captions_at_right_angles():
    found = predict(np.eye(16, dtype=np.float32), 16, 5.0)
    assert found.loss == pytest.approx(math.log1p(15 * math.exp(-5.0)), rel=1e-6)
    assert predict(np.eye(16, dtype=np.float32), 16, 10.0).solved == 100.0  # 15 e⁻¹⁰ = 0.0007
    assert predict(np.eye(16, dtype=np.float32), 16, 9.0).solved == 0.0  # 15 e⁻⁹ = 0.0019


@pytest.mark.parametrize(("words", "own_cut", "lost"), [(200, 0, 0), (750, 1, 750 + 2 - 248)])
def test_the_share_of_captions_and_text_that_each_window_cuts_is_counted_in_the_models_tokens(
        collection, tiny: DualEncoder, words: int, own_cut: int, lost: int):
    long = " ".join(["house"] * words)  # one token each, and two marks
    records = (replace(collection.records[0], captions=(long,)), *collection.records[1:])
    found = look_at_captions(replace(collection, records=records), tiny, model="tiny", batch_size=4, logit_scale=1.0)
    cut = {window.context_length: (window.truncated, window.lost) for window in found.windows}
    assert cut[77] == (1, words + 2 - 77)
    assert cut[128] == (1, words + 2 - 128)
    assert cut[248] == (own_cut, lost) == (found.truncation.truncated, found.truncation.lost)
    assert (found.truncation.captions, found.tokens["p100"], found.longest_window) == (24, words + 2, None)
    assert sum(found.lengths.counts) == 24


def test_a_model_that_splits_long_captions_cuts_none(collection):
    long = "A red ball lies on the left. " * 20  # 141 tokens, in windows of 77
    records = [replace(record, captions=(f"{long}{record.captions[0]}",)) for record in collection.records]
    cuts, splits = make_tiny(77), make_tiny(77)
    splits = DualEncoder(splits.model, replace(splits.spec, long_text="mean"), splits.tokenizer)
    cut, split = (look_at_captions(replace(collection, records=tuple(records)), encoder, model="tiny", batch_size=4, logit_scale=1.0)
                  for encoder in (cuts, splits))
    assert (cut.truncation.truncated, cut.truncation.split, cut.same_when_cut) == (24, 0, 23)
    assert (split.truncation.truncated, split.truncation.lost, split.truncation.split, split.same_when_cut) == (0, 0, 24, 0)
    assert split.truncation.captions == 24


def test_captions_that_differ_only_beyond_the_window_are_the_same_to_the_model(collection, tiny: DualEncoder):
    long = " ".join(["house"] * 300)
    changed = [replace(record, captions=(f"{long} {end}",)) for record, end in zip(collection.records, ("one", "two"), strict=False)]
    one_case = [replace(record, captions=(text,)) for record, text in zip(collection.records[2:], ("A cat", "a cat"), strict=False)]
    records = (*changed, *one_case, *collection.records[4:])
    found = look_at_captions(replace(collection, records=records), tiny, model="tiny", batch_size=4, logit_scale=1.0)
    assert found.same_when_cut == 1  # and not the cat: nothing of it was cut
    assert found.near.pairs[0][2] == pytest.approx(1.0, abs=1e-5)
    assert {pair[:2] for pair in found.near.pairs[:2]} == {(0, 1), (2, 3)}
    group_of = {row: group for group in found.near.groups for row in group}
    assert group_of[0] == group_of[1]
    assert group_of[2] == group_of[3]


def test_a_histogram_counts_whole_numbers_in_whole_bins():
    found = histogram([1, 1, 2, 4])
    assert found.edges == (1.0, 2.0, 3.0, 4.0, 5.0)
    assert found.counts == (2, 1, 0, 1)
    assert sum(histogram(np.array([0.5, 0.5, 0.5], np.float32)).counts) == 3
    assert histogram([]).counts == ()


def test_how_a_model_spells_each_language_is_counted_in_tokens_a_word_or_a_letter():
    german, english, japanese = "der Hund und die Katze", "the dog and the cat", "いぬ と ねこ"
    assert spelled([german, english, japanese, english + " with a bone", "???"], [12, 7, 15, 11, 5]) == (
        Spelled("English", 2, 18 / 13), Spelled("German", 1, 12 / 5), Spelled("Japanese", 1, 15 / 5))


def test_a_collection_in_a_language_that_the_model_spells_out_is_told_so(tmp_path: Path, tiny: DualEncoder):
    lines = ["Zwei Boote liegen am Strand vor einem weißen Leuchtturm, und die Frau ist mit dem Hund da.",
             "Der Mann sitzt auf der Bank vor einem Haus, und neben ihm ist ein Hund."]
    for number, line in enumerate(lines):
        draw_photo(tmp_path / f"{number}.png", "red", "left", "ball")
        (tmp_path / f"{number}.txt").write_text(line, encoding="utf-8")
    collection = read_collection(tmp_path)
    geometry = look_at_captions(collection, tiny, model="tiny", batch_size=2, logit_scale=5.0)
    (finding,) = [one for one in of_geometry(collection.captioned, geometry) if one.kind == "hardly read"]
    lengths = tiny.lengths(lines)
    assert finding.what == (f"2 captions are in German, which tiny spells in {sum(lengths) / 32:.1f} tokens a word: it "
                            "hardly knows the language")
