"""A model that a user is given runs no Python of its own, whichever way it comes in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import BERT, TINY, make_tiny
from safetensors.torch import save_file

from densecap_search.config import ModelConfig
from densecap_search.errors import DensecapError
from densecap_search.model.checkpoint import save_encoder
from densecap_search.model.loading import load_encoder
from densecap_search.model.untrusted import check_model_cfg

RUNS = "import pathlib, os\npathlib.Path(os.environ['PLANTED']).write_text('ran')\n"
CODE = {
    "planted.py": RUNS + """
from transformers import BertConfig, BertModel, BertTokenizerFast
class Config(BertConfig): model_type = 'planted'
class Model(BertModel): config_class = Config
class Tokenizer(BertTokenizerFast): pass
""",
}
AUTO_MAP = {"AutoConfig": "planted.Config", "AutoModel": "planted.Model", "AutoTokenizer": ["planted.Tokenizer", "planted.Tokenizer"]}
TEXT = {"hf_model_name": "tokenizer", "hf_tokenizer_name": "tokenizer", "hf_proj_type": "linear", "context_length": 32}


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where planted code would leave its mark."""
    mark = tmp_path / "mark"
    monkeypatch.setenv("PLANTED", str(mark))
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    return mark


def write(folder: Path, files: dict[str, Any]) -> Path:
    for name, value in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value if isinstance(value, str) else json.dumps(value))
    return folder


def hugging_face_files(config: dict[str, Any], tokenizer: dict[str, Any]) -> dict[str, Any]:
    words = "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])
    return {"config.json": {"model_type": "bert", **BERT, **config}, "vocab.txt": words,
            "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", **tokenizer}, **CODE}


def run_folder(folder: Path, files: dict[str, Any], text_cfg: dict[str, Any]) -> Path:
    save_encoder(make_tiny(), folder)
    model = json.loads((folder / "model.json").read_text())
    model["model_cfg"]["text_cfg"] = {**TEXT, **text_cfg}
    return write(folder, {"model.json": model, **{f"tokenizer/{name}": value for name, value in files.items()}})


def open_clip_folder(folder: Path, files: dict[str, Any], text_cfg: dict[str, Any]) -> Path:
    cfg = {"model_cfg": {**TINY, "text_cfg": {**TEXT, "hf_model_name": str(folder), **text_cfg}}}
    return write(folder, {**files, "open_clip_config.json": cfg})


WAYS = {
    "the tokenizer's options trust remote code": ({}, {"auto_map": AUTO_MAP}, {"tokenizer_kwargs": {"trust_remote_code": True}}),
    "the tokenizer names code": ({}, {"auto_map": AUTO_MAP}, {}),
    "the tower names code": ({"model_type": "planted", "auto_map": AUTO_MAP}, {}, {}),
    "a part of the tower names code": ({"text_config": {"auto_map": AUTO_MAP}}, {}, {}),
    "the tower names a kernel": ({"attn_implementation": "evil/kernel"}, {}, {}),
    "the configuration trusts remote code": ({}, {"auto_map": AUTO_MAP}, {"trust_remote_code": True}),
}


def test_the_planted_code_would_run_where_it_is_trusted(tmp_path: Path, planted: Path):
    """That the tests below would see it."""
    from transformers import AutoTokenizer

    folder = write(tmp_path / "given", hugging_face_files({}, {"auto_map": AUTO_MAP}))
    AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    assert planted.read_text() == "ran"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("lay", [run_folder, open_clip_folder])
def test_planted_code_is_not_run(lay: Any, way: str, tmp_path: Path, planted: Path, monkeypatch: pytest.MonkeyPatch):
    config, tokenizer, text_cfg = WAYS[way]
    folder = lay(tmp_path / "given", hugging_face_files(config, tokenizer), text_cfg)
    monkeypatch.setattr("builtins.input", lambda *words: "y")  # transformers asks; users say yes
    names = [str(folder)] if lay is run_folder else [str(folder), f"local-dir:{folder}"]
    for name in names:
        with pytest.raises(DensecapError, match=r"auto_map|trust_remote_code|attn_implementation|hf_model_name"):
            load_encoder(ModelConfig(name))
    assert not planted.exists()


