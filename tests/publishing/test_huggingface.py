"""A run as a CLIPModel of transformers, and as a model of sentence-transformers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import make_mixed, make_tiny
from torch.nn import functional as F

from densecap_search.config import ModelConfig
from densecap_search.errors import ModelError
from densecap_search.model.checkpoint import build_model
from densecap_search.model.encoder import DualEncoder, with_resize
from densecap_search.model.heads import SkipHead
from densecap_search.model.loading import load_encoder
from densecap_search.model.publishing import huggingface, sentence_transformers_folder
from densecap_search.model.publishing.sentence_transformers_folder import linear_layers
from densecap_search.workflows.publish import check


def variant(window: int, quick: bool, resize: str = "crop") -> DualEncoder:
    tiny = make_tiny(77)
    cfg = {**tiny.spec.model_cfg, "quick_gelu": quick}
    spec = replace(tiny.spec, model_cfg={**cfg, "text_cfg": {**cfg["text_cfg"], "context_length": window}}, context_length=window,
                   preprocess=with_resize(tiny.spec.preprocess, resize))
    torch.manual_seed(3)
    return DualEncoder(build_model(spec), spec, tiny.tokenizer)


@pytest.mark.parametrize(("window", "quick", "resize"), [(77, True, "crop"), (248, False, "squash")])
def test_transformers_gives_the_vectors_of_the_run(window: int, quick: bool, resize: str, tmp_path: Path):
    encoder = variant(window, quick, resize)
    huggingface.write(encoder, tmp_path, "fp32")
    assert check(encoder, huggingface.load(tmp_path), "fp32").least == pytest.approx(1.0, abs=1e-5)


def test_what_was_published_is_read_back_here_as_the_same_model(tmp_path: Path):
    encoder = variant(248, True)
    huggingface.write(encoder, tmp_path, "fp32")
    again = load_encoder(ModelConfig(str(tmp_path)))
    pixels, tokens = torch.randn(2, 3, 32, 32), encoder.tokenize(["a red ball", "two dogs"]).ids
    assert torch.allclose(again.encode_image(pixels), encoder.encode_image(pixels), atol=1e-6)
    assert torch.allclose(again.encode_text(tokens), encoder.encode_text(tokens), atol=1e-6)


def test_what_clipmodel_cannot_be_is_one_sentence(tmp_path: Path):
    with pytest.raises(ModelError, match=r"the towers of mixed \(TimmModel, HFTextEncoder\) are not those of Hugging Face's CLIPModel; publish it with"):
        huggingface.write(make_mixed(tmp_path / "text"), tmp_path, "fp32")


def test_a_head_with_a_skip_is_two_linear_layers():
    torch.manual_seed(0)
    head = SkipHead(6, 4, 5, 0.5).eval()
    head.standardise.mean.normal_()
    head.standardise.std.uniform_(0.5, 2)
    x = torch.randn(3, 6)
    made = x
    for weight, bias, bent in linear_layers(head):
        made = F.linear(made, weight, bias)
        made = F.gelu(made) if bent else made
    assert torch.allclose(made, head(x), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["tiny", "starter"])
def test_sentence_transformers_gives_the_vectors_of_the_run(which: str, tmp_path: Path):
    encoder = variant(100, True) if which == "tiny" else load_encoder(ModelConfig("starter"))
    sentence_transformers_folder.write(encoder, tmp_path, "fp32")
    assert check(encoder, sentence_transformers_folder.load(tmp_path), "fp32").least == pytest.approx(1.0, abs=1e-5)
