"""Both towers as ONNX graphs, and as onnxruntime runs them."""

from __future__ import annotations

import importlib
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from torch import Tensor, nn

from densecap_search.errors import MissingPackage, ModelError
from densecap_search.files import write_json
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.publishing.agreement import Array, Loaded
from densecap_search.model.publishing.tokenizer_file import as_tokenizers, save_tokenizer

IMAGE, TEXT, PREPROCESS, TOKENIZER = "image.onnx", "text.onnx", "preprocess.json", "tokenizer.json"
OUTPUT = "vectors"  # not "embedding": torch's exporter gives that name to a value of its own
DTYPES = ("fp32", "fp16", "int8")
LEAST_HALVED = 1024  # numbers in a tensor; smaller ones are not worth an operator


class UnitTower(nn.Module):
    """A tower whose rows have length 1, filled up with zeros to width."""

    def __init__(self, tower: nn.Module, width: int) -> None:
        super().__init__()
        self.tower, self.width = tower, width

    def forward(self, batch: Tensor) -> Tensor:
        """Pixels float32 [B, 3, H, W] or token numbers int32 [B, L] → unit rows float32 [B, width]."""
        rows = nn.functional.normalize(self.tower(batch).float(), dim=-1)
        return nn.functional.pad(rows, (0, self.width - rows.shape[1])) if self.width > rows.shape[1] else rows


def write(encoder: DualEncoder, folder: Path, dtype: str) -> None:
    """image.onnx, text.onnx, tokenizer.json and preprocess.json, which has open_clip's words."""
    write_towers(encoder, folder / IMAGE, folder / TEXT, dtype, encoder.dim)
    save_tokenizer(encoder, folder)
    write_json(folder / PREPROCESS, {**encoder.spec.preprocess, "size": list(image_sides(encoder))})


def load(folder: Path) -> Loaded:
    """onnxruntime, tokenizers and open_clip's preprocessing: no weights of torch."""
    import onnxruntime
    from tokenizers import Tokenizer

    settings = json.loads((folder / PREPROCESS).read_text(encoding="utf-8"))
    transform = image_transform_v2(PreprocessCfg(**settings), is_train=False)
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    image, text = (onnxruntime.InferenceSession(str(folder / name)) for name in (IMAGE, TEXT))

    def pictures(images: Sequence[Image.Image]) -> Array:
        rows: Array = image.run(None, {"image": torch.stack([transform(one) for one in images]).numpy()})[0]
        return rows

    def captions(texts: Sequence[str]) -> Array:
        ids = np.array([tokenizer.encode(one).ids for one in texts], dtype=np.int32)
        rows: Array = text.run(None, {"text": ids})[0]
        return rows

    return Loaded(f"onnxruntime {onnxruntime.__version__}", pictures, captions)


def image_sides(encoder: DualEncoder) -> tuple[int, int]:
    """Height and width of what the image tower sees, in pixels."""
    size = encoder.spec.preprocess["size"]
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def write_towers(encoder: DualEncoder, image_file: Path, text_file: Path, dtype: str, width: int) -> None:
    """Graphs for any number of inputs: ``image`` float32 [B, 3, H, W], ``text`` int32 [B, window] → unit rows.

    dtype: fp16 halves the file, int8 quarters the weights of linear layers (convolutions stay); inputs and outputs are
    the same in each.
    """
    height, across = image_sides(encoder)
    made, _ = as_tokenizers(encoder)
    tokens = torch.tensor([made.encode("a red boat").ids, made.encode("two dogs on a beach").ids], dtype=torch.int32)
    encoder.model.requires_grad_(False)
    for name, tower, example, file in (
        ("image", encoder.model.visual, torch.zeros(2, 3, height, across), image_file),
        ("text", encoder.model.text, tokens, text_file),
    ):
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            whole = file if dtype == "fp32" else Path(scratch) / "whole.onnx"
            _export(UnitTower(tower, width).eval(), name, example, whole)
            if dtype != "fp32":
                _smaller(whole, file, dtype)


def _export(tower: nn.Module, name: str, example: Tensor, file: Path) -> None:
    _require("onnx", "onnxscript", "onnxruntime")
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # one operator for a whole attention, which ONNX has not
    try:
        with _quiet():
            torch.onnx.export(tower, (example,), str(file), input_names=[name], output_names=[OUTPUT], dynamo=True,
                              dynamic_shapes=({0: torch.export.Dim("batch")},), external_data=False, verbose=False)
    except torch.onnx.errors.OnnxExporterError as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"torch cannot write this {name} tower as ONNX: {reason}") from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _smaller(whole: Path, file: Path, dtype: str) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _quiet():
        if dtype == "fp16":
            graph = onnx.load(whole)
            _store_as_halves(graph.graph)
            onnx.save(graph, file)
        else:
            quantize_dynamic(whole, file, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8,
                             op_types_to_quantize=["MatMul", "Gemm"])


def _store_as_halves(graph: Any) -> None:
    """Weights in float16, each widened when the graph is loaded: arithmetic in float16 crashes onnxruntime on CPUs."""
    from onnx import TensorProto, helper, numpy_helper

    widened = []
    for weights in graph.initializer:
        if weights.data_type == TensorProto.FLOAT and np.prod(weights.dims) >= LEAST_HALVED:
            halves = numpy_helper.from_array(numpy_helper.to_array(weights).astype(np.float16), f"{weights.name}.half")
            widened.append(helper.make_node("Cast", [halves.name], [weights.name], to=TensorProto.FLOAT))
            weights.CopyFrom(halves)
    for node in reversed(widened):
        graph.node.insert(0, node)


def _require(*packages: str) -> None:
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise MissingPackage(f"--as onnx and immich need the package {package}; "
                                 "pip install 'densecap-search[publish]'") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter's own log lines and warnings say nothing that a user could act on."""
    disabled: Any = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
