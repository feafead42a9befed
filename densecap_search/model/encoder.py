"""DualEncoder: pictures and captions in, unit vectors of one shared space out."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import open_clip
import torch
from open_clip.tokenizer import HFTokenizer, SimpleTokenizer
from open_clip.transform import PreprocessCfg, image_transform_v2
from open_clip.transformer import TextTransformer
from PIL import Image
from torch import Tensor, nn

from densecap_search.collection.images import DECODER_VERSION, MAX_PIXELS
from densecap_search.errors import ModelError
from densecap_search.files import HASH_BYTES, hash_text
from densecap_search.model import window
from densecap_search.model.batchnorm import folded
from densecap_search.model.device import AUTOCAST_DTYPES, HALVED
from densecap_search.model.folding import folded_state
from densecap_search.model.heads import HeadSlot, head_slot, headless
from densecap_search.model.packing import packed
from densecap_search.model.parts import ends_at_the_end_token, in_parts
from densecap_search.model.segments import Array, Segments, in_segments
from densecap_search.model.text_encoder import Tower
from densecap_search.model.tokens import forward_with_patches, forward_with_tokens, word_mask

SECTIONS: Mapping[Tower, str] = {"image": "vision_cfg", "text": "text_cfg"}  # of open_clip's model configuration
# where the parts of a tower were loaded from, which says nothing that its weights do not
SOURCES = frozenset({"hf_model_name", "hf_tokenizer_name", "hf_model_pretrained", "timm_model_pretrained"})
HEAD_SETTINGS = frozenset({"timm_proj", "timm_proj_bias", "timm_drop", "hf_proj_type", "proj_type", "proj_bias"})


@dataclass(frozen=True)
class EncoderSpec:
    """All that, beside the weights, makes an encoder: enough to build it again.

    source: where it came from, in words (``starter``, ``ViT-B-16 (openai)``); not part of the fingerprint.
    model_cfg: open_clip's model configuration; names of Hugging Face folders in it are replaced at load time.
    starter_heads: tower → arguments of :class:`SkipHead`, where such heads replace open_clip's own.
    long_text: what becomes of captions beyond the window, of LONG_TEXT; not part of the fingerprint, for pictures'
    vectors and those of segments are the same either way.
    """

    source: str
    model_cfg: dict[str, Any]
    preprocess: dict[str, Any]
    context_length: int
    starter_heads: dict[str, Any] | None = None
    long_text: str = "cut"

    def identity(self) -> str:
        """What of it decides the vectors, as text."""
        model_cfg = self.model_cfg | {
            section: _without(self.model_cfg[section], SOURCES) for section in SECTIONS.values()
            if section in self.model_cfg}
        parts = [model_cfg, self.preprocess, self.context_length, self.starter_heads, DECODER_VERSION]
        return json.dumps(parts, sort_keys=True, default=list)

    def tower_identity(self, tower: Tower) -> str:
        """What of it decides the outputs of a tower without its head, as text: nothing of the other tower or a head."""
        tower_cfg = _without(self.model_cfg.get(SECTIONS[tower], {}), SOURCES | HEAD_SETTINGS)
        given = [self.preprocess, DECODER_VERSION] if tower == "image" else [self.context_length]
        parts = [tower_cfg, bool(self.model_cfg.get("quick_gelu")), *given]
        return json.dumps(parts, sort_keys=True, default=list)


@dataclass(frozen=True)
class Tokens:
    """Token numbers of captions, int64 [N, L], and the length that each would have without a window."""

    ids: Tensor
    lengths: tuple[int, ...]


class DualEncoder:
    """An open_clip dual encoder with its preprocessing, tokenizer and window.

    Every vector of the project comes from here, so training, indexing and search cannot disagree.
    """

    def __init__(
        self, model: Any, spec: EncoderSpec, tokenizer: Any, *, device: torch.device | str = "cpu",
        precision: str = "fp32", max_pixels: int = MAX_PIXELS,
    ) -> None:
        if not isinstance(model, open_clip.CustomTextCLIP):
            raise ModelError(f"{spec.source} is a {type(model).__name__}; only dual encoders are supported")
        self.device = torch.device(device)
        self.model = model.to(self.device).eval()
        self.spec = spec
        self.tokenizer = tokenizer
        self.precision = precision
        self.halved = False  # whether pictures go through the tower in HALVED, which a trial may find quicker
        self.max_pixels = max_pixels  # larger pictures are not opened for it; says nothing about the vectors
        self._hashes: dict[tuple[Any, ...], str] = {}
        self._lengths: dict[str, int] = {}  # caption → tokens, which are asked for again and again
        self._letters = 0  # of these captions together
        *self._resize, _, normalise = image_transform_v2(PreprocessCfg(**spec.preprocess), is_train=False).transforms
        self._mean = torch.tensor(normalise.mean, device=self.device)[:, None, None]
        self._std = torch.tensor(normalise.std, device=self.device)[:, None, None]
        self._channels_last = any(isinstance(module, nn.BatchNorm2d) for module in self.model.visual.modules())
        if self._channels_last:  # convolutions on CPUs are half as slow again without it
            self.model.visual.to(memory_format=torch.channels_last)

    @property
    def name(self) -> str:
        """Where the encoder came from, in words."""
        return self.spec.source

    @property
    def context_length(self) -> int:
        """Tokens that the text tower reads."""
        return self.spec.context_length

    @cached_property
    def dim(self) -> int:
        """Width of the shared space."""
        return int(self.spec.model_cfg["embed_dim"])

    @property
    def long_text(self) -> str:
        """What becomes of captions beyond the window, of LONG_TEXT."""
        return self.spec.long_text

    @property
    def image_size(self) -> int:
        """The longer side, in pixels, of what the image tower sees."""
        size = self.spec.preprocess["size"]
        return int(size if isinstance(size, int) else max(size))

    def preprocess(self, image: Image.Image) -> Tensor:
        """An upright RGB picture → uint8 [3, H, W]; what follows (scaling, mean, deviation) is done on the device.

        A quarter of the memory of float32, which is what a large batch mostly consists of.
        """
        image = within_ratio(image, self.resize_mode, self.image_size)
        for step in self._resize:
            image = step(image)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()

    def normalise(self, pixels: Tensor) -> Tensor:
        """uint8 pixels [B, 3, H, W] → float32 as the image tower takes them; anything else as it is."""
        if pixels.dtype != torch.uint8:
            return pixels
        return (pixels.to(self.device).float().div_(255) - self._mean).div_(self._std)

    def room_for(self, count: int) -> Tensor:
        """Room for a batch of pictures, uint8 [count, 3, H, W]."""
        size = self.spec.preprocess["size"]
        height, width = (size, size) if isinstance(size, int) else size
        return torch.empty(count, 3, height, width, dtype=torch.uint8)

    def segments(self, captions: Sequence[str]) -> Segments:
        """The parts in which captions are read: each whole or cut, or where long_text says so split to fit."""
        lengths = [length for at in range(0, len(captions), 1024) for length in self.lengths(captions[at:at + 1024])]
        return in_segments(captions, lengths, self.context_length, self.lengths, self.long_text)

    def lengths(self, captions: Sequence[str]) -> tuple[int, ...]:
        """The tokens that each caption would have without a window."""
        known = self._lengths  # replaced, never emptied: other threads may be reading it
        lengths = {caption: known[caption] for caption in captions if caption in known}
        missing = [caption for caption in dict.fromkeys(captions) if caption not in lengths]
        lengths.update(zip(missing, self._count_tokens(missing), strict=True))
        letters = sum(map(len, missing))
        if len(known) + len(missing) > KNOWN_LENGTHS or self._letters + letters > KNOWN_LETTERS:
            self._lengths, self._letters = {}, 0
        if len(missing) <= KNOWN_LENGTHS and letters <= KNOWN_LETTERS:
            self._lengths.update((caption, lengths[caption]) for caption in missing)
            self._letters += letters
        return tuple(lengths[caption] for caption in captions)

    def _count_tokens(self, captions: Sequence[str]) -> list[int]:
        if self._plain_bpe:
            return [len(self.tokenizer.encode(caption)) + 2 for caption in captions]
        if not isinstance(self.tokenizer, HFTokenizer):
            ids = self.tokenizer(list(captions), context_length=self.context_length)
            return [int((row != 0).sum()) for row in ids]
        cleaned = [self.tokenizer.clean_fn(caption) for caption in captions]
        return [len(row) for row in self.tokenizer.tokenizer(cleaned, verbose=False).input_ids] if cleaned else []

    @property
    def _plain_bpe(self) -> bool:
        return isinstance(self.tokenizer, SimpleTokenizer) and self.tokenizer.reduction_fn is None

    def tokenize(self, captions: Sequence[str]) -> Tokens:
        """Captions → token numbers, cut to the window, padded to the longest of them."""
        if self._plain_bpe:
            return self._tokenize_bpe(captions)
        ids = self.tokenizer(list(captions), context_length=self.context_length)
        lengths = self.lengths(captions)
        if not isinstance(self.tokenizer, HFTokenizer):
            return Tokens(ids, lengths)
        if isinstance(self.model.text, TextTransformer):
            return Tokens(ids, lengths)  # towers that pool the last position need the padding
        return Tokens(ids[:, : max(lengths, default=1)], lengths)

    def _tokenize_bpe(self, captions: Sequence[str]) -> Tokens:
        start, end = self.tokenizer.sot_token_id, self.tokenizer.eot_token_id
        rows = [[start, *self.tokenizer.encode(caption), end] for caption in captions]
        lengths = tuple(len(row) for row in rows)
        trim = ends_at_the_end_token(self.model.text)
        width = min(self.context_length, max(lengths, default=1)) if trim else self.context_length
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        for row, tokens in enumerate(rows):
            kept = tokens if len(tokens) <= width else [*tokens[: width - 1], end]
            ids[row, : len(kept)] = torch.tensor(kept)
        return Tokens(ids, lengths)

    def head_slot(self, tower: Tower) -> HeadSlot | None:
        """The tower's head, or None."""
        return head_slot(self.model.visual if tower == "image" else self.model.text)

    def encode_image(self, pixels: Tensor) -> Tensor:
        """Pixels [B, 3, H, W], uint8 from :meth:`preprocess` or float32 normalised → float32 unit rows [B, D]."""
        with self._autocast():
            embeddings = self.model.visual(self._to_device(pixels))
        return nn.functional.normalize(embeddings.float(), dim=-1)

    def encode_text(self, ids: Tensor) -> Tensor:
        """Token numbers [B, L] → float32 unit rows [B, D]."""
        return nn.functional.normalize(self._read_text(ids).float(), dim=-1)

    def _read_text(self, ids: Tensor) -> Tensor:
        """Token numbers [B, L] through the text tower as it is, in parts of like length."""
        def encode(part: Tensor) -> Tensor:
            with self._autocast(), window.narrowed(self.model.text, part.shape[1]):
                outputs: Tensor = self.model.text(part.to(self.device))
                return outputs

        return in_parts(encode, self.model.text, ids, self.device)

    def encode_with_tokens(self, pixels: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Image and text embeddings [B, D], patches [B, P, D] and words [B, L, D]; all float32 unit rows."""
        with self._autocast():
            image, patches = forward_with_tokens(self.model.visual, self._to_device(pixels))
        with self._autocast(), window.narrowed(self.model.text, ids.shape[1]):
            text, words = forward_with_tokens(self.model.text, ids.to(self.device))
        made = [nn.functional.normalize(values.float(), dim=-1) for values in (image, text, patches, words)]
        return made[0], made[1], made[2], made[3]

    @torch.no_grad()
    def patches(self, pixels: Tensor) -> Tensor:
        """Pixels [B, 3, H, W] → the parts of each picture, float32 unit vectors [B, rows, columns, D].

        Errors: ModelError where the image tower tells none apart.
        """
        with self._autocast():
            of_patches = forward_with_patches(self.model.visual, self._to_device(pixels))
        return nn.functional.normalize(of_patches.float(), dim=-1)

    @property
    def resize_mode(self) -> str:
        """How pictures are brought to the image tower's size, in open_clip's words, of RESIZE_MODES."""
        return str(self.spec.preprocess.get("resize_mode", "shortest"))

    def word_mask(self, ids: Tensor) -> Tensor:
        """Which token numbers [B, L] are of the caption and not padding."""
        return word_mask(self.model.text, ids)

    def logit_scale(self) -> Tensor:
        """s = exp of the model's parameter, []."""
        scale: Tensor = self.model.logit_scale.exp().reshape(())
        return scale

    @torch.no_grad()
    def tower_outputs(self, tower: Tower, batch: Tensor) -> Tensor:
        """What a tower hands to its head, float32 [B, W]; where it has no head, its embedding before scaling."""
        module = self.model.visual if tower == "image" else self.model.text
        slot = head_slot(module)
        with slot.removed() if slot else nullcontext():
            if tower == "text":
                return self._read_text(batch).float()
            with self._autocast():
                outputs: Tensor = module(self._to_device(batch))
        return outputs.float()

    @torch.no_grad()
    def image_pass(self) -> Callable[[Tensor], Tensor]:
        """:meth:`tower_outputs` of pictures for a pass over many of them, with the weights as they are now.

        Several threads may call it at once. BatchNorm is folded into the convolutions, and on CPUs these are laid out
        for the machine.
        """
        tower = headless(self.model.visual)
        example = self._to_device(self.room_for(1).fill_(127))
        tower = folded(tower, example) or tower
        halved = self.image_precision == HALVED
        if halved:
            tower = copy.deepcopy(tower).bfloat16()
        elif self._channels_last and self.device.type == "cpu" and self.precision == "fp32":
            tower = packed(tower, example) or tower

        @torch.no_grad()
        def outputs(pixels: Tensor) -> Tensor:
            batch = self._to_device(pixels)
            with self._autocast():
                found: Tensor = tower(batch.bfloat16() if halved else batch)
            return found.float()

        return outputs

    @property
    def image_precision(self) -> str:
        """Of passes over pictures."""
        return HALVED if self.halved and self.precision == "fp32" else self.precision

    @property
    def image_batch(self) -> int:
        """How many pictures at a time the image tower takes quickest, where nothing was measured.

        On a CPU the activations of a convolutional network should stay near its caches; a ViT's are small, and its
        matrices are worth reading for more pictures.
        """
        if self.device.type != "cpu":
            return 128
        return 4 if self._channels_last else 8

    def from_tower(self, tower: Tower, outputs: Tensor) -> Tensor:
        """Tower outputs [B, W] through the head → float32 unit rows [B, D]."""
        slot = self.head_slot(tower)
        embeddings = slot.apply(outputs) if slot else outputs
        return nn.functional.normalize(embeddings.float(), dim=-1)

    def text_outputs(self, captions: Sequence[str]) -> Array:
        """What the text tower hands to its head, float32 [N, W]."""
        rows: Array = self.tower_outputs("text", self.tokenize(captions).ids).cpu().numpy()
        return rows

    @torch.no_grad()
    def through_head(self, tower: Tower, rows: Array) -> Array:
        """Tower outputs [N, W] through the head → float32 unit rows [N, D]."""
        vectors: Array = self.from_tower(tower, torch.from_numpy(rows).to(self.device)).cpu().numpy()
        return vectors

    def fingerprint(self) -> str:
        """A hash of all weights, the model configuration, the window and the preprocessing."""
        identity = self.spec.identity()
        stamp = (identity, *_written(self.model.state_dict().items()))
        if stamp not in self._hashes:
            self._hashes[stamp] = _hash(identity, folded_state(self.model).items())
        return self._hashes[stamp]

    def tower_fingerprint(self, tower: Tower) -> str:
        """A hash of what decides :meth:`tower_outputs`, and of nothing else: what is cached under it stays of use."""
        module = self.model.visual if tower == "image" else self.model.text
        slot = head_slot(module)

        def without_head(state: dict[str, Tensor]) -> list[tuple[str, Tensor]]:
            return [(name, value) for name, value in state.items() if not (slot and _belongs(name, slot.attribute))]

        precision = self.image_precision if tower == "image" else self.precision
        stamp = (tower, precision, *_written(without_head(module.state_dict())))
        if stamp not in self._hashes:
            content = _hash(self.spec.tower_identity(tower), without_head(folded_state(module)))
            self._hashes[stamp] = hash_text(tower, precision, content)
        return self._hashes[stamp]

    def _to_device(self, batch: Tensor) -> Tensor:
        batch = self.normalise(batch.to(self.device))
        if self._channels_last and batch.ndim == 4:
            return batch.contiguous(memory_format=torch.channels_last)
        return batch

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.precision not in AUTOCAST_DTYPES:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=AUTOCAST_DTYPES[self.precision])


