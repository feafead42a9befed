"""Window, objective and batch size for a collection, each with the measurement that it follows from."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from densecap_search.collection.records import Record
from densecap_search.config import DataConfig, TrainConfig
from densecap_search.inspection.geometry import WINDOWS, Geometry, Prediction
from densecap_search.inspection.pair_fit import PairFit
from densecap_search.model.segments import Truncation

CUT_AT_MOST = 5.0  # percent of the captions that a window may cut
BATCHES_AN_EPOCH = 16  # at least so many: fewer steps an epoch teach little between two validations
LARGEST_BATCH, SMALLEST_BATCH = 512, 16


@dataclass(frozen=True)
class Suggestion:
    """words: what to put behind ``densecap finetune``; reason: one sentence."""

    words: str
    reason: str


def suggest(records: Sequence[Record], geometry: Geometry | None, fit: PairFit | None = None
            ) -> tuple[Suggestion, ...]:
    """What the measurements speak for; without a model only the batch size. records: captioned ones.

    The objective follows from the pictures' own vectors, so it is left open where they were not encoded.
    """
    batch = _batch_size(count_training(records), geometry)
    window = () if geometry is None else (_window(geometry),)
    return (*window, *(() if geometry is None or fit is None else (_objective(geometry, fit),)), batch)


def count_training(records: Sequence[Record]) -> int:
    """How many of the captioned records ``finetune`` would train on, with its default shares of val and test."""
    splits = [record.split or "train" for record in records]
    count = splits.count("train")
    if all(record.split is None for record in records):
        return round(count * (1 - DataConfig().val_share - DataConfig().test_share))
    return count if "val" in splits else round(count * (1 - DataConfig().val_share))


def cut_share(truncation: Truncation) -> float:
    """Share of captions longer than the window, percent."""
    return 100 * truncation.truncated / max(1, truncation.captions)


def _window(geometry: Geometry) -> Suggestion:
    longest = geometry.longest_window or max(WINDOWS)
    possible = [window for window in geometry.windows if window.context_length <= longest]
    if not possible or (longest not in WINDOWS and cut_share(possible[-1]) >= CUT_AT_MOST):
        return Suggestion(f"--context-length {longest}", f"{geometry.model} can be given no longer window")
    chosen = next((window for window in possible if cut_share(window) < CUT_AT_MOST), possible[-1])
    share = cut_share(chosen)
    shorter = [window for window in possible if window.context_length < chosen.context_length]
    reason = f"{share:.1f} % of the captions are longer than {chosen.context_length} tokens"
    if share >= CUT_AT_MOST:
        reason += ", and no longer window is usual or possible"
    elif shorter:
        reason += f"; {shorter[-1].context_length} would cut {cut_share(shorter[-1]):.1f} %"
    else:
        reason += ", and a shorter window is faster"
    return Suggestion(f"--context-length {chosen.context_length}", reason)


def _objective(geometry: Geometry, fit: PairFit) -> Suggestion:
    where = (f"InfoNCE is solved on {fit.solved:.0f} % of batches of {fit.batch_size} of these pictures and captions "
             f"at logit_scale {fit.logit_scale:.0f}, before any training")
    default = ("; without --objective finetune tries the candidates itself, where only heads train, and takes what "
               "validation says" if TrainConfig().objective == "auto" else
               f"; finetune's own is {TrainConfig().objective}")
    if fit.solved < 10:
        return Suggestion("--objective info_nce", f"{where}, so there is nothing yet for a margin to mend{default}")
    gamma = 0.5 if fit.solved >= 50 else 0.25
    margin = f"{gamma * geometry.mean:.2f} ± {gamma * geometry.deviation:.2f}"
    return Suggestion(f"--objective hn_clip --gamma {gamma:g}",
                      f"{where}; captions are {geometry.mean:.2f} ± {geometry.deviation:.2f} alike, so the margin that "
                      f"keeps it teaching is {margin} in cosine{default}")


def _batch_size(training: int, geometry: Geometry | None) -> Suggestion:
    size = SMALLEST_BATCH
    while 2 * size <= LARGEST_BATCH and 2 * size * BATCHES_AN_EPOCH <= training:
        size *= 2
    steps = max(1, round(training / size))
    reason = f"{training} training pictures make {steps} such {'batch' if steps == 1 else 'batches'} an epoch"
    if geometry is not None:
        scale = geometry.predictions[0].logit_scale
        cells = [(cell, _prediction(geometry, cell, scale)) for cell in (SMALLEST_BATCH, size)]
        if size > SMALLEST_BATCH and all(solved is not None for _, solved in cells):
            shares = ", of ".join(f"{cell} {solved:.0f} %" for cell, solved in cells)
            reason += ("; were pictures where their captions are, InfoNCE would be solved on this share of batches of "
                       + shares)
    return Suggestion(f"--batch-size {size}", reason + "; --micro-batch makes it fit into memory")


def _prediction(geometry: Geometry, batch_size: int, logit_scale: float) -> float | None:
    def fits(cell: Prediction) -> bool:
        return cell.batch_size == batch_size and cell.logit_scale == logit_scale
    return next((cell.solved for cell in geometry.predictions if fits(cell)), None)


def command(model: str | None, suggestions: Sequence[Suggestion], collection: str = "COLLECTION") -> str:
    """All of it as one line to paste."""
    words = ["densecap finetune", shlex.quote(collection), *([f"--model {shlex.quote(model)}"] if model else []),
             *(item.words for item in suggestions), "-o runs/mine"]
    return " ".join(words)
