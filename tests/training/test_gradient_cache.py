from __future__ import annotations

import pytest
import torch
from helpers import make_tiny
from torch import nn

from densecap_search.training.gradient_cache import backward_in_chunks
from densecap_search.training.objectives import hn_clip


def gradients(encoder, pixels, ids, micro_batch: int) -> tuple[float, dict[str, torch.Tensor]]:
    encoder.model.zero_grad()
    chunks = [(pixels[at:at + micro_batch], ids[at:at + micro_batch]) for at in range(0, len(pixels), micro_batch)]
    loss = backward_in_chunks(
        chunks, lambda chunk: (encoder.encode_image(chunk[0]), encoder.encode_text(chunk[1])),
        lambda image, text: hn_clip(image, text, encoder.logit_scale()), lambda loss: loss.backward(), torch.device("cpu"),
    )
    return loss.item(), {name: value.grad.clone() for name, value in encoder.model.named_parameters()}


@pytest.mark.parametrize("micro_batch", [1, 3, 4, 11])
def test_loss_gradients_and_one_step_equal_those_of_the_whole_batch(micro_batch: int):
    torch.manual_seed(0)
    pixels = torch.randint(0, 256, (12, 3, 32, 32), dtype=torch.uint8)
    ids = make_tiny().tokenize([f"a picture of {number} boats and {number * 7} gulls" for number in range(12)]).ids
    whole, parts = make_tiny(), make_tiny()
    loss, expected = gradients(whole, pixels, ids, 12)
    found_loss, found = gradients(parts, pixels, ids, micro_batch)
    assert found_loss == pytest.approx(loss, abs=1e-5)
    for name in expected:
        assert torch.allclose(found[name], expected[name], atol=1e-5), name
    for encoder in (whole, parts):
        torch.optim.SGD(encoder.model.parameters(), lr=0.1).step()
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_dropout_is_replayed_and_its_random_state_left_as_after_one_pass():
    torch.manual_seed(0)
    layer, rows = nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.5)), torch.randn(8, 5)
    seen: list[torch.Tensor] = []

    def embed(chunk):
        out = layer(chunk)
        seen.append(out.detach().clone())
        return (out,)

    torch.manual_seed(7)
    backward_in_chunks(list(rows.split(2)), embed, lambda x: x.square().sum(), lambda loss: loss.backward(),
                       torch.device("cpu"))
    after = torch.rand(1)
    assert [torch.equal(a, b) for a, b in zip(seen[:4], seen[4:], strict=True)] == [True] * 4
    torch.manual_seed(7)
    for chunk in rows.split(2):
        layer(chunk)
    assert torch.equal(torch.rand(1), after)


def test_an_embedding_that_the_loss_ignores_has_no_gradient():
    layer, rows = nn.Linear(3, 3), torch.randn(4, 3)
    backward_in_chunks(list(rows.split(2)), lambda chunk: (layer(chunk), layer(chunk) * 2), lambda a, b: a.sum(),
                       lambda loss: loss.backward(), torch.device("cpu"))
    assert torch.allclose(layer.weight.grad, rows.sum(0).expand(3, 3))
