"""QueryEncoder: the text side of an encoder in numpy, so that a search need not load torch.

It is made and checked by ``query_files.py``. Nothing of it is a program: weights, numbers and a tokenizer's table.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from densecap_search.model.segments import Array, Segments, in_segments
from densecap_search.model.text_encoder import Tower

Weights = Mapping[str, Array]


@dataclass(frozen=True)
class TextShape:
    """What, beside its weights, makes a text tower.

    before: layers normalise what they read (CLIP), and not what they return (BERT). causal: a token sees only those
    before it. activation: of ACTIVATIONS. pool: of POOLS. head: of HEADS. epsilon: of the normalisations.
    """

    layers: int
    heads: int
    before: bool
    causal: bool
    activation: str
    pool: str
    head: str
    epsilon: float


class QueryEncoder:
    """Captions → vectors, as the :class:`DualEncoder` that it was made of; it is a :class:`TextEncoder`.

    Weights: ``tokens`` [V, W], ``places`` [L, W]; of layer i ``i.qkv`` [W, 3W], ``i.out`` [W, W], ``i.up`` [W, M],
    ``i.down`` [M, W], each with its ``…_bias``, and the normalisations ``i.first`` and ``i.second`` [2, W]: scale and
    shift; ``norm`` [2, W], after all layers of CLIP, or before those of BERT; and what HEADS says.
    """

    def __init__(self, name: str, shape: TextShape, weights: Weights, tokenizer: QueryTokenizer, *, context_length: int,
                 long_text: str, fingerprint: str) -> None:
        self.name, self.shape, self.weights, self.tokenizer = name, shape, weights, tokenizer
        self.context_length, self.long_text, self._fingerprint = context_length, long_text, fingerprint

    @cached_property
    def dim(self) -> int:
        """Width of the shared space."""
        return int(self.through_head("text", np.zeros((1, self.weights["places"].shape[1]), np.float32)).shape[1])

    def fingerprint(self) -> str:
        """Of the encoder that this one was made of."""
        return self._fingerprint

    def tower_fingerprint(self, tower: Tower) -> str:
        """Not that of the encoder's tower: vectors agree but for rounding, so they share no cache."""
        return f"{self._fingerprint}-query-{tower}"

    def segments(self, captions: Sequence[str]) -> Segments:
        """The parts in which captions are read: each whole or cut, or where long_text says so split to fit."""
        return in_segments(captions, self.lengths(captions), self.context_length, self.lengths, self.long_text)

    def lengths(self, captions: Sequence[str]) -> tuple[int, ...]:
        """The tokens that each caption would have without a window."""
        return tuple(len(self.tokenizer.ids(caption)) for caption in captions)

    def text_outputs(self, captions: Sequence[str]) -> Array:
        """What the text tower hands to its head, float32 [N, W]."""
        rows = [self._read(self.tokenizer.ids(caption, self.context_length)) for caption in captions]
        return np.stack(rows) if rows else np.empty((0, self.weights["places"].shape[1]), np.float32)

    def through_head(self, tower: Tower, rows: Array) -> Array:
        """Tower outputs [N, W] → float32 unit rows [N, D]."""
        if tower != "text":
            raise ValueError("an encoder of queries has no image tower")
        vectors = HEADS[self.shape.head](rows, self.weights)
        unit: Array = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return unit

    def _read(self, ids: Sequence[int]) -> Array:
        """Token numbers of one caption → [W]. Alone, so nothing is padded."""
        shape, weights = self.shape, self.weights
        x = weights["tokens"][np.asarray(ids)] + weights["places"][:len(ids)]
        if not shape.before:
            x = _normalise(x, weights["norm"], shape.epsilon)
        for layer in range(shape.layers):
            own = _Layer(weights, layer, shape)
            if shape.before:
                x = x + own.attention(own.normalised(x, "first"))
                x = x + own.bent(own.normalised(x, "second"))
            else:
                x = own.normalised(x + own.attention(x), "first")
                x = own.normalised(x + own.bent(x), "second")
        if shape.before:
            x = _normalise(x, weights["norm"], shape.epsilon)
        return POOLS[shape.pool](x, ids)


