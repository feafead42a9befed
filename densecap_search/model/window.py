"""The text window: how many tokens of a caption the text tower reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from open_clip.transformer import TextTransformer
from torch import Tensor, nn

from densecap_search.errors import ModelError

LONG_CONTEXT = 248  # the window that Long-CLIP and its followers stretch 77 to: 4·77 − 3·20
KEPT_ROWS = 20  # positions that pre-training saw often enough to leave alone


def stretch_positions(rows: Tensor, length: int) -> Tensor:
    """Positional embeddings [L, W] for a window of another length [length, W].

    A longer window keeps rows 0…19 and reads row j ≥ 20 at 20 + (j − 20)(L − 20)/(length − 20) of the old ones,
    linear between neighbours, extrapolated at the end; a shorter one keeps the first rows.
    At 77 → 248 this is the scheme of Long-CLIP (Zhang et al. 2024, arXiv:2403.15378).
    """
    old = rows.shape[0]
    if length <= old:
        return rows[:length].clone()
    if old < KEPT_ROWS + 2:
        raise ModelError(f"a text window of {old} tokens is too short to be stretched to {length}")
    where = KEPT_ROWS + torch.arange(length - KEPT_ROWS, dtype=torch.float64) * (old - KEPT_ROWS) / (length - KEPT_ROWS)
    left = where.floor().long().clamp(max=old - 2)
    share = (where - left)[:, None].to(rows.device)
    values = rows.double()
    stretched = (1 - share) * values[left] + share * values[left + 1]
    return torch.cat([rows[:KEPT_ROWS], stretched.to(rows.dtype)])


def default_context_length(text: Any) -> int:
    """248 for the causal towers of CLIP, a tower's own length for every other."""
    if isinstance(text, TextTransformer) and text.attn_mask is not None and text.cls_emb is None:
        return max(LONG_CONTEXT, int(text.context_length))
    return int(text.context_length)


@contextmanager
def narrowed(text: Any, length: int) -> Iterator[None]:
    """Within the block a causal tower takes token rows of this length, shorter than its window."""
    mask = getattr(text, "attn_mask", None)
    if mask is None or mask.shape[0] == length:
        yield
        return
    text.attn_mask = mask[:length, :length]
    try:
        yield
    finally:
        text.attn_mask = mask


def longest_window(text: Any) -> int | None:
    """The largest --context-length that this text tower can be given; None where positions are stretched at will."""
    if isinstance(text, TextTransformer):
        return int(text.context_length) if text.cls_emb is not None else None
    return int(text.config.max_position_embeddings)


def set_context_length(text: Any, length: int) -> None:
    """Give a loaded text tower another window, in place."""
    if isinstance(text, TextTransformer):
        if length == text.context_length:
            return
        if text.cls_emb is not None:
            raise ModelError("this text tower has a class token after the caption: its window cannot be changed")
        text.positional_embedding = nn.Parameter(stretch_positions(text.positional_embedding.detach(), length))
        text.context_length = text.num_pos = length
        if text.attn_mask is not None:
            mask = text.build_causal_mask().to(text.positional_embedding.device)
            text.register_buffer("attn_mask", mask, persistent=False)
        return
    longest = int(text.config.max_position_embeddings)
    if length > longest:
        raise ModelError(f"this text tower reads at most {longest} tokens; --context-length {length} is too long")
    text.context_length = length
