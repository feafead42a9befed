"""A run's curves as pictures (matplotlib) and, where it is asked for, for TensorBoard and Weights & Biases."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from densecap_search.errors import MissingPackage
from densecap_search.files import write_text

CURVES, DIAGNOSIS = "curves.png", "diagnosis.png"


def draw_run(run: Path, log: Sequence[dict[str, Any]]) -> None:
    """Write RUN/curves.png and, where saturation was measured, RUN/diagnosis.png."""
    from matplotlib.figure import Figure

    epochs = [row for row in log if "epoch" in row]
    measured = [row["diagnose"] for row in log if "diagnose" in row]
    _curves(Figure(figsize=(10, 6), layout="constrained"), epochs).savefig(run / CURVES, dpi=110)
    if measured:
        _diagnosis(Figure(figsize=(10, 8), layout="constrained"), measured).savefig(run / DIAGNOSIS, dpi=110)


def write_tensorboard(run: Path, row: dict[str, Any]) -> None:
    """One epoch's figures as TensorBoard events in RUN/tensorboard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingPackage("train.tensorboard needs the package tensorboard: pip install tensorboard") from error
    with SummaryWriter(run / "tensorboard") as writer:
        for name, value in _named(row):
            writer.add_scalar(name, value, row["epoch"])


@contextmanager
def wandb_writer(run: Path, config: Mapping[str, Any]) -> Iterator[Callable[[dict[str, Any]], None]]:
    """What takes an epoch's figures into RUN/wandb; it stays on this machine unless WANDB_MODE says otherwise.

    config: the run's settings, which are shown beside its figures. A run that is resumed is the same one to wandb.
    """
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # else importing it may already speak to a host
    try:
        import wandb
    except ImportError as error:
        raise MissingPackage("train.wandb needs the package wandb: pip install 'densecap-search[wandb]'") from error
    mode: Any = os.environ.get("WANDB_MODE") or "offline"
    quiet = wandb.Settings(silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True,
                           x_disable_meta=True)
    with wandb.init(project=os.environ.get("WANDB_PROJECT") or "densecap-search", name=run.resolve().name,
                    id=_wandb_id(run), resume="allow", dir=str(run), mode=mode, config=dict(config),
                    allow_val_change=True, settings=quiet) as writer:  # --resume may bring other settings
        # the epoch, not wandb's own count, which takes no epoch a second time after --resume
        writer.define_metric("*", step_metric="epoch")
        yield lambda row: writer.log({"epoch": row["epoch"], **dict(_named(row))})


def _wandb_id(run: Path) -> str:
    file = run / "wandb" / "run-id.txt"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, uuid.uuid4().hex)
    return file.read_text().strip()


def _named(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """An epoch's figures under the names that other programs show."""
    for name in ("loss", "lr", "logit_scale"):
        if row[name] is not None:
            yield name, row[name]
    for direction, figures in (row["val"] or {}).items():
        for metric, value in figures.items():
            yield f"val {direction}/{metric}", value


def _curves(figure: Any, epochs: Sequence[dict[str, Any]]) -> Any:
    panels = figure.subplots(2, 2)
    trained = [row for row in epochs if row["loss"] is not None]
    for panel, name, label in ((panels[0][0], "loss", "training loss, nats"), (panels[0][1], "lr", "learning rate"),
                               (panels[1][1], "logit_scale", "logit_scale s")):
        panel.plot([row["epoch"] for row in trained], [row[name] for row in trained], marker=".")
        panel.set(xlabel="epoch", title=label)
    panel = panels[1][0]
    for direction, label in (("text_to_image", "text→image"), ("image_to_text", "image→text")):
        rows = [row for row in epochs if row["val"]]
        values = [row["val"][direction]["R@1"] for row in rows]
        panel.plot([row["epoch"] for row in rows], values, marker=".", label=label)
    panel.set(xlabel="epoch (0: before training)", title="R@1 on val, percent")
    panel.legend()
    return figure


def _diagnosis(figure: Any, measured: Sequence[dict[str, Any]]) -> Any:
    loss, norm, cosine, captions = figure.subplots(2, 2).ravel()
    steps = [row["step"] for row in measured]
    for name, label in (("info_nce", "InfoNCE"), ("objective", "objective")):
        loss.plot(steps, [max(row[name]["loss"], 1e-12) for row in measured], ".", label=label)
        norm.plot(steps, [max(row[name]["norm"], 1e-30) for row in measured], ".", label=label)
    loss.axhline(1e-3, color="grey", linewidth=1)
    saturated = sum(row["saturated"] for row in measured) / len(measured)
    loss.set(yscale="log", xlabel="step", title=f"loss, nats; InfoNCE < 1e-3 on {100 * saturated:.0f} % of batches")
    norm.set(yscale="log", xlabel="step", title="norm of the gradient")
    cosine.plot(steps, [float("nan") if row["cosine"] is None else row["cosine"] for row in measured], ".")
    cosine.set(xlabel="step", ylim=(-1.05, 1.05), title="cosine of both gradients")
    captions.plot(steps, [row["similarity_mean"] for row in measured], ".", label="mean Ḡ")
    captions.plot(steps, [row["similarity_max"] for row in measured], ".", label="largest Ḡ")
    captions.set(xlabel="step", title="similarity of the batch's captions")
    for panel in (loss, norm, captions):
        panel.legend()
    return figure
