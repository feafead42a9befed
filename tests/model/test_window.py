from __future__ import annotations

import pytest
import torch

from densecap_search.errors import ModelError
from densecap_search.model.segments import Truncation
from densecap_search.model.window import set_context_length, stretch_positions


def long_clip_stretch(old: torch.Tensor) -> torch.Tensor:
    """The scheme of Long-CLIP, written as its paper tells it: 77 rows, the first 20 kept, the rest in quarters."""
    new = torch.empty(248, old.shape[1], dtype=old.dtype)
    new[:20] = old[:20]
    for i in range(56):
        for r in range(4):
            new[20 + 4 * i + r] = (1 - r / 4) * old[20 + i] + (r / 4) * old[21 + i]
    for r in range(4):
        new[244 + r] = old[76] + (r / 4) * (old[76] - old[75])
    return new


def test_stretching_77_to_248_is_the_scheme_of_long_clip():
    old = torch.randn(77, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(stretch_positions(old, 248), long_clip_stretch(old), atol=1e-12)


def test_other_lengths_follow_the_rule_worked_by_hand():
    old = torch.arange(30, dtype=torch.float32)[:, None] ** 2
    new = stretch_positions(old, 40)[:, 0]
    # row j reads old row 20 + (j − 20)/2
    assert new[:20].tolist() == [float(row**2) for row in range(20)]
    assert new[20] == 400
    assert new[21] == (400 + 441) / 2
    assert new[38] == 841
    assert new[39] == pytest.approx(841 + (841 - 784) / 2)


def test_a_shorter_window_keeps_the_first_rows():
    old = torch.randn(77, 4)
    assert torch.equal(stretch_positions(old, 32), old[:32])
    assert torch.equal(stretch_positions(old, 77), old)


def test_a_window_too_short_to_stretch_is_refused():
    with pytest.raises(ModelError, match="a text window of 16 tokens is too short to be stretched to 32"):
        stretch_positions(torch.randn(16, 4), 32)


def test_a_stretched_tower_reads_its_whole_window(tiny):
    long = tiny.tokenize(["word " * 200 + "red"]).ids
    other = tiny.tokenize(["word " * 200 + "blue"]).ids
    assert long.shape == (1, 203)
    assert not torch.allclose(tiny.encode_text(long), tiny.encode_text(other))
    set_context_length(tiny.model.text, 77)
    assert tiny.model.text.attn_mask.shape == (77, 77)
    assert tiny.model.text.positional_embedding.shape == (77, 32)


def test_truncation_is_counted_in_captions_and_tokens():
    truncation = Truncation.of([10, 300, 250, 248], 248)
    assert (truncation.truncated, truncation.lost, truncation.tokens, truncation.longest) == (2, 54, 808, 300)
    assert str(truncation) == (
        "2 of 4 captions were cut to the window of 248 tokens: 6.7 % of all tokens lost, the longest caption has 300"
    )
    assert str(Truncation.of([3], 77)) == "no caption is longer than the window of 77 tokens (the longest has 3)"
