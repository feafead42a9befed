"""Whether a published model, loaded by the library it is for, gives the vectors of the encoder it was made from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from densecap_search.errors import ModelError
from densecap_search.model.encoder import DualEncoder

Array = npt.NDArray[np.float32]
LEAST_COSINE = {"fp32": 0.9999, "fp16": 0.999, "int8": 0.9}  # below it something else than rounding is wrong


@dataclass(frozen=True)
class Loaded:
    """A published model in the hands of its library: upright RGB pictures and captions → rows [N, D]."""

    library: str
    pictures: Callable[[Sequence[Image.Image]], Array]
    captions: Callable[[Sequence[str]], Array]


@dataclass(frozen=True)
class Agreement:
    """Cosines of the library's vectors to the encoder's own, of each picture and each caption."""

    library: str
    pictures: tuple[float, ...]
    captions: tuple[float, ...]

    @property
    def least(self) -> float:
        """The lowest of all cosines."""
        return min(self.pictures + self.captions)

    def __str__(self) -> str:
        return (f"{self.library} gives the vectors of the run: cosine at least {min(self.pictures):.6f} on "
                f"{len(self.pictures)} pictures, {min(self.captions):.6f} on {len(self.captions)} captions")


def compare(encoder: DualEncoder, loaded: Loaded, pictures: Sequence[Image.Image],
            captions: Sequence[str]) -> Agreement:
    """Encode the same pictures and captions with both."""
    with torch.inference_mode():
        image = encoder.encode_image(torch.stack([encoder.preprocess(picture) for picture in pictures]))
        text = encoder.encode_text(encoder.tokenize(captions).ids)
    return Agreement(loaded.library, cosines(image.cpu().numpy(), loaded.pictures(pictures)),
                     cosines(text.cpu().numpy(), loaded.captions(captions)))


def require(agreement: Agreement, dtype: str) -> None:
    """ModelError where the vectors are further apart than rounding to dtype explains."""
    if agreement.least < LEAST_COSINE[dtype]:
        raise ModelError(f"{agreement.library} makes other vectors of the published model (least cosine "
                         f"{min(agreement.pictures):.4f} on pictures, {min(agreement.captions):.4f} on captions); "
                         "nothing was written; choose another --as")


def cosines(a: Array, b: Array) -> tuple[float, ...]:
    """Of rows a [N, D] with rows b [N, E]; the narrower ones are filled up with zeros, which changes no cosine."""
    width = max(a.shape[1], b.shape[1])
    wide = [np.pad(rows.astype(np.float64), ((0, 0), (0, width - rows.shape[1]))) for rows in (a, b)]
    lengths = [np.linalg.norm(rows, axis=1) for rows in wide]
    return tuple(float(value) for value in (wide[0] * wide[1]).sum(axis=1) / (lengths[0] * lengths[1]))
