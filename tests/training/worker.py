"""What one of two processes does in test_distributed.py; run by torchrun."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from open_clip.loss import ClipLoss

sys.path.insert(0, str(Path(__file__).parents[1]))
from helpers import make_tiny

from densecap_search.training.distributed import joined
from densecap_search.training.objectives import HNClipLoss, hn_clip

GROUPS = torch.tensor([0, 1, 2, 3, 0, 4, 5])


def batch():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (7, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return pixels, make_tiny().tokenize([f"{number} boats" for number in range(7)]).ids


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    with joined() as processes:
        encoder, (pixels, ids) = make_tiny(), batch()
        mine = slice(0, 4) if processes.rank == 0 else slice(4, 7)
        image, text = encoder.encode_image(pixels[mine]), encoder.encode_text(ids[mine])
        groups, rows = GROUPS[mine], len(image)
        everything = processes.gather(image)
        loss = hn_clip(
            image, text, encoder.logit_scale(), all_image=everything,
            all_text=processes.gather(text), labels=torch.arange(rows) + processes.offset(rows), groups=groups,
            all_groups=processes.gather(groups),
        ) * (rows * processes.count / len(everything))
        loss.backward()
        processes.average_gradients(encoder.model.parameters())
        mean = processes.mean(loss)

        clip = {}
        for local in (True, False):
            for name, kind in (("theirs", ClipLoss), ("ours", HNClipLoss)):
                v, t = (torch.nn.functional.normalize(values[:3].double(), dim=1).detach().requires_grad_()
                        for values in (image, text))
                options = {"gamma": 0.0} if name == "ours" else {}
                value = kind(local, True, False, processes.rank, processes.count, **options)(v, t, torch.tensor(9.0))
                clip[f"{name} {local}"] = (value.detach(), *torch.autograd.grad(value, (v, t)))
        if processes.first:
            gradients = {name: value.grad for name, value in encoder.model.named_parameters()}
            torch.save({"loss": mean, "gradients": gradients, "clip": clip}, folder / "two.pt")
        processes.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
