from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from densecap_search.config import load_config, parse_setting, parse_tune, to_yaml, with_tune_defaults
from densecap_search.errors import ConfigError


def test_a_file_and_overrides_become_settings(tmp_path: Path):
    (tmp_path / "c.yaml").write_text("model: ' ViT-B-32\n'\ntrain:\n  lr: 1e-4\n  gamma: 0.25\n")
    found = load_config(tmp_path / "c.yaml", [("train.gamma", 0.75), parse_setting("train.epochs=3")])
    assert (found.model.name, found.train.lr, found.train.gamma, found.train.epochs) == ("ViT-B-32", 1e-4, 0.75, 3)


def test_settings_survive_their_yaml(tmp_path: Path):
    found = load_config(overrides=[("train.lr", 3e-5), ("model.pretrained", "openai"), ("data.val_share", 0.2)])
    (tmp_path / "c.yaml").write_text(to_yaml(found))
    assert load_config(tmp_path / "c.yaml") == found
    assert yaml.safe_load(to_yaml(found))["train"]["lr"] == 3e-5


def test_a_name_that_yaml_reads_as_a_number_or_a_date_is_still_a_name(tmp_path: Path):
    (tmp_path / "c.yaml").write_text("model: {name: 2024}\ndata: {image_column: 2024-05-01}\n")
    found = load_config(tmp_path / "c.yaml")
    assert (found.model.name, found.data.image_column) == ("2024", "2024-05-01")


def test_what_was_left_open_follows_the_tune_mode():
    assert with_tune_defaults(load_config().train, "heads").batch_size == 128
    full = with_tune_defaults(load_config(overrides=[("train.lr", 7.0)]).train, "full")
    assert (full.tune, full.batch_size, full.lr) == ("full", 32, 7.0)
    last = with_tune_defaults(load_config(overrides=[("train.tune", "last:3")]).train, "heads")
    assert (last.tune, last.batch_size, last.lr) == ("last:3", 32, 2e-5)


def test_a_tune_mode_is_a_word_and_perhaps_a_number():
    assert [parse_tune(text) for text in ("full", "heads", "last:12", "lora", "dora")] == [
        ("full", 0), ("heads", 0), ("last", 12), ("lora", 0), ("dora", 0)]


@pytest.mark.parametrize(("text", "sentence"), [
    ("nonsense: 1", "unknown key nonsense; known keys here: data, model, train"),
    ("train: {gama: 1}", "unknown key train.gama; known keys here: batch_size, "),
    ("train: 5", "train must be a section with keys, not 5"),
    ("train: {epochs: 1.5}", "train.epochs must be a whole number, not 1.5"),
    ("train: {gamma: yes}", "train.gamma must be a number, not True"),
    ("train: {gamma: .nan}", "train.gamma must be from 0 to 10, not nan"),
    ("train: {objective: clip}", "train.objective must be one of auto, info_nce, hn_clip, constant_margin, label_smoothing, siglip, not 'clip'"),
    ("train: {tune: all}", "train.tune must be one of full, heads, last:N, lora, dora, not 'all'"),
    ("train: {tune: 'lora:8'}", "train.tune must be one of full, heads, last:N, lora, dora, not 'lora:8'"),
    ("train: {tune: last}", "train.tune: last takes a number of blocks, 1 or more, as in last:2, not 'last'"),
    ("train: {tune: 'last:0'}", "last takes a number of blocks, 1 or more"),
    ("train: {tune: 'last:²'}", "last takes a number of blocks, 1 or more"),
    ("train: {rank: 0}", "train.rank must be 1 or more, not 0"),
    ("train: {layer_decay: 1.5}", "train.layer_decay must be from 0 to 1, not 1.5"),
    ("train: {epochs: .inf}", "train.epochs must be a whole number, not inf"),
    ("train: {lr: .inf}", "train.lr must be 0 or more, not inf"),
    ("train: {seed: -1}", "train.seed must be from 0 to 2147483647, not -1"),
    ("data: {val_share: 0.6, test_share: 0.6}", "data.val_share and data.test_share together must be from 0 to 0.9, not 1.2"),
    ("model: {name: [a, b]}", "model.name must be text, not ['a', 'b']"),
    ("data: {image_column: {a: b}}", "data.image_column must be text, not {'a': 'b'}"),
    ("train: {tune: [heads]}", "train.tune must be text, not ['heads']"),
    ("train: {seed: [1]}", "train.seed must be a whole number, not [1]"),
    ("- a", "must hold sections (data, model, train), not a list"),
    ("a: [", "is not a YAML file"),
])
def test_what_cannot_be_is_refused_by_name(tmp_path: Path, text: str, sentence: str):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        load_config(tmp_path / "c.yaml")
    assert sentence in str(error.value)
