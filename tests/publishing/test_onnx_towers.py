"""The towers as ONNX graphs, run by onnxruntime."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from helpers import make_tiny

from densecap_search.config import ModelConfig
from densecap_search.errors import ModelError
from densecap_search.model.encoder import DualEncoder, with_resize
from densecap_search.model.loading import load_encoder
from densecap_search.model.publishing import immich, onnx_towers
from densecap_search.workflows.publish import check

pytestmark = pytest.mark.slow  # torch's exporter takes ten seconds a tower


@pytest.mark.parametrize(("dtype", "least"), [("fp32", 1 - 1e-6), ("fp16", 0.99999), ("int8", 0.98)])
def test_onnxruntime_gives_the_vectors_of_the_run(dtype: str, least: float, tmp_path: Path):
    encoder = make_tiny()
    onnx_towers.write(encoder, tmp_path, dtype)
    assert check(encoder, onnx_towers.load(tmp_path), dtype).least > least
    weights = sum((tmp_path / name).stat().st_size for name in (onnx_towers.IMAGE, onnx_towers.TEXT))
    assert dtype != "fp16" or weights < 4_000_000  # 1.7 million numbers of two bytes, and the graphs


def test_a_batch_of_any_size_gives_the_rows_of_single_inputs(tmp_path: Path):
    onnx_towers.write(make_tiny(), tmp_path, "fp32")
    session = onnxruntime.InferenceSession(str(tmp_path / onnx_towers.IMAGE))
    batch = np.random.default_rng(0).normal(size=(7, 3, 32, 32)).astype(np.float32)
    rows = session.run(None, {"image": batch})[0]
    assert rows.shape == (7, 16)
    assert np.allclose(rows, [session.run(None, {"image": one[None]})[0][0] for one in batch], atol=1e-6)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)


def test_immich_finds_the_files_names_and_types_that_it_asks_for(tmp_path: Path):
    encoder = make_tiny()
    immich.write(encoder, tmp_path, "fp32")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == [
        "config.json", "textual/model.onnx", "textual/tokenizer.json", "textual/tokenizer_config.json", "visual/model.onnx",
        "visual/preprocess_cfg.json"]
    for tower, name, kind in (("visual", "image", "tensor(float)"), ("textual", "text", "tensor(int32)")):
        session = onnxruntime.InferenceSession(str(tmp_path / tower / "model.onnx"))
        assert [(one.name, one.type) for one in session.get_inputs()] == [(name, kind)]
        assert [one.type for one in session.get_outputs()] == ["tensor(float)"]
    assert json.loads((tmp_path / "config.json").read_text())["text_cfg"] == {"context_length": 248}
    loaded = immich.load(tmp_path)
    assert check(encoder, loaded, "fp32").least > 1 - 1e-5
    assert loaded.captions(["a red ball"]).shape == (1, 512)  # filled up with zeros to a size that immich knows


def test_immich_takes_no_border_and_says_so(tmp_path: Path):
    tiny = make_tiny()
    spec = replace(tiny.spec, preprocess=with_resize(tiny.spec.preprocess, "pad"))
    with pytest.raises(ModelError, match="immich crops pictures to a square or squashes them"):
        immich.write(DualEncoder(tiny.model, spec, tiny.tokenizer), tmp_path, "fp32")


@pytest.mark.parametrize("name", ["onnx", "immich"])
def test_the_starter_goes_where_the_pictures_are(name: str, tmp_path: Path):
    from densecap_search.model.publishing.formats import FORMATS

    encoder = load_encoder(ModelConfig("starter"))
    FORMATS[name].write(encoder, tmp_path, "fp32")
    assert check(encoder, FORMATS[name].load(tmp_path), "fp32").least > 1 - 1e-5


def test_int8_of_the_starter_is_told_by_its_cosines(tmp_path: Path):
    encoder = load_encoder(ModelConfig("starter"))
    onnx_towers.write(encoder, tmp_path, "int8")
    assert check(encoder, onnx_towers.load(tmp_path), "int8").least > 0.95
