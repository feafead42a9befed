"""A run as a folder of open_clip, read back by open_clip; the tokenizer beside it; the card."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
from click.testing import CliRunner
from helpers import make_mixed, make_tiny

from densecap_search import config
from densecap_search.cli import main
from densecap_search.errors import ConfigError, DensecapError, ModelError
from densecap_search.model.checkpoint import save_encoder
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.publishing import agreement, immich, open_clip_folder
from densecap_search.model.publishing.formats import FORMATS
from densecap_search.model.publishing.tokenizer_file import as_tokenizers
from densecap_search.talk import SILENT
from densecap_search.workflows.publish import CHECKED, check, check_inputs, publish_run
from densecap_search.workflows.publish_index import publish_index


def test_the_command_line_knows_every_format_and_type():
    assert tuple(FORMATS) == config.PUBLISHED_AS
    assert {dtype for form in FORMATS.values() for dtype in form.dtypes} == set(config.DTYPES) == set(agreement.LEAST_COSINE)


@pytest.mark.parametrize(("window", "quick"), [(77, True), (248, False), (100, True)])
def test_open_clip_gives_the_vectors_of_the_run_without_a_flag(window: int, quick: bool, tmp_path: Path):
    encoder = make_tiny(window)
    spec = replace(encoder.spec, model_cfg={**encoder.spec.model_cfg, "quick_gelu": quick})
    encoder = DualEncoder(open_clip.CustomTextCLIP(**{**spec.model_cfg, "text_cfg": {**spec.model_cfg["text_cfg"], "context_length": window}}),
                          spec, encoder.tokenizer)
    open_clip_folder.write(encoder, tmp_path, "fp32")
    found = check(encoder, open_clip_folder.load(tmp_path), "fp32")
    assert (len(found.pictures), len(found.captions)) == (CHECKED, CHECKED) == (10, 10)
    assert found.least == pytest.approx(1.0, abs=1e-5)


def test_the_check_sees_a_window_that_was_lost(tmp_path: Path):
    encoder = make_tiny(248)
    open_clip_folder.write(encoder, tmp_path, "fp32")
    file = tmp_path / open_clip_folder.CONFIG
    said = json.loads(file.read_text())
    said["model_cfg"]["text_cfg"]["context_length"] = 77
    file.write_text(json.dumps(said))
    with pytest.raises((RuntimeError, ModelError)):
        check(encoder, open_clip_folder.load(tmp_path), "fp32")


def test_other_vectors_are_an_error_that_says_where():
    far = agreement.Agreement("open_clip 3.3.0", (0.75,), (0.9999999,))
    with pytest.raises(ModelError, match=r"open_clip 3\.3\.0 makes other vectors .*least cosine 0\.7500 on pictures, 1\.0000 on captions"):
        agreement.require(far, "fp32")


def test_cosines_are_those_worked_by_hand_and_zeros_change_none():
    a, b = np.array([[3.0, 4.0], [1.0, 0.0]]), np.array([[3.0, 4.0, 0.0], [0.0, 2.0, 0.0]])
    assert agreement.cosines(a, b) == pytest.approx((1.0, 0.0))


def test_a_hugging_face_text_tower_is_refused_in_one_sentence(tmp_path: Path):
    with pytest.raises(ModelError, match="looks up on the hub by name and not in the folder; publish it with --as sentence-transformers, onnx or immich"):
        open_clip_folder.write(make_mixed(tmp_path / "text"), tmp_path, "fp32")


@pytest.mark.parametrize("window", [77, 248])
def test_tokenizer_json_gives_the_tokens_of_open_clip(window: int):
    encoder = make_tiny(window)
    made, pad = as_tokenizers(encoder)
    captions = ["", "A red  BALL\n lies\there.", "it's 3 o'clock, they'd've", "Ein Schloß am Fluß 🚤!!", "word " * 300, *check_inputs()[1]]
    expected = encoder.tokenizer(captions, context_length=window)
    assert pad == "!"
    assert [made.encode(caption).ids for caption in captions] == expected.tolist()


def test_a_published_run_has_a_card_with_its_figures_and_is_not_overwritten(tmp_path: Path):
    run = tmp_path / "run"
    save_encoder(make_tiny(), run)
    figures = {arrow: {"R@1": 12.5, "MRR": 0.25} for arrow in ("text_to_image", "image_to_text")}
    (run / "best.json").write_text(json.dumps({"epoch": 3, "val": figures, "zero_shot": figures}))
    (run / "config.yaml").write_text("train: {objective: info_nce, seed: 4}\n")
    folder = tmp_path / "out" / "mine"
    result = CliRunner().invoke(main, ["publish", str(run), "-o", str(folder), "--as", "open_clip", "--license", "mit"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "cosine of 10 pictures: 1.000000" in result.output
    card = (folder / "README.md").read_text()
    for words in ("license: mit", "window: 248 tokens", "Fine-tuned with info_nce, seed 4.", "| epoch 3 | 12.5 | 0.25 | 12.5 | 0.25 |",
                  'create_model_and_transforms("local-dir:mine")', "cosine at least 1.000000 on 10 pictures"):
        assert words in card
    assert sorted(path.name for path in folder.parent.iterdir()) == ["mine"]
    with pytest.raises(DensecapError, match="mine is not empty; name a new folder with -o"):
        publish_run(config.ModelConfig(str(run)), folder, "open_clip", dtype="fp32", licence="mit", talk=SILENT)


def test_a_type_that_a_format_lacks_is_refused_before_anything_is_loaded(tmp_path: Path):
    with pytest.raises(ConfigError, match="--as open_clip is written in fp32 only, not int8"):
        publish_run(config.ModelConfig("nowhere"), tmp_path / "x", "open_clip", dtype="int8", licence="mit", talk=SILENT)


@pytest.mark.parametrize(("dim", "size", "name"), [(16, 512, "ViT-B-16__openai"), (512, 512, "ViT-B-16__openai"), (513, 640, "RN50x4__openai"),
                                                   (768, 768, "ViT-L-14__openai")])
def test_immich_is_given_vectors_of_a_size_that_it_knows(dim: int, size: int, name: str):
    assert immich.stands_for(dim) == (size, name)


def test_adapters_are_folded_in(tmp_path: Path):
    from densecap_search.model.tuning import select_parameters

    encoder = make_tiny(77)
    trained = select_parameters(encoder, "lora", learn_logit_scale=True)
    with torch.no_grad():
        for value in trained.values():
            value.add_(torch.randn_like(value) * 0.05)
    open_clip_folder.write(encoder, tmp_path, "fp32")
    assert check(encoder, open_clip_folder.load(tmp_path), "fp32").least == pytest.approx(1.0, abs=1e-5)


def test_what_is_no_run_is_said_as_what_it_is(tmp_path: Path):
    def publish(source: Path, name: str) -> None:
        publish_run(config.ModelConfig(str(source)), tmp_path / "x", name, dtype="fp32", licence="mit", talk=SILENT)

    for missing in (tmp_path / "nowhere", Path("/nowhere"), Path("./weights.pt")):
        with pytest.raises(ModelError, match=rf"there is no file or folder .*{missing.name}; a model is a run folder, a checkpoint file"):
            publish(missing, "open_clip")
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "CURRENT").write_text("gen-000001")
    with pytest.raises(ConfigError, match=r"index is an index; --as parquet or npy writes it for other programs, and --as onnx is for a run"):
        publish(tmp_path / "index", "onnx")
    save_encoder(make_tiny(), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"run is a run, and --as npy is for an index; publish it with --as open_clip, "):
        publish_index(tmp_path / "run", tmp_path / "x", "npy")
    with pytest.raises(DensecapError, match=r"there is no folder .*nowhere; name an index folder"):
        publish_index(tmp_path / "nowhere", tmp_path / "x", "npy")
    assert not (tmp_path / "x").exists()
