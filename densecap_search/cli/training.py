"""Commands that train: finetune, experiment."""

from __future__ import annotations

import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from densecap_search import config
from densecap_search.cli.options import (
    collection_options,
    long_text_option,
    max_pixels_option,
    model_options,
    read,
    resize_option,
)
from densecap_search.cli.terminal import (
    first_process,
    print_epochs,
    print_table,
    print_trials,
    seconds_so_far,
    tell_skipped,
    terminal_talk,
)
from densecap_search.errors import ConfigError
from densecap_search.files import json_text


@click.command()
@click.argument("collection", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The run folder to make.")
@click.option("--config", "config_file", type=click.Path(path_type=Path, dir_okay=False), help="Settings in YAML.")
@model_options
@collection_options
@click.option("--add", type=click.Path(resolve_path=True, dir_okay=False), multiple=True, metavar="FEEDBACK",
              help="Answers to searches that the page of an index has kept: their questions are captions too, but "
              "those of two pictures in five, which are held out to be asked.")
@click.option("--objective", type=click.Choice(config.OBJECTIVE_NAMES), help="Default: auto, which is chosen by "
              "evidence before training, without the test split; hn_clip where --gamma is given.")
@click.option("--gamma", type=float, help="Margin per caption similarity, of hn_clip. Default there: 0.5.")
@click.option("--late-interaction", type=float, metavar="L", help="Add L times the loss of patches and words.")
@click.option("--tune", metavar="|".join(config.TUNE_FORMS), help="What trains; N: blocks of each tower.")
@click.option("--batch-size", type=int, help="Pairs that are each other's negatives.")
@click.option("--micro-batch", type=int, help="Pairs in memory at once; the batch stays as large as it is.")
@click.option("--batches", type=click.Choice(config.BATCHES), help="neighbours: captions that are alike together.")
@click.option("--epochs", type=int)
@click.option("--lr", type=float, help="Peak learning rate.")
@click.option("--context-length", type=int, help="Text window in tokens. Default: 248 for CLIP's text towers.")
@long_text_option
@resize_option
@max_pixels_option
@click.option("--checkpoint", type=click.Choice(["best", "last"]), help="Keep the best on validation, or the last.")
@click.option("--interpolate", metavar="A", help="Weights A·tuned + (1 - A)·original; or auto, chosen on val.")
@click.option("--diagnose", type=int, metavar="N", help="Measure saturation every N steps.")
@click.option("--precision", type=click.Choice(config.PRECISIONS))
@click.option("--seed", type=int)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any key of the settings file.")
@click.option("--resume", is_flag=True, help="Continue the run in the folder; where its loss was no "
              "longer finite, with another --lr or --precision.")
@click.option("--strict", is_flag=True, help="A picture that cannot be used is an error.")
def finetune(collection: Path, output: Path, config_file: Path | None, resume: bool, strict: bool,
             settings: tuple[str, ...], reading: config.Reading, **options: Any) -> None:
    """Fine-tune a model on a collection; the run folder then is a model for every other command.

    COLLECTION is a folder of pictures with text files of the same name, or a CSV, TSV, JSONL or JSON table.
    Pictures are split by the column `split`, or 10 % val and 10 % test are set aside.

    \b
    densecap finetune photos/ -o runs/mine
    densecap finetune table.csv --config configs/vit-b-16.yaml -o runs/b16
    densecap finetune table.csv --model ViT-B-16 --pretrained openai --batch-size 64 -o runs/b16
    densecap finetune table.csv --model starter --objective info_nce --set train.lr=5e-4 -o runs/plain
    densecap finetune table.csv --model ViT-B-16 --pretrained openai --batch-size 1024 --micro-batch 16 -o runs/large
    densecap finetune table.csv --add indexes/mine.feedback.jsonl -o runs/taught
    densecap finetune table.csv --resume -o runs/b16

    Under torchrun all processes share the work:
    torchrun --nproc-per-node 4 -m densecap_search finetune table.csv --config configs/vit-b-16.yaml -o runs/b16
    """
    overrides = [(_SETTING_OF_OPTION[name], value) for name, value in options.items()
                 if value not in (None, ()) and not (name == "device" and value == "auto")]
    overrides += [(f"data.{name}", value) for name, value in asdict(reading).items() if value]
    overrides += [config.parse_setting(text) for text in settings]
    if resume:
        from densecap_search.training.run_folder import CONFIG, was_stopped

        chosen = _resumed_config(output / CONFIG, config_file, overrides, was_stopped(output))
    else:
        chosen = config.load_config(config_file, overrides)
    read_from = read(collection, chosen.data.reading, strict=strict)

    from densecap_search.training.loop import finetune as run_finetune  # torch: not before all that is checked without

    summary = run_finetune(read_from, chosen, output, resume=resume, strict=strict, talk=terminal_talk())
    if not first_process():
        return
    tell_skipped(summary.skipped[len(read_from.skipped):])
    if summary.zero_shot and summary.kept:
        rows = [("before", summary.zero_shot.figures), (f"epoch {summary.kept_epoch}", summary.kept.figures)]
        print_epochs(rows[: 2 if summary.kept_epoch else 1])
    if summary.zero_shot and summary.kept_epoch == 0:
        click.echo("No epoch was better on validation than the model before training: that one was kept.")
    if summary.choice is not None and summary.choice.trials:
        print_trials(summary.choice)
    if summary.saturated is not None:
        click.echo(f"InfoNCE was solved (below 0.001) on {100 * summary.saturated:.0f} % of the measured batches.")
    if summary.interpolation is not None:
        click.echo(f"The kept weights are {summary.interpolation.alpha:g} of the tuned ones.")
    table, run, place = (shlex.quote(str(path)) for path in (collection, output, Path("indexes") / output.name))
    click.echo(f"{summary.steps} steps, done in {seconds_so_far():.0f} s. The model is {output}. Next:\n"
               f"  densecap evaluate {table} --model {run}\n  densecap index {table} --model {run} -o {place}")


_SETTING_OF_OPTION = {
    "model_name": "model.name", "pretrained": "model.pretrained", "arch": "model.arch", "prefix": "model.prefix",
    "context_length": "model.context_length",
    "resize": "model.resize", "long_text": "model.long_text", "max_pixels": "data.max_pixels",
    "objective": "train.objective",
    "gamma": "train.gamma", "late_interaction": "train.late_interaction",
    "tune": "train.tune", "batch_size": "train.batch_size", "micro_batch": "train.micro_batch",
    "batches": "train.batches", "interpolate": "train.interpolate", "diagnose": "train.diagnose",
    "add": "data.add", "epochs": "train.epochs", "lr": "train.lr",
    "checkpoint": "train.checkpoint", "precision": "train.precision", "device": "train.device", "seed": "train.seed",
}


def _resumed_config(saved: Path, config_file: Path | None, overrides: list[tuple[str, Any]], stopped: bool
                    ) -> config.RunConfig:
    """The run's own settings; what is given again must agree with them.

    stopped: by a loss that was not finite: the next attempt may have what can mend that.
    """
    if not saved.is_file():
        raise ConfigError(f"{saved.parent} holds no run: there is nothing to resume; train without --resume")
    before = _with_places(config.load_config(saved))
    again = _with_places(config.load_config(saved if config_file is None else config_file, overrides))
    if stopped:
        before = replace(before, train=replace(before.train, lr=again.train.lr, precision=again.train.precision))
    settled = again.train.objective == "auto"  # by the run when it was begun
    differing = [
        f"{section}.{key} is {getattr(getattr(before, section), key)}, not {value}"
        for section, values in asdict(again).items() for key, value in values.items()
        if getattr(getattr(before, section), key) != value and not (settled and key in ("objective", "gamma"))
    ]
    if differing:
        raise ConfigError(f"--resume continues the run as it was begun, where {'; '.join(differing)}; "
                          "leave these options out, or train anew into another folder")
    return before


def _with_places(settings: config.RunConfig) -> config.RunConfig:
    """With the model's place as a run keeps it: absolute."""
    return replace(settings, model=settings.model.resolved())


@click.command("experiment")
@click.argument("config_file", metavar="CONFIG", type=click.Path(path_type=Path, dir_okay=False))
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False),
              help="Where its runs and results go. Default: runs/ and the name of the file.")