def test_a_hugging_face_folder_that_names_code_is_refused_by_name(tmp_path: Path, planted: Path):
    folder = write(tmp_path / "given", {**CODE, "config.json": {"model_type": "clip", "auto_map": AUTO_MAP}})
    with pytest.raises(DensecapError, match=r"config\.json asks for code of its own to be run \(auto_map\), which is never done"):
        load_encoder(ModelConfig(str(folder)))
    assert not planted.exists()


@pytest.mark.parametrize(("section", "values", "named"), [
    ("vision_cfg", {"timm_model_name": "hf-hub:evil/model"}, "vision_cfg.timm_model_name is 'hf-hub:evil/model'"),
    ("vision_cfg", {"timm_model_name": "local-dir:/tmp/evil"}, "vision_cfg.timm_model_name"),
    ("text_cfg", {"hf_model_name": "../evil"}, "text_cfg.hf_model_name"),
    ("text_cfg", {"hf_tokenizer_name": "/tmp/evil"}, "text_cfg.hf_tokenizer_name"),
    ("text_cfg", {"tokenizer_kwargs": {"bpe_path": "/etc/shadow"}}, "text_cfg.tokenizer_kwargs.bpe_path, which no model may"),
    ("text_cfg", {"tokenizer_kwargs": {"reduction_mask": "syntax"}}, "tokenizer_kwargs.reduction_mask is 'syntax'"),
    ("text_cfg", {"norm_kwargs": {"device": "cuda"}}, "text_cfg.norm_kwargs.device"),
    ("text_cfg", {"vocab_size": 10**12}, "text_cfg.vocab_size is 1000000000000, and must be a number up to 10,000,000"),
    ("text_cfg", {"width": float("nan")}, "text_cfg.width"),
    ("vision_cfg", {"layers": [1] * 1000}, "vision_cfg.layers holds 1000 values"),
    ("vision_cfg", {"image_size": {"a": 1}}, "vision_cfg.image_size"),
])
def test_a_configuration_says_only_sizes_and_settings(section: str, values: dict[str, Any], named: str):
    with pytest.raises(DensecapError) as error:
        check_model_cfg({**TINY, section: {**TINY[section], **values}}, "given")
    assert named in str(error.value)


def test_every_configuration_of_open_clip_is_allowed():
    import open_clip

    for name in open_clip.list_models():
        check_model_cfg(open_clip.get_model_config(name), name)


def test_unknown_keys_of_a_run_are_a_sentence_that_names_them(tmp_path: Path):
    save_encoder(make_tiny(), tmp_path)
    model = json.loads((tmp_path / "model.json").read_text())
    write(tmp_path, {"model.json": {**model, "model_cfg": {**model["model_cfg"], "loader": "os.system"}}})
    with pytest.raises(DensecapError, match="loader, which no model may"):
        load_encoder(ModelConfig(str(tmp_path)))


@pytest.mark.slow
def test_the_command_line_runs_no_planted_code(tmp_path: Path):
    """End to end, in a process of its own: index and search with a run that brings Python."""
    folder = run_folder(tmp_path / "run", hugging_face_files({}, {"auto_map": AUTO_MAP}),
                        {"tokenizer_kwargs": {"trust_remote_code": True}})
    (tmp_path / "photos").mkdir()
    environment = {**os.environ, "PLANTED": str(tmp_path / "mark")}
    command = [sys.executable, "-m", "densecap_search", "index", str(tmp_path / "photos"), "--model", str(folder), "-o", str(tmp_path / "index")]
    save_file({}, tmp_path / "photos" / "no.png")
    done = subprocess.run(command, env=environment, input="y\ny\n", capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert not (tmp_path / "mark").exists()
