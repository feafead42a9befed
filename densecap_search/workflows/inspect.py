"""`densecap inspect` from a collection, and perhaps the name of a model, to an Inspection."""

from __future__ import annotations

from collections.abc import Sequence

from densecap_search.collection.records import Collection
from densecap_search.config import ModelConfig
from densecap_search.embedding.content import with_contents
from densecap_search.inspection.crops import Crop, look_for_crops
from densecap_search.inspection.geometry import look_at_captions
from densecap_search.inspection.inspect import Inspection, inspect
from densecap_search.inspection.pair_fit import look_at_pairs
from densecap_search.inspection.pictures import look_at_pictures
from densecap_search.talk import SILENT, Talk


def inspect_collection(collection: Collection, model: ModelConfig | None = None, *, device: str = "auto",
                       pictures: bool = True, max_pixels: int | None = None, batch_size: int = 128,
                       logit_scale: float | None = None, talk: Talk = SILENT) -> Inspection:
    """What is in a collection and what needs repair.

    pictures: open every picture; without it the table alone is read. model: also how it finds the captions, and with
    pictures which of them do not fit; batch_size and logit_scale (None: the model's own) say for which training.
    """
    geometry = fit = None
    crops: Sequence[Crop] = ()
    if model is not None:
        from densecap_search.model.loading import load_encoder  # open_clip: seconds that a look without a model saves

        encoder = load_encoder(model, device=device)
        scale = logit_scale or encoder.logit_scale().item()
        if pictures:  # once for all three that look at the files
            collection = with_contents(collection, collection.records, talk=talk)
    files = look_at_pictures(collection.records, max_pixels=max_pixels, talk=talk) if pictures else None
    if model is not None and collection.captioned:
        geometry = look_at_captions(collection, encoder, model=model.name, batch_size=batch_size, logit_scale=scale,
                                    talk=talk)
        if pictures:
            fit = look_at_pairs(collection, encoder, model=model.name, batch_size=batch_size, logit_scale=scale,
                                talk=talk)
    if model is not None and pictures:
        crops = look_for_crops(collection.records, encoder, talk=talk)
    return inspect(collection, files, geometry, fit, crops)
