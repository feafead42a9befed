"""Tokenwise embeddings: every patch of a picture and every word of a caption in the shared space."""

from __future__ import annotations

from typing import Any

import torch
from open_clip.hf_model import HFTextEncoder
from open_clip.timm_model import TimmModel
from open_clip.transformer import TextTransformer, VisionTransformer
from torch import Tensor

from densecap_search.errors import ModelError
from densecap_search.model.heads import head_slot


def forward_with_tokens(tower: Any, batch: Tensor) -> tuple[Tensor, Tensor]:
    """One pass of a tower → (embedding [B, D], its tokens [B, T, D]), both through the head, neither scaled."""
    slot = head_slot(tower)
    if slot is None:
        raise ModelError(f"the tower {type(tower).__name__} has no head that its tokens could go through; "
                         "train without late_interaction")
    if isinstance(tower, TimmModel):
        features = tower.trunk.forward_features(batch)
        embedding = tower.head(tower.trunk.forward_head(features))
        if features.ndim == 4:
            features = features.flatten(2).transpose(1, 2)
        else:
            features = features[:, int(getattr(tower.trunk, "num_prefix_tokens", 0)):]
        return embedding, slot.apply(features)
    if not isinstance(tower, (VisionTransformer, TextTransformer, HFTextEncoder)):
        raise ModelError(f"the tower {type(tower).__name__} gives no tokens; train without late_interaction")
    before, tower.output_tokens = tower.output_tokens, True
    try:
        embedding, features = tower(batch)
    finally:
        tower.output_tokens = before
    return embedding, slot.apply(features)


def forward_with_patches(tower: Any, pixels: Tensor) -> Tensor:
    """Pixels [B, 3, H, W] → the parts of each picture in their places [B, rows, columns, D], not scaled.

    Errors: ModelError where the tower tells no parts of a picture apart.
    """
    _, tokens = forward_with_tokens(tower, pixels)
    rows = round((tokens.shape[1] * pixels.shape[2] / pixels.shape[3]) ** 0.5)
    if not rows or tokens.shape[1] % rows:
        raise ModelError(f"the parts that the tower {type(tower).__name__} gives do not lie in rows")
    return tokens.reshape(len(tokens), rows, -1, tokens.shape[2])


def word_mask(text: Any, ids: Tensor) -> Tensor:
    """Which positions of token numbers [B, L] are of the caption and not padding, bool [B, L]."""
    if isinstance(text, HFTextEncoder):
        mask: Tensor = ids != text.config.pad_token_id
        return mask
    return torch.arange(ids.shape[1], device=ids.device)[None, :] <= ids.argmax(dim=1, keepdim=True)  # the end token
