"""From a collection to what the training loop takes: splits, groups, batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from torch import Tensor

from densecap_search.collection.records import Collection, Record, Skipped
from densecap_search.collection.splits import Splits, group_numbers, split_collection, take_fraction
from densecap_search.config import RunConfig, TrainConfig
from densecap_search.embedding.cache import Array
from densecap_search.embedding.content import read_contents
from densecap_search.embedding.texts import embed_texts, heads_of, text_rows
from densecap_search.embedding.towers import Opened, image_rows, open_pictures
from densecap_search.errors import CollectionError
from densecap_search.model import tuning
from densecap_search.model.device import free_memory
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.loading import RANDOM
from densecap_search.model.segments import Ints, Truncation, mean_of
from densecap_search.talk import SILENT, Talk
from densecap_search.training.batches import Batches, PixelBatches, RowBatches
from densecap_search.training.distributed import ALONE, Processes
from densecap_search.training.sub_captions import interleaved, runs_of_sentences

KEPT_SHARE = 4  # of the free memory, one part in so many holds decoded pictures


@dataclass(frozen=True)
class TrainingData:
    """What is trained and validated on; all records carry their content."""

    splits: Splits
    batches: Batches
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True)
class _Known:
    """What opening the pictures has left: for heads image_id → tower output, for others content hash → pixels."""

    rows: Mapping[str, Array]
    pixels: Mapping[str, Tensor]


def prepare(collection: Collection, config: RunConfig, train: TrainConfig, encoder: DualEncoder, strict: bool,
            processes: Processes, talk: Talk) -> TrainingData:
    """Splits, groups and batches of the pictures that can be read."""
    readable, unreadable = read_contents(collection.captioned, talk=talk, workers=train.workers)
    opened, known = _open_pictures(readable, train, encoder, processes, talk)
    records, skipped = opened.records, (*collection.skipped, *unreadable, *opened.skipped)
    if strict and skipped:
        raise CollectionError(f"{collection.name}: {len(skipped)} pictures cannot be used, the first: {skipped[0]}; "
                              "mend them or train without --strict")
    if not records:
        first = f"; {len(skipped)} were skipped, the first: {skipped[0]}" if skipped else ""
        raise CollectionError(f"{collection.name} has no picture with a caption that can be opened{first}")
    if not config.data.use_split and not config.data.add:
        records = [replace(record, split=None) for record in records]
    usable = Collection(collection.name, tuple(records), skipped)
    splits = split_collection(usable, val_share=config.data.val_share, test_share=config.data.test_share,
                              seed=config.split_seed)
    offered = splits
    splits = replace(splits, train=take_fraction(splits.train, config.data.fraction, train.seed))
    batches, groups, truncation = _grouped_batches(splits.train, known, config, train, encoder, processes, talk)
    if config.model.pretrained == RANDOM and isinstance(batches, RowBatches):
        tuning.fit_standardisation(encoder, batches.image_rows, batches.text_rows)
    uncaptioned = len(collection) - len(collection.captioned)
    if uncaptioned:
        talk.say(f"{uncaptioned} pictures have no caption and are not trained on")
    if config.data.fraction < 1:
        talk.say(f"{len(splits.train)} of the {len(offered.train)} training pictures are used (data.fraction)")
    unused = len(records) - sum(len(part) for part in (offered.train, offered.val, offered.test))
    if unused:
        names = sorted({str(record.split) for record in records} - {"train", "val", "test", "None"})
        talk.say(f"{unused} pictures are in other splits ({', '.join(names)}) and are not used")
    _tell_about(splits, groups, truncation, batches, int(train.batch_size or 1), talk)
    return TrainingData(splits, batches, skipped)


def fold(train_records: Sequence[Record], val_records: Sequence[Record], config: RunConfig, train: TrainConfig,
         encoder: DualEncoder) -> TrainingData:
    """Another split of pictures that :func:`prepare` has read, for heads: their rows lie in the cache."""
    images = image_rows(encoder, train_records, workers=train.workers)
    rows = {train_records[row].image_id: values for row, values in zip(images.kept, images.rows, strict=True)}
    batches, _, _ = _grouped_batches(train_records, _Known(rows, {}), config, train, encoder, ALONE, SILENT)
    return TrainingData(Splits(tuple(train_records), tuple(val_records), (), "made"), batches, ())


def _grouped_batches(
    records: Sequence[Record], known: _Known, config: RunConfig, train: TrainConfig, encoder: DualEncoder,
    processes: Processes, talk: Talk,
) -> tuple[Batches, list[int], Truncation]:
    """Batches of training records, who is of one group in them, and what is cut off their captions."""
    captions = [caption for record in records for caption in record.captions]
    # of what is read, because what is cut off makes no difference to the model
    groups = group_numbers(records, same_caption=_TokensOf(encoder, captions))
    batches, truncation = _batches(records, captions, groups, known, config, train, encoder, processes, talk)
    return batches, groups, truncation


def _open_pictures(
    readable: Sequence[Record], train: TrainConfig, encoder: DualEncoder, processes: Processes, talk: Talk,
) -> tuple[Opened, _Known]:
    """What can be opened, and what need not be computed again."""
    if train.tune != "heads":  # what cannot be opened must be known before the first step
        room = free_memory() // (KEPT_SHARE * processes.count)
        opened = open_pictures(encoder, readable, keep_bytes=room, workers=train.workers, talk=talk)
        return opened, _Known({}, opened.pixels)
    if processes.count > 1:  # each process encodes its share; then all find all of it in the cache
        image_rows(encoder, list(processes.share(readable)), workers=train.workers, talk=talk)
        processes.wait()
    images = image_rows(encoder, readable, workers=train.workers, talk=talk)
    records = [readable[row] for row in images.kept]
    rows = {record.image_id: row for record, row in zip(records, images.rows, strict=True)}
    return Opened(records, images.skipped, {}), _Known(rows, {})


def _batches(
    records: Sequence[Record], captions: Sequence[str], groups: Sequence[int], known: _Known,
    config: RunConfig, train: TrainConfig, encoder: DualEncoder, processes: Processes, talk: Talk,
) -> tuple[Batches, Truncation]:
    counts = [len(record.captions) for record in records]
    batch_size = int(train.batch_size or 1)
    reference = None
    if train.objective in ("hn_clip", "auto") and train.similarity == "frozen":
        reference, _ = embed_texts(encoder, captions, talk=talk)

    subs = runs_of_sentences(captions, train.seed, encoder.lengths, encoder.context_length) \
        if train.sub_captions else [[] for _ in captions]
    sub_texts, sub_counts = [run for runs in subs for run in runs], np.array([len(runs) for runs in subs], np.int64)

    if train.tune == "heads":
        of_texts = text_rows(encoder, captions, talk=talk)
        rows = of_texts.rows
        if sub_texts:
            more = text_rows(encoder, sub_texts, talk=talk).rows
            rows = np.concatenate([rows, more])[interleaved(of_texts.counts, sub_counts)]
        images = np.stack([known.rows[record.image_id] for record in records])

        def embed(numbers: Ints) -> Array:
            return mean_of(heads_of(encoder, "text", of_texts.rows), of_texts.counts)[numbers]

        made: Batches = RowBatches(counts, groups, batch_size, train.seed, processes, reference,
                                   embed if train.batches == "neighbours" else None, _if_several(of_texts.counts),
                                   sub_counts.tolist() if sub_texts else None, train.sub_captions,
                                   image_rows=images, text_rows=rows)
        return made, of_texts.truncation

    def encode(numbers: Ints) -> Array:
        return embed_texts(encoder, [captions[number] for number in numbers], cached=False)[0]

    segments = encoder.segments(captions)
    texts = [*segments.flat, *sub_texts]
    if sub_texts:
        texts = [texts[number] for number in interleaved(segments.counts, sub_counts)]
    made = PixelBatches(counts, groups, batch_size, train.seed, processes, reference,
                        encode if train.batches == "neighbours" else None, _if_several(segments.counts),
                        sub_counts.tolist() if sub_texts else None, train.sub_captions,
                        encoder=encoder, records=records, texts=texts, workers=train.workers,
                        pixels={record.hash: known.pixels[record.hash] for record in records
                                if record.hash in known.pixels})
    return made, segments.truncation


def _if_several(counts: Ints) -> list[int] | None:
    return counts.tolist() if counts.size and counts.max() > 1 else None


class _TokensOf:
    """A caption → the tokens of it that are read, as a key; all of them are looked up in one go."""

    def __init__(self, encoder: DualEncoder, captions: Sequence[str]) -> None:
        unique = list(dict.fromkeys(captions))
        self._key: dict[str, str] = {}
        for start in range(0, len(unique), 1024):
            block = unique[start:start + 1024]
            segments = encoder.segments(block)
            keys = iter([_token_key(ids) for ids in encoder.tokenize(segments.flat).ids])
            for caption, count in zip(block, segments.counts, strict=True):
                self._key[caption] = "|".join(islice(keys, int(count)))

    def __call__(self, caption: str) -> str:
        return self._key[caption]


def _token_key(ids: Tensor) -> str:
    return bytes(ids[: int(ids.nonzero().max()) + 1 if ids.any() else 0].numpy()).hex()


def _tell_about(splits: Splits, groups: Sequence[int], truncation: Truncation, batches: Batches, batch_size: int,
                talk: Talk) -> None:
    pairs = len(splits.train)
    talk.say(f"train {pairs}, val {len(splits.val)}, test {len(splits.test)} pictures (splits {splits.made})")
    talk.say(str(truncation))
    if len(set(groups)) < pairs:
        talk.say(f"{pairs - len(set(groups))} training pictures share a picture or a caption with another; "
                 "they are never each other's negatives")
    largest = -(-pairs // batches.steps)
    if pairs < batch_size:
        talk.say(f"only {pairs} {'pair' if pairs == 1 else 'pairs'}: the batch size is {largest}, not {batch_size}")
    if largest == 1:
        talk.say("batches of a single pair have no negatives: the loss is 0 and nothing will change")
    if not splits.val:
        talk.say("no validation pictures: nothing is measured meanwhile, and the last checkpoint is kept")