class QueryTokenizer:
    """A ``tokenizers.Tokenizer`` behind open_clip's cleaning, which mends broken Unicode and HTML entities."""

    def __init__(self, table: str, unknown: str | None) -> None:
        from tokenizers import Tokenizer

        self._table, self.unknown = Tokenizer.from_str(table), unknown

    def ids(self, caption: str, window: int | None = None) -> list[int]:
        """Token numbers with the two that stand around every text; cut to a window, of which the last is the end's."""
        numbers: list[int] = self._table.encode(self.cleaned(caption)).ids
        return numbers if window is None or len(numbers) <= window else [*numbers[: window - 1], numbers[-1]]

    def spelled(self, caption: str) -> Any:
        """The caption without what stands around every text: tokens, offsets, and the words that they are of."""
        return self._table.encode(self.cleaned(caption), add_special_tokens=False)

    def cleaned(self, caption: str) -> str:
        """As open_clip cleans a text first; the table does the rest."""
        import ftfy

        return html.unescape(html.unescape(ftfy.fix_text(caption))).strip()


@dataclass(frozen=True)
class _Layer:
    weights: Weights
    number: int
    shape: TextShape

    def normalised(self, x: Array, name: str) -> Array:
        return _normalise(x, self.weights[f"{self.number}.{name}"], self.shape.epsilon)

    def linear(self, x: Array, name: str) -> Array:
        outputs: Array = x @ self.weights[f"{self.number}.{name}"] + self.weights[f"{self.number}.{name}_bias"]
        return outputs

    def attention(self, x: Array) -> Array:
        """[L, W] → [L, W]."""
        length, width = x.shape
        q, k, v = self.linear(x, "qkv").reshape(length, 3, self.shape.heads, -1).transpose(1, 2, 0, 3)
        scores = q @ k.transpose(0, 2, 1) / np.float32((width / self.shape.heads) ** 0.5)
        if self.shape.causal:
            scores[:, np.triu(np.ones((length, length), bool), 1)] = -np.inf
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        return self.linear((scores @ v).transpose(1, 0, 2).reshape(length, width), "out")

    def bent(self, x: Array) -> Array:
        """[L, W] → [L, W] through the wide layer."""
        return self.linear(ACTIVATIONS[self.shape.activation](self.linear(x, "up")), "down")


def _normalise(x: Array, norm: Array, epsilon: float) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    spread = np.sqrt((centred ** 2).mean(axis=-1, keepdims=True) + np.float32(epsilon))
    normal: Array = centred / spread * norm[0] + norm[1]
    return normal


def gelu(x: Array) -> Array:
    """x · Φ(x), with erf to 1.5e-7 by Abramowitz and Stegun 7.1.26."""
    z = np.abs(x) * np.float32(0.5 ** 0.5)
    t = 1 / (1 + np.float32(0.3275911) * z)
    series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    erf = np.copysign(1 - series * np.exp(-z * z), x)
    active: Array = (x * (1 + erf) / 2).astype(np.float32)
    return active


def quick_gelu(x: Array) -> Array:
    """OpenAI's: x · σ(1.702 x)."""
    with np.errstate(over="ignore"):  # of what is nearly 0 then
        active: Array = x / (1 + np.exp(np.float32(-1.702) * x))
    return active


def _skip_head(rows: Array, weights: Weights) -> Array:
    x: Array = ((rows - weights["head.mean"]) / weights["head.std"]).astype(np.float32)
    hidden = gelu(x @ weights["head.hidden"] + weights["head.hidden_bias"])
    vector: Array = hidden @ weights["head.out"] + weights["head.out_bias"] + x @ weights["head.linear"]
    return vector


def _matrix(rows: Array, weights: Weights) -> Array:
    vectors: Array = rows @ weights["head.matrix"]
    return vectors


def _at_the_largest(x: Array, ids: Sequence[int]) -> Array:
    row: Array = x[int(np.argmax(ids))]
    return row


def _mean(x: Array, ids: Sequence[int]) -> Array:
    row: Array = x.mean(axis=0)
    return row


ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {"gelu": gelu, "quick_gelu": quick_gelu}
POOLS: Mapping[str, Callable[[Array, Sequence[int]], Array]] = {"argmax": _at_the_largest, "mean": _mean}
HEADS: Mapping[str, Callable[[Array, Weights], Array]] = {  # tower outputs [N, W] → [N, D]
    "none": lambda rows, weights: rows, "matrix": _matrix, "skip": _skip_head}
