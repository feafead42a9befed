"""A batch of captions in parts of like length, so that a short one is not read with the padding of the longest.

Two fifths of the tokens of a batch of dense captions are padding, and the text tower is most of a training step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from open_clip.hf_model import HFTextEncoder
from open_clip.transformer import TextTransformer
from torch import Tensor

# what a further pass through the tower costs beside its tokens, in tokens; a GPU is idle until kernels are launched
PASS_TOKENS = {"cpu": 64, "mps": 1024, "cuda": 4096}
BORDERS = 32  # places at which a batch may be cut


def read_lengths(text: Any, ids: Tensor) -> Tensor | None:
    """Of token numbers [B, L], how many of each row can matter to its embedding, [B]; None where all of them do.

    Causal towers that pool the end token see nothing behind it; towers of Hugging Face mask the padding. Others, such
    as SigLIP's, attend to the padding as well.
    """
    if isinstance(text, HFTextEncoder):
        places = torch.arange(1, ids.shape[1] + 1, device=ids.device)
        last: Tensor = (places * (ids != text.config.pad_token_id)).amax(dim=1)
        return last.clamp_min(1)
    if ends_at_the_end_token(text):
        end = ids == text.eos_id if text.pool_type == "eos" else ids == ids.amax(dim=1, keepdim=True)
        return end.int().argmax(dim=1) + 1
    return None


def ends_at_the_end_token(text: Any) -> bool:
    """Whether nothing that stands after the end token can change what this tower returns."""
    return isinstance(text, TextTransformer) and text.pool_type in ("argmax", "eos") and text.attn_mask is not None \
        and text.cls_emb is None


def in_parts(encode: Callable[[Tensor], Tensor], text: Any, ids: Tensor, device: torch.device) -> Tensor:
    """``encode(ids)`` of token numbers [B, L] → [B, W], computed in parts of like length where that is as good."""
    lengths = read_lengths(text, ids) if len(ids) else None
    if lengths is None:
        return encode(ids)
    sorted_lengths, order = lengths.sort(stable=True)
    sizes = cut(sorted_lengths.tolist(), PASS_TOKENS[device.type])
    if len(sizes) == 1:
        return encode(ids[:, : int(sorted_lengths[-1])])
    widths = sorted_lengths[torch.tensor(sizes).cumsum(0) - 1].tolist()
    parts = zip(torch.split(order, sizes), widths, strict=True)
    outputs = torch.cat([encode(ids[rows, :width]) for rows, width in parts])
    return outputs[order.argsort().to(outputs.device)]


def cut(lengths: Sequence[int], pass_tokens: int) -> list[int]:
    """Rising lengths → sizes of the parts in which they cost least.

    A part costs its rows times its longest, and pass_tokens; all ways to cut at BORDERS places are compared.
    """
    step = -(-len(lengths) // BORDERS)
    best: dict[int, tuple[int, int]] = {0: (0, 0)}  # end of a part → cost up to there, where that part begins
    for end in (*range(step, len(lengths), step), len(lengths)):
        best[end] = min((cost + (end - start) * lengths[end - 1] + pass_tokens, start)
                        for start, (cost, _) in best.items())
    sizes, end = [], len(lengths)
    while end:
        start = best[end][1]
        sizes.append(end - start)
        end = start
    return sizes[::-1]
