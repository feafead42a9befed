"""A model with adapters, or with q, k and v taken apart, as it was: names and shapes of the model before.

Knows modules and tensors alone, so that the encoder may ask it without knowing about adapters.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

State = dict[str, Tensor]


class SplitAttention(nn.Module):
    """nn.MultiheadAttention (batch first) with q, k and v as linear layers of their own, which can be adapted."""

    def __init__(self, fused: nn.MultiheadAttention) -> None:
        super().__init__()
        self.num_heads, self.dropout = fused.num_heads, fused.dropout
        biases = fused.in_proj_bias.chunk(3) if fused.in_proj_bias is not None else (None, None, None)
        weights = fused.in_proj_weight.chunk(3)
        self.q_proj, self.k_proj, self.v_proj = (_linear(w, b) for w, b in zip(weights, biases, strict=True))
        self.out_proj = fused.out_proj

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *, attn_mask: Tensor | None = None,
                need_weights: bool = False) -> tuple[Tensor, None]:
        """query [B, L, W], key and value [B, S, W] → [B, L, W] and no weights.

        attn_mask: [L, S] or [B · heads, L, S]; added to the scores, or boolean, where True hides a position.
        """
        if need_weights:
            raise NotImplementedError("SplitAttention does not return weights")
        q, k, v = (self._by_head(layer(x)) for layer, x in
                   ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value)))
        if attn_mask is not None:
            attn_mask = ~attn_mask if attn_mask.dtype == torch.bool else attn_mask.to(q.dtype)
            if attn_mask.ndim == 3:
                attn_mask = attn_mask.reshape(-1, self.num_heads, *attn_mask.shape[1:])
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask, self.dropout if self.training else 0.0)
        return self.out_proj(mixed.transpose(1, 2).flatten(2)), None

    def _by_head(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], self.num_heads, -1).transpose(1, 2)


class SplitPool(nn.Module):
    """open_clip's AttentionPool2d, of ResNets, whose q, k, v and output are called as layers, so that they are adapted.

    Parameters have the names of the pool's own.
    """

    def __init__(self, pool: Any) -> None:
        super().__init__()
        self.num_heads, self.positional_embedding = pool.num_heads, pool.positional_embedding
        self.q_proj, self.k_proj, self.v_proj, self.c_proj = pool.q_proj, pool.k_proj, pool.v_proj, pool.c_proj

    def forward(self, x: Tensor) -> Tensor:
        """Feature map [B, W, H, W'] → [B, D]: the mean asks all places."""
        x = x.flatten(2).transpose(1, 2)
        x = torch.cat([x.mean(dim=1, keepdim=True), x], dim=1)
        x = x + self.positional_embedding.to(x.dtype)
        q, k, v = (layer(part).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for layer, part in
                   ((self.q_proj, x[:, :1]), (self.k_proj, x), (self.v_proj, x)))
        pooled: Tensor = self.c_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)[:, 0])
        return pooled


@torch.no_grad()
def folded_state(module: nn.Module, changed: Mapping[str, Tensor] | None = None) -> State:
    """The state dict of a model, or of a part of one, with adapters folded in and q, k, v in one matrix again.

    changed: values of parameters, by name, that stand in for the model's own.
    """
    state = {**module.state_dict(), **(changed or {})}
    for name, layer in adapted_layers(module):
        merged = copy.deepcopy(layer)
        merged.load_state_dict(_pop_below(state, name))
        merged.merge()
        state.update({f"{name}.{key}": value for key, value in merged.get_base_layer().state_dict().items()})
    for name, part in module.named_modules():
        if isinstance(part, SplitAttention):
            own = _pop_below(state, name)
            for kind in ("weight", "bias"):
                if f"q_proj.{kind}" in own:
                    state[f"{name}.in_proj_{kind}"] = torch.cat([own[f"{letter}_proj.{kind}"] for letter in "qkv"])
                if f"out_proj.{kind}" in own:
                    state[f"{name}.out_proj.{kind}"] = own[f"out_proj.{kind}"]
    return state


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone())
    return layer


def adapted_layers(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Layers that peft has wrapped; told by their tensors, so that nothing is imported where there are none."""
    for name, layer in module.named_modules():
        if hasattr(layer, "lora_A") and hasattr(layer, "get_base_layer"):
            yield name, layer


def _pop_below(state: State, name: str) -> State:
    """Take the tensors of a module out of a state dict; without the module's name."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): state.pop(key) for key in [key for key in state if key.startswith(prefix)]}
