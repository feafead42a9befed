"""A DualEncoder → an encoder of queries in the cache, so that the next search need not load torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from open_clip.hf_model import HFTextEncoder, MeanPooler
from open_clip.tokenizer import HFTokenizer
from open_clip.transformer import QuickGELU, ResidualAttentionBlock, TextTransformer
from torch import Tensor, nn

from densecap_search.errors import DensecapError
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.folding import folded_state
from densecap_search.model.heads import SkipHead, head_slot
from densecap_search.model.parts import ends_at_the_end_token
from densecap_search.model.publishing.tokenizer_file import as_tokenizers
from densecap_search.model.query_encoder import QueryEncoder, QueryTokenizer, TextShape
from densecap_search.model.query_files import load_query_encoder, write_query_encoder
from densecap_search.model.segments import Array

LEAST_COSINE = 0.99999  # between its vectors and the encoder's, or none is kept
CHECKED = ("", "a", "A red boat lies before the lighthouse; its sails are furled.", "café &amp; “naïve” — 12°  3x",
           "two dogs run along a wet beach towards the grey sea while a child in a yellow coat watches them. " * 40)

Made = tuple[TextShape, dict[str, Array]]


def keep_query_encoder(encoder: DualEncoder) -> bool:
    """Make sure that the cache holds an encoder of this one's queries; whether it does.

    Towers of another kind than CLIP's and BERT's have none, nor have those whose vectors would not be the same.
    """
    fingerprint = encoder.fingerprint()
    if load_query_encoder(fingerprint) is not None:
        return True
    try:
        made = _of_clip(encoder) or _of_bert(encoder)
        if made is None:
            return False
        table, _ = as_tokenizers(encoder)
        table.no_padding()
        table.no_truncation()
        tokenizer = QueryTokenizer(table.to_str(), _unknown(encoder))
        reader = QueryEncoder(encoder.name, *made, tokenizer, context_length=encoder.context_length,
                              long_text=encoder.long_text, fingerprint=fingerprint)
        if not agrees(reader, encoder):
            return False
        write_query_encoder(reader, made[1], table.to_str())
    except (DensecapError, ImportError, KeyError, OSError):  # a library, a tensor or room on the disk is missing
        return False
    return True


def agrees(made: QueryEncoder, encoder: DualEncoder) -> bool:
    """Whether both read CHECKED as tokens of the same number, and return the same vectors before and after the head."""
    if made.lengths(CHECKED) != encoder.lengths(CHECKED):
        return False
    rows, wanted = made.text_outputs(CHECKED), encoder.text_outputs(CHECKED)
    vectors, wanted_vectors = made.through_head("text", rows), encoder.through_head("text", wanted)
    return min(_least_cosine(rows, wanted), _least_cosine(vectors, wanted_vectors)) >= LEAST_COSINE


def _least_cosine(a: Array, b: Array) -> float:
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(((a * b).sum(axis=1) / np.maximum(lengths, 1e-12)).min())


def _of_clip(encoder: DualEncoder) -> Made | None:
    """open_clip's own causal text tower, read at its end token."""
    text = encoder.model.text
    if not isinstance(text, TextTransformer) or not ends_at_the_end_token(text) or text.pool_type != "argmax":
        return None
    blocks, head = list(text.transformer.resblocks), _head(encoder)
    if head is None or not all(type(block) is ResidualAttentionBlock for block in blocks):
        return None
    bend = blocks[0].mlp.gelu
    activation = "quick_gelu" if isinstance(bend, QuickGELU) else "gelu" if isinstance(bend, nn.GELU) else None
    if activation is None or not all(isinstance(block.ls_1, nn.Identity) for block in blocks):
        return None
    state = folded_state(text)
    weights = {"tokens": _numbers(state["token_embedding.weight"]), "places": _numbers(state["positional_embedding"]),
               "norm": _norm(state, "ln_final"), **head[1]}
    for number in range(len(blocks)):
        own = f"transformer.resblocks.{number}"
        weights |= {
            f"{number}.qkv": _turned(state[f"{own}.attn.in_proj_weight"]),
            f"{number}.qkv_bias": _numbers(state[f"{own}.attn.in_proj_bias"]),
            **_linear(state, f"{number}.out", f"{own}.attn.out_proj"),
            **_linear(state, f"{number}.up", f"{own}.mlp.c_fc"),
            **_linear(state, f"{number}.down", f"{own}.mlp.c_proj"),
            f"{number}.first": _norm(state, f"{own}.ln_1"), f"{number}.second": _norm(state, f"{own}.ln_2")}
    return TextShape(len(blocks), blocks[0].attn.num_heads, True, True, activation, "argmax", head[0],
                     float(text.ln_final.eps)), weights


