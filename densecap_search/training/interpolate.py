"""Between the model before and after: α·tuned + (1 − α)·original.

Fine-tuning on one collection costs retrieval on others; weights on the line between both often keep most of both.
Source: Wortsman et al. 2022, arXiv:2109.01903.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from densecap_search.collection.readers import read_collection
from densecap_search.collection.records import Record
from densecap_search.config import ModelConfig, RunConfig, TrainConfig
from densecap_search.embedding.content import read_contents
from densecap_search.errors import ConfigError
from densecap_search.evaluation.pairs import PairRows, mean_recall_at_1, pair_rows
from densecap_search.files import hash_file, write_json
from densecap_search.model import checkpoint
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.loading import load_encoder
from densecap_search.talk import SILENT, Talk
from densecap_search.training.data import TrainingData

ALPHAS = tuple(step / 10 for step in range(11))
CURVE = "interpolation.json"


@dataclass(frozen=True)
class Curve:
    """Mean R@1 of both directions, percent, by α: on val and, where one was named, on the retention collection.

    tuned: hash of the run's weights file before it was mixed; while the file has it, it is still to be mixed.
    """

    alpha: float  # the one that was taken
    alphas: tuple[float, ...]
    val: tuple[float, ...]
    retain: tuple[float, ...] | None
    tuned: str | None = None


def snapshot(encoder: DualEncoder) -> dict[str, Tensor]:
    """The weights as they are now, on the CPU."""
    return {name: value.detach().cpu().clone() for name, value in encoder.model.state_dict().items()}


def mix(original: Mapping[str, Tensor], tuned: Mapping[str, Tensor], alpha: float) -> dict[str, Tensor]:
    """α·tuned + (1 − α)·original, tensor by tensor; what did not change stays exactly as it was."""
    return {
        name: torch.lerp(value.float(), tuned[name].float(), alpha).to(value.dtype)
        if value.is_floating_point() else tuned[name]
        for name, value in original.items()
    }


def apply(run: Path, original: Mapping[str, Tensor], config: RunConfig, train: TrainConfig, data: TrainingData,
          talk: Talk) -> Curve:
    """Give the run's checkpoint the weights of the α that was asked for, or of the best of ALPHAS.

    Once: the choice is written first, with the hash of the weights that it is for. A resumed run finds by it whether
    the weights have been mixed, whenever a kill came.
    """
    weights = run / checkpoint.WEIGHTS
    curve = read_curve(run)
    if curve is not None and curve.tuned != hash_file(weights):
        return curve
    encoder = load_encoder(ModelConfig(str(run.absolute())), device=train.device, precision=train.precision,
                           max_pixels=config.data.max_pixels)
    tuned = snapshot(encoder)
    if curve is None:
        chosen = Curve(float(train.interpolate), (), (), None) if train.interpolate not in ("auto", None) else _choose(
            encoder, original, tuned, config, train, data, talk)
        curve = replace(chosen, tuned=hash_file(weights))
        write_json(run / CURVE, asdict(curve))
    encoder.model.load_state_dict(mix(original, tuned, curve.alpha))
    checkpoint.save_weights(encoder, run)
    talk.say(f"interpolated: {curve.alpha:g} of the tuned weights, {1 - curve.alpha:g} of the original ones")
    return curve


def read_curve(run: Path) -> Curve | None:
    """What :func:`apply` chose for a run; None where it has not chosen yet."""
    if not (run / CURVE).exists():
        return None
    saved = json.loads((run / CURVE).read_text(encoding="utf-8"))
    retain = saved["retain"]
    return Curve(saved["alpha"], tuple(saved["alphas"]), tuple(saved["val"]), retain and tuple(retain),
                 saved.get("tuned"))  # of an earlier version: it wrote the choice after the weights


Figures = dict[str, dict[str, float]]  # direction → metric → value


def measure_mixtures(
    encoder: DualEncoder, original: Mapping[str, Tensor], tuned: Mapping[str, Tensor],
    sets: Mapping[str, Sequence[Record]], *, cached: bool, workers: int | None = None, talk: Talk = SILENT,
) -> dict[str, list[Figures]]:
    """Retrieval on several sets of records (read before) at every α of ALPHAS; by name of the set.

    cached: whether the towers are the same in all mixtures. The encoder is left with the last one's weights.
    """
    curves: dict[str, list[Figures]] = {name: [] for name in sets}
    rows: dict[str, PairRows] = {}
    for alpha in talk.each(ALPHAS, "interpolating", len(ALPHAS), "mixtures"):
        encoder.model.load_state_dict(mix(original, tuned, alpha))
        for name, records in sets.items():
            if not cached or name not in rows:
                rows[name] = pair_rows(encoder, records, cached=cached, workers=workers)
            curves[name].append(rows[name].pairs(encoder).mean_figures())
    return curves


def _choose(encoder: DualEncoder, original: Mapping[str, Tensor], tuned: Mapping[str, Tensor], config: RunConfig,
            train: TrainConfig, data: TrainingData, talk: Talk) -> Curve:
    if not data.splits.val:
        raise ConfigError("train.interpolate auto needs validation pictures to choose by; give a number")
    sets: dict[str, Sequence[Record]] = {"val": data.splits.val}
    if config.data.retain:
        retained = read_collection(Path(config.data.retain)).captioned
        sets["retain"], _ = read_contents(retained, workers=train.workers)
    measured = measure_mixtures(encoder, original, tuned, sets, cached=train.tune == "heads", workers=train.workers,
                                talk=talk)
    recalls = {name: [mean_recall_at_1(figures) for figures in curve] for name, curve in measured.items()}
    total = [sum(values) for values in zip(*recalls.values(), strict=True)]
    best = max(range(len(ALPHAS)), key=lambda number: (total[number], ALPHAS[number]))
    return Curve(ALPHAS[best], ALPHAS, tuple(recalls["val"]), tuple(recalls["retain"]) if "retain" in recalls else None)