def _written(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[int, int]]:
    """What changes when a tensor is written to: hashing a large model takes a second, and is done again only then."""
    return ((value.data_ptr(), value._version) for _, value in tensors)


def _hash(identity: str, tensors: Iterable[tuple[str, Tensor]]) -> str:
    digest = hashlib.blake2b(identity.encode(), digest_size=HASH_BYTES)
    for name, value in sorted(tensors, key=lambda item: item[0]):
        data = value.detach().cpu().contiguous()  # memory format must not count
        digest.update(f"{name} {data.dtype} {tuple(data.shape)}".encode())
        digest.update(data.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _without(settings: Mapping[str, Any], keys: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in keys}


def _belongs(name: str, attribute: str) -> bool:
    return name == attribute or name.startswith(f"{attribute}.")


# how a picture is brought to the tower's size → open_clip's word for it
RESIZE_MODES: Mapping[str, str] = {"crop": "shortest", "pad": "longest", "squash": "squash"}
KNOWN_LENGTHS = 1 << 18  # captions whose number of tokens is remembered
KNOWN_LETTERS = 1 << 26  # that these have together at most
MAX_RATIO = 64  # of a picture's sides, before a crop to the middle


def with_resize(preprocess: Mapping[str, Any], resize: str) -> dict[str, Any]:
    """Preprocessing settings with another way to bring pictures to the tower's size, a key of RESIZE_MODES.

    The border of pad has the mean colour, which normalisation makes (nearly) 0.
    """
    changed = dict(preprocess)
    if RESIZE_MODES[resize] == preprocess.get("resize_mode", "shortest"):
        return changed  # and so is the fingerprint
    changed["resize_mode"] = RESIZE_MODES[resize]
    if resize == "pad":
        changed["fill_color"] = [round(255 * value) for value in PreprocessCfg(**preprocess).mean]
    return changed


def within_ratio(image: Image.Image, resize_mode: str, size: int) -> Image.Image:
    """A strip so thin that resizing would make it vanish, or fill the memory, made thicker or shorter; others as is."""
    width, height = image.size
    short, long = min(width, height), max(width, height)
    if resize_mode == "longest" and long > size * short:
        least = -(-long // size)
        return image.resize((max(width, least), max(height, least)))
    if resize_mode == "shortest" and long > MAX_RATIO * short:
        across, down = min(width, MAX_RATIO * short), min(height, MAX_RATIO * short)
        left, top = (width - across) // 2, (height - down) // 2
        return image.crop((left, top, left + across, top + down))
    return image


def default_preprocess(**changes: Any) -> dict[str, Any]:
    """open_clip's preprocessing settings as a mapping, with changes."""
    return {**asdict(PreprocessCfg()), **changes}
