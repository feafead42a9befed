from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import load, make_mixed, make_tiny
from open_clip.tokenizer import HFTokenizer
from transformers import BertTokenizerFast

from densecap_search.model.encoder import DualEncoder
from densecap_search.model.letters import unknown_words
from densecap_search.model.query_encoder import gelu, quick_gelu
from densecap_search.model.query_files import DESCRIPTION, TABLE, WEIGHTS, load_query_encoder, query_folder
from densecap_search.model.query_making import keep_query_encoder

CAPTIONS = ["A red bus.", "", "Caf&eacute; &amp; “bar” — 3 ½ x 4\n\n_under_ 'tis it's", "a green box, " * 300, "кот 红的 🚌",
            "don't!!! ... [x] <b>"]


def same_vectors(encoder: DualEncoder, captions: list[str]) -> None:
    made = load_query_encoder(encoder.fingerprint())
    assert made is not None
    assert made.lengths(captions) == encoder.lengths(captions)
    assert (made.dim, made.context_length, made.name) == (encoder.dim, encoder.context_length, encoder.name)
    rows, expected = made.text_outputs(captions), encoder.text_outputs(captions)
    assert np.allclose(rows, expected, atol=1e-4)
    cosines = (made.through_head("text", rows) * encoder.through_head("text", expected)).sum(axis=1)
    assert cosines.min() >= 0.99999


def test_activations_by_their_definitions():
    x = np.array([-40, -3, -1, 0, 0.5, 2, 40], np.float32)
    assert gelu(x) == pytest.approx([v * (1 + math.erf(v / math.sqrt(2))) / 2 for v in x.tolist()], abs=1e-6)
    assert quick_gelu(x) == pytest.approx([v / (1 + math.exp(-1.702 * v)) for v in x.tolist()], abs=1e-6)


@pytest.mark.parametrize("window", [20, 77, 248])
def test_a_clip_reads_as_it_does_in_torch(window: int):
    encoder = make_tiny(window)
    assert keep_query_encoder(encoder)
    same_vectors(encoder, CAPTIONS)


def test_a_bert_reads_as_it_does_in_torch(tmp_path: Path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "bus", "##es", "x", "it", "'", "s", "box", ",", "green"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    BertTokenizerFast(vocab=str(tmp_path / "vocab.txt"), do_lower_case=True).save_pretrained(tmp_path / "t")
    encoder = make_mixed(tmp_path / "bert")
    encoder.tokenizer = HFTokenizer(str(tmp_path / "t"), context_length=32)
    assert keep_query_encoder(encoder)
    same_vectors(encoder, CAPTIONS)
    made = load_query_encoder(encoder.fingerprint())
    assert made is not None
    for caption in CAPTIONS:
        assert unknown_words(made.tokenizer, caption) == unknown_words(encoder.tokenizer, caption)


@pytest.mark.slow
def test_the_starter_reads_as_it_does_in_torch():
    encoder = load("starter")
    assert keep_query_encoder(encoder)
    same_vectors(encoder, CAPTIONS)


def test_a_tower_of_another_kind_has_none():
    encoder = make_tiny()
    encoder.model.text.pool_type = "last"
    assert not keep_query_encoder(encoder)
    assert load_query_encoder(encoder.fingerprint()) is None


@pytest.mark.parametrize("name", [WEIGHTS, TABLE, DESCRIPTION])
def test_a_damaged_file_is_not_used_and_made_anew(name: str):
    encoder = make_tiny()
    assert keep_query_encoder(encoder)
    path = query_folder(encoder.fingerprint()) / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert load_query_encoder(encoder.fingerprint()) is None
    assert keep_query_encoder(encoder)
    assert load_query_encoder(encoder.fingerprint()) is not None


def test_one_that_was_copied_to_where_another_models_is_looked_for_is_not_used():
    encoder, other = make_tiny(), make_tiny(seed=1)
    assert keep_query_encoder(encoder)
    shutil.copytree(query_folder(encoder.fingerprint()), query_folder(other.fingerprint()))
    assert load_query_encoder(other.fingerprint()) is None


def test_a_copied_one_is_not_used_and_made_anew(tmp_path: Path):
    encoder = make_tiny()
    assert keep_query_encoder(encoder)
    folder = query_folder(encoder.fingerprint())
    shutil.copytree(folder, tmp_path / "copy")
    shutil.move(folder, tmp_path / "original")
    shutil.move(tmp_path / "copy", folder)
    assert load_query_encoder(encoder.fingerprint()) is None
    assert keep_query_encoder(encoder)
    assert load_query_encoder(encoder.fingerprint()) is not None


def test_weights_that_change_are_another_encoder():
    encoder = make_tiny()
    assert keep_query_encoder(encoder)
    with torch.no_grad():
        encoder.model.text.ln_final.weight.mul_(2)
    assert load_query_encoder(encoder.fingerprint()) is None