@click.option("--collection", "places", multiple=True, metavar="NAME=PATH", help="Where one of its collections lies.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting for every run.")
@click.option("--dry-run", is_flag=True, help="Check everything and list the runs; do nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a row of the results.")
def run_experiments(config_file: Path, output: Path | None, places: tuple[str, ...], settings: tuple[str, ...],
                    dry_run: bool, as_json: bool) -> None:
    """Train a grid of objectives, settings, fractions and seeds, and compare them in one table.

    Begun again, it continues. Epochs are chosen on validation; the test splits are read once, after the last run.

    \b
    densecap experiment configs/experiments/scenes.yaml --dry-run
    densecap experiment configs/experiments/ids_ade.yaml --collection ids-ade=captions.jsonl -o runs/ids
    """
    from densecap_search.experiments import grid, results_page
    from densecap_search.experiments.plan import load_experiment
    from densecap_search.experiments.results import summarise

    experiment = load_experiment(config_file).with_changes(
        dict(_place(text) for text in places), [config.parse_setting(text) for text in settings])
    runs = experiment.runs()
    if dry_run:
        print_table(["setting", "arm", "seed", "trains on", "folder"],
                    [[run.cell, run.arm, str(run.seed), run.collection, run.folder] for run in runs])
        tests = ", ".join(experiment.tests_of(experiment.train_on))
        click.echo(f"{len(runs)} runs; tested on {tests}.\n{experiment.notes}")
        return
    folder = output or Path("runs") / config_file.stem
    outcomes = grid.run_experiment(experiment, folder, talk=terminal_talk())
    rows = summarise(outcomes, experiment.baseline, experiment.expect)
    results_page.write_reports(experiment, rows, outcomes, folder)
    if as_json:
        for row in rows:
            click.echo(json_text(row.as_json()))
        return
    for title, own in results_page.tables(rows).items():
        click.echo(f"\n{title}. Δ is against {experiment.baseline}. {results_page.warning_of(own)}")
        print_table(results_page.header(own), [results_page.cells(row, own) for row in own])
    click.echo(f"\nWith curves: {folder / 'results.html'}; tables: results.md, results.csv, results.json")


def _place(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not equals or not path:
        raise ConfigError(f"--collection takes NAME=PATH, not {text!r}")
    return name, path