def _of_bert(encoder: DualEncoder) -> Made | None:
    """A BERT of Hugging Face, of which the mean over its tokens is taken."""
    text = encoder.model.text
    if not isinstance(text, HFTextEncoder) or not isinstance(text.pooler, MeanPooler):
        return None
    config, head = text.config, _head(encoder)
    if config.model_type != "bert" or config.hidden_act != "gelu" or head is None:
        return None
    state = folded_state(text.transformer)
    words = "embeddings.{}_embeddings.weight"
    weights = {"tokens": _numbers(state[words.format("word")]), "norm": _norm(state, "embeddings.LayerNorm"),
               "places": _numbers(state[words.format("position")] + state[words.format("token_type")][0]), **head[1]}
    for number in range(config.num_hidden_layers):
        own = f"encoder.layer.{number}"
        parts = [f"{own}.attention.self.{name}" for name in ("query", "key", "value")]
        weights |= {
            f"{number}.qkv": _turned(torch.cat([state[f"{part}.weight"] for part in parts])),
            f"{number}.qkv_bias": _numbers(torch.cat([state[f"{part}.bias"] for part in parts])),
            **_linear(state, f"{number}.out", f"{own}.attention.output.dense"),
            **_linear(state, f"{number}.up", f"{own}.intermediate.dense"),
            **_linear(state, f"{number}.down", f"{own}.output.dense"),
            f"{number}.first": _norm(state, f"{own}.attention.output.LayerNorm"),
            f"{number}.second": _norm(state, f"{own}.output.LayerNorm")}
    return TextShape(config.num_hidden_layers, config.num_attention_heads, False, False, "gelu", "mean", head[0],
                     float(config.layer_norm_eps)), weights


def _head(encoder: DualEncoder) -> tuple[str, dict[str, Array]] | None:
    """Its name in HEADS, and its weights; None where it is of another kind."""
    slot = head_slot(encoder.model.text)
    head: Any = slot.head if slot else None
    if head is None:
        return "none", {}
    if isinstance(head, nn.Parameter):
        return "matrix", {"head.matrix": _numbers(head)}
    if isinstance(head, nn.Linear) and head.bias is None:
        return "matrix", {"head.matrix": _turned(head.weight)}
    if isinstance(head, SkipHead):
        state = head.state_dict()
        return "skip", {"head.mean": _numbers(head.standardise.mean), "head.std": _numbers(head.standardise.std),
                        "head.linear": _turned(head.linear.weight), **_linear(state, "head.hidden", "hidden"),
                        **_linear(state, "head.out", "out")}
    return None


def _linear(state: dict[str, Tensor], name: str, own: str) -> dict[str, Array]:
    return {name: _turned(state[f"{own}.weight"]), f"{name}_bias": _numbers(state[f"{own}.bias"])}


def _norm(state: dict[str, Tensor], name: str) -> Array:
    return _numbers(torch.stack([state[f"{name}.weight"], state[f"{name}.bias"]]))


def _turned(weight: Tensor) -> Array:
    return _numbers(weight.T)


def _numbers(values: Tensor) -> Array:
    array: Array = values.detach().float().cpu().contiguous().numpy()
    return array


def _unknown(encoder: DualEncoder) -> str | None:
    tokenizer = encoder.tokenizer
    return tokenizer.tokenizer.unk_token if isinstance(tokenizer, HFTokenizer) else None
