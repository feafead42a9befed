from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

from densecap_search.model.packing import PackedConvolution, packed


def count(tower: nn.Module) -> int:
    return sum(isinstance(part, PackedConvolution) for part in tower.modules())


def test_one_convolution_and_its_activation_by_hand():
    """2x − 3 of 1, 2, 5: −1, 1, 7, of which ReLU6 leaves 0, 1, 6."""
    tower = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU6()).eval()
    with torch.no_grad():
        tower[0].weight.fill_(2)
        tower[0].bias.fill_(-3)
    x = torch.tensor([1.0, 2.0, 5.0]).reshape(1, 1, 1, 3)
    made = packed(tower, x)
    assert made is not None
    assert count(made) == 1
    assert made(x).flatten().tolist() == [0, 1, 6]
    assert isinstance(tower[1], nn.ReLU6)


@pytest.mark.parametrize("name", ["test_efficientnet", "test_resnet", "tf_efficientnet_lite0"])
def test_a_packed_tower_returns_the_same_vectors_for_batches_of_any_size(name: str):
    torch.manual_seed(0)
    tower = timm.create_model(name, num_classes=0).eval()
    made = packed(tower, torch.randn(1, 3, 64, 64).contiguous(memory_format=torch.channels_last))
    assert made is not None
    assert count(made) == sum(isinstance(part, nn.Conv2d) for part in tower.modules())
    for size in (1, 3, 4):
        x = torch.randn(size, 3, 64, 64)
        with torch.no_grad():
            assert nn.functional.cosine_similarity(made(x), tower(x)).min() >= 0.99999


def test_a_tower_that_uses_what_stood_before_an_activation_is_not_packed():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.activation = nn.Conv2d(3, 4, 3), nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.convolution(x)
            return self.activation(x) - 2 * x

    torch.manual_seed(0)
    assert packed(Twice().eval(), torch.randn(2, 3, 8, 8)) is None


def test_a_tower_without_convolutions_is_not_copied():
    assert packed(nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), torch.randn(1, 3, 2, 2)) is None
