"""sentence-transformers (5.4 or newer): a folder for ``SentenceTransformer(DIR)``, which takes texts and pictures.

CLIP's towers go through Hugging Face's CLIPModel. Towers of timm and transformers with heads between them, such as the
starter's, become two routes, each a tower and linear layers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from open_clip.hf_model import HFTextEncoder, MeanPooler
from open_clip.timm_model import TimmModel
from torch import Tensor, nn

from densecap_search.errors import MissingPackage, ModelError
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.heads import SkipHead
from densecap_search.model.publishing import huggingface
from densecap_search.model.publishing.agreement import Array, Loaded
from densecap_search.model.publishing.onnx_towers import image_sides


def write(encoder: DualEncoder, folder: Path, dtype: str) -> None:
    """The modules are built and saved by sentence-transformers itself."""
    library = _library()
    from sentence_transformers.sentence_transformer.modules import Normalize, Transformer

    with tempfile.TemporaryDirectory() as scratch:
        if isinstance(encoder.model.text, HFTextEncoder):
            first = _router(encoder, Path(scratch))
        else:
            huggingface.write(encoder, Path(scratch), dtype)
            first = Transformer(scratch)
        made = library.SentenceTransformer(modules=[first, Normalize()], device="cpu")
        made.save(str(folder), create_model_card=False)


def load(folder: Path) -> Loaded:
    """As a user of sentence-transformers does it."""
    library = _library()
    model = library.SentenceTransformer(str(folder), device="cpu")

    def encode(items: Sequence[Any]) -> Array:
        rows: Array = np.asarray(model.encode(list(items), show_progress_bar=False), dtype=np.float32)
        return rows

    return Loaded(f"sentence-transformers {library.__version__}", encode, encode)


def linear_layers(head: nn.Module) -> list[tuple[Tensor, Tensor | None, bool]]:
    """A head as linear layers (weight, bias, whether GELU follows), exactly.

    Of a :class:`SkipHead` the linear path goes through the hidden layer too: GELU(z) − GELU(−z) = z.
    """
    if isinstance(head, SkipHead):
        mean, std = head.standardise.mean, head.standardise.std
        hidden, across = head.hidden.weight / std, head.linear.weight / std
        one = torch.eye(len(across))
        inner = torch.cat([hidden, across, -across])
        bias = torch.cat([head.hidden.bias, torch.zeros(2 * len(across))]) - inner @ mean
        return [(inner, bias, True), (torch.cat([head.out.weight, one, -one], dim=1), head.out.bias, False)]
    layers: list[tuple[Tensor, Tensor | None, bool]] = []
    for part in ([head] if isinstance(head, nn.Linear) else head.modules()):
        if isinstance(part, nn.Linear):
            layers.append((part.weight, part.bias, False))
        elif isinstance(part, nn.GELU) and layers:
            layers[-1] = (*layers[-1][:2], True)
    return layers


def _router(encoder: DualEncoder, scratch: Path) -> Any:
    from sentence_transformers.sentence_transformer.modules import Pooling, Router, Transformer

    image, text = encoder.model.visual, encoder.model.text
    if not isinstance(image, TimmModel) or not isinstance(text.pooler, MeanPooler):
        raise ModelError(f"the towers of {encoder.name} ({type(image).__name__}, {type(text.pooler).__name__}) have no "
                         "counterpart in sentence-transformers; publish it with --as onnx or immich")
    text.transformer.save_pretrained(scratch / "text")
    encoder.tokenizer.tokenizer.save_pretrained(scratch / "text")
    words = Transformer(str(scratch / "text"), max_seq_length=encoder.context_length)
    _save_timm(encoder, scratch / "image")
    pixels = Transformer(
        str(scratch / "image"), module_output_name="sentence_embedding",
        modality_config={"image": {"method": "forward", "method_output_name": "pooler_output"}})
    routes = {"text": [words, Pooling(text.config.hidden_size, pooling_mode="mean"), *_dense(text.proj)],
              "image": [pixels, *_dense(image.head)]}
    return Router(routes, route_mappings={(None, kind): kind for kind in routes}, default_route="text")


def _dense(head: nn.Module) -> list[Any]:
    from sentence_transformers.sentence_transformer.modules import Dense

    made = []
    for weight, bias, bent in linear_layers(head):
        layer = Dense(weight.shape[1], weight.shape[0], bias=bias is not None,
                      activation_function=nn.GELU() if bent else nn.Identity())
        with torch.no_grad():
            layer.linear.weight.copy_(weight)
            if bias is not None:
                layer.linear.bias.copy_(bias)
        made.append(layer)
    return made


def _save_timm(encoder: DualEncoder, folder: Path) -> None:
    """The trunk as transformers' TimmWrapperModel, with the preprocessing in timm's words."""
    from transformers import TimmWrapperConfig, TimmWrapperModel

    settings, sides = encoder.spec.preprocess, image_sides(encoder)
    mode = {"shortest": "center", "squash": "squash"}.get(settings.get("resize_mode", "shortest"))
    if mode is None:
        raise ModelError("sentence-transformers crops pictures to a square or squashes them, and this model wants a "
                         "border; train with --resize crop or squash, or publish with --as onnx")
    trunk = encoder.model.visual.trunk
    config = TimmWrapperConfig(
        architecture=encoder.spec.model_cfg["vision_cfg"]["timm_model_name"], num_classes=0,
        pretrained_cfg={**trunk.pretrained_cfg, "input_size": [3, *sides], "crop_pct": 1.0, "crop_mode": mode,
                        "interpolation": settings["interpolation"], "mean": list(settings["mean"]),
                        "std": list(settings["std"]), "num_classes": 0})
    model = TimmWrapperModel(config)
    model.timm_model.load_state_dict(trunk.state_dict())
    model.save_pretrained(folder)


def _library() -> Any:
    try:
        import sentence_transformers
        from sentence_transformers.sentence_transformer import modules
    except ImportError as error:
        raise MissingPackage("--as sentence-transformers needs the package sentence-transformers, 5.4 or newer; "
                             "pip install 'densecap-search[publish]'") from error
    del modules
    return sentence_transformers
