from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise
from pathlib import Path

import pytest
import torch
from helpers import TINY, make_mixed, make_tiny
from open_clip.transformer import TextTransformer

from densecap_search.model.checkpoint import build_model, make_tokenizer
from densecap_search.model.encoder import DualEncoder, EncoderSpec, default_preprocess
from densecap_search.model.parts import cut, in_parts, read_lengths

LENGTHS = (3, 200, 5, 40, 180, 4, 60, 6)  # of captions, in words; in this order
CAPTIONS = [" ".join(["word"] * count) for count in LENGTHS]


def make_siglip_like() -> DualEncoder:
    """Attends to the padding, and pools the last position."""
    cfg = {**TINY, "text_cfg": {**TINY["text_cfg"], "no_causal_mask": True, "pool_type": "last"}}
    spec = EncoderSpec("like SigLIP", cfg, default_preprocess(size=32), 77)
    torch.manual_seed(0)
    return DualEncoder(build_model(spec), spec, make_tokenizer(spec, None))


def bert_ids() -> torch.Tensor:
    ids = torch.zeros(len(LENGTHS), 32, dtype=torch.long)  # 0 pads
    for row, count in enumerate(LENGTHS):
        ids[row, :min(32, count)] = torch.arange(1, 1 + min(32, count))
    return ids


def at_once(encoder: DualEncoder, ids: torch.Tensor) -> torch.Tensor:
    """The text tower's own forward pass over its whole window."""
    return encoder.model.text(torch.nn.functional.pad(ids, (0, encoder.context_length - ids.shape[1])))


def all_partitions(lengths: list[int], pass_tokens: int) -> Iterator[int]:
    inner = range(1, len(lengths))
    for count in range(len(lengths)):
        for borders in combinations(inner, count):
            edges = [0, *borders, len(lengths)]
            yield sum((b - a) * lengths[b - 1] + pass_tokens for a, b in pairwise(edges))


def test_two_short_and_two_long_captions_are_two_parts_where_a_pass_is_cheap():
    assert cut([10, 10, 100, 100], 5) == [2, 2]  # 20 + 200 + 10 against 400 + 5
    assert cut([10, 10, 100, 100], 181) == [4]  # 220 + 362 against 400 + 181
    assert cut([7], 5) == [1]


@pytest.mark.parametrize("pass_tokens", [0, 10, 64, 1000])
def test_no_way_to_cut_costs_less(pass_tokens: int):
    lengths = [3, 3, 8, 20, 21, 60, 61, 200]
    edges = torch.tensor([0, *cut(lengths, pass_tokens)]).cumsum(0).tolist()
    cost = sum((b - a) * lengths[b - 1] + pass_tokens for a, b in pairwise(edges))
    assert cost == min(all_partitions(lengths, pass_tokens))


def test_a_thousand_captions_are_cut_into_parts_that_hold_all_of_them():
    sizes = cut(sorted(range(1, 1001)), 64)
    assert sum(sizes) == 1000
    assert 2 < len(sizes) <= 33


def test_which_tower_is_read_only_to_the_end_of_the_caption(tmp_path: Path):
    """CLIP's to the end token, BERT's to the last token that is no padding; SigLIP's sees the padding as well."""
    tiny, siglip = make_tiny(), make_siglip_like()
    ids = tiny.tokenize(CAPTIONS).ids
    assert read_lengths(tiny.model.text, ids).tolist() == [count + 2 for count in LENGTHS]
    assert read_lengths(make_mixed(tmp_path).model.text, bert_ids()).tolist() == [min(32, count) for count in LENGTHS]
    assert read_lengths(siglip.model.text, siglip.tokenize(CAPTIONS).ids) is None


def test_a_tower_that_pools_its_first_end_token_is_read_up_to_there():
    text = TextTransformer(context_length=8, vocab_size=50, width=16, heads=2, layers=1, output_dim=8, pool_type="eos", eos_id=9)
    ids = torch.tensor([[40, 9, 9, 0, 0, 0, 0, 0], [40, 41, 42, 9, 0, 0, 0, 0]])
    assert read_lengths(text, ids).tolist() == [2, 4]


def test_tokens_behind_the_end_of_a_caption_do_not_change_its_vector(tiny: DualEncoder):
    ids = tiny.tokenize(["a red ball", "word " * 300]).ids
    changed = ids.clone()
    changed[0, 5:] = 17
    whole = tiny.model.text(ids)
    assert torch.allclose(tiny.model.text(changed)[0], whole[0], atol=1e-6)


@pytest.mark.parametrize("family", ["clip", "bert", "siglip"])
def test_vectors_in_parts_are_those_of_the_whole_batch(family: str, tmp_path: Path):
    encoder = {"clip": make_tiny, "bert": lambda: make_mixed(tmp_path), "siglip": make_siglip_like}[family]()
    ids = bert_ids() if family == "bert" else encoder.tokenize(CAPTIONS).ids
    with torch.no_grad():
        whole = torch.nn.functional.normalize(at_once(encoder, ids), dim=-1)
        assert torch.allclose(encoder.encode_text(ids), whole, atol=1e-6)


def test_a_step_in_parts_leaves_the_weights_of_a_step_at_once():
    """Within 1e-6 of all weights; the tower is passed through several times."""
    after = []
    for in_one in (True, False):
        encoder = make_tiny()
        ids, target = encoder.tokenize(CAPTIONS).ids, torch.nn.functional.normalize(torch.randn(8, 16, generator=torch.Generator().manual_seed(1)), dim=-1)
        calls: list[int] = []
        encoder.model.text.register_forward_hook(lambda *_, seen=calls: seen.append(1))
        optimizer = torch.optim.SGD(encoder.model.text.parameters(), lr=0.01)
        vectors = torch.nn.functional.normalize(at_once(encoder, ids), dim=-1) if in_one else encoder.encode_text(ids)
        (vectors @ target.T).softmax(dim=1).diag().log().mean().neg().backward()
        optimizer.step()
        assert (len(calls) == 1) == in_one
        after.append(torch.cat([value.detach().flatten() for value in encoder.model.text.parameters()]))
    assert (after[1] - after[0]).norm() <= 1e-6 * after[0].norm()


def test_rows_come_back_in_their_order_and_parts_are_narrow():
    seen: list[tuple[int, int]] = []

    def encode(ids: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(ids.shape))
        return ids[:, :1].float()

    text = make_tiny().model.text
    ids = torch.zeros(4, 200, dtype=torch.long)
    for row, end in enumerate((199, 2, 199, 3)):
        ids[row, 0], ids[row, end] = row + 1, 49407
    assert in_parts(encode, text, ids, torch.device("cpu")).flatten().tolist() == [1, 2, 3, 4]
    assert seen == [(2, 4), (2, 200)]
