"""The command line ``densecap``: parse, call one workflow, print. Workflows are imported inside the commands."""

from __future__ import annotations

import io
import json
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from densecap_search import __version__, config
from densecap_search.errors import ConfigError, DensecapError
from densecap_search.files import check_writable, write_text
from densecap_search.terminal import (
    first_process,
    hit_rows,
    print_epochs,
    print_hits,
    print_inspection,
    print_outcome,
    print_reports,
    print_table,
    tell_skipped,
    terminal_talk,
    write_hits,
)

if TYPE_CHECKING:
    from densecap_search.collection.records import Collection

F = TypeVar("F", bound=Callable[..., Any])


class _Group(click.Group):
    """Errors that a user can mend become one line on stderr and exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except DensecapError as error:
            click.echo(f"Error: {error}", err=True)
            ctx.exit(1)
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            click.echo(f"Error: cannot read or write {place}{error.strerror or error}", err=True)
            ctx.exit(1)
        except KeyboardInterrupt:
            click.echo("Stopped; what was finished is kept.", err=True)
            ctx.exit(1)


def _model_options(command: F) -> F:
    """--model and what goes with it, for commands that encode."""
    for option in reversed((
        click.option("--model", "model_name", metavar="M", help="starter, a run folder, an open_clip name, "
                     "hf-hub:…, local-dir:…, a checkpoint file, or a Hugging Face folder."),
        click.option("--pretrained", metavar="W", help="Weights for an open_clip name: a tag, a file, or random."),
        click.option("--arch", metavar="NAME", help="Architecture of a checkpoint file whose keys do not tell."),
        click.option("--device", type=click.Choice(config.DEVICES), default="auto", show_default=True),
    )):
        command = option(command)
    return command


_resize_option = click.option(
    "--resize", type=click.Choice(config.RESIZES), help="How pictures are brought to the model's size: the middle, all "
    "of it with a border, or all of it out of shape. Default: as the model has it, crop for CLIP.")
_long_text_option = click.option(
    "--long-text", type=click.Choice(config.LONG_TEXT), help="A caption beyond the text window: cut, or split at "
    "sentence ends and scored by the mean or the best segment. Default: as the model has it, mostly cut.")
_max_pixels_option = click.option(
    "--max-pixels", type=click.IntRange(1), metavar="N", help="Larger pictures are skipped, for decoding takes 3 bytes "
    "a pixel. Default: 178956970.")


def _collection_options(command: F) -> F:
    """How to read a collection."""
    for option in reversed((
        click.option("--image-column", metavar="NAME", help="The column that names the picture."),
        click.option("--caption-column", metavar="NAME", help="The column that holds the caption."),
        click.option("--format", metavar="NAME", help="How to read it (coco, docci, webdataset, embedded, …), where "
                     "its content does not tell; a wrong name lists them all."),
        click.option("--hidden", is_flag=True, default=None, help="Also pictures in hidden files and folders."),
    )):
        command = option(command)
    return command


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="densecap")
def main() -> None:
    """Fine-tune CLIP on pictures with long captions, index them, and search them in your own words.

    \b
    densecap demo                                   see it all on a generated archive
    densecap finetune photos/ -o runs/mine          fine-tune on a folder with side files, or a table
    densecap index photos/ --model runs/mine -o indexes/mine
    densecap search indexes/mine "two red boats before a lighthouse at dawn, …"
    densecap serve indexes/mine                     the same in a page
    densecap evaluate photos/ --model runs/mine     retrieval figures on the test split
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # redirected on Windows, it may not know the arrow in text→image
            stream.reconfigure(errors="replace")


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default="densecap-demo")
@click.option("--bursts", type=click.IntRange(12), default=180, show_default=True, help="Bursts of near-duplicates.")
@click.option("--seed", type=int, default=0, show_default=True)
def demo(folder: Path, bursts: int, seed: int) -> None:
    """Generate an archive, fine-tune the starter on it, index it, and show what changed.

    Everything is written below FOLDER (default: densecap-demo).

    \b
    densecap demo
    densecap demo /tmp/demo --bursts 60
    """
    from densecap_search.experiments.demo import run_demo

    outcome = run_demo(folder, bursts=bursts, seed=seed, talk=terminal_talk())
    print_reports([outcome.before, outcome.after], ["starter", "fine-tuned"])
    click.echo(f"\nA test caption:\n  {outcome.query}\nfinds its picture at rank {outcome.rank} of {outcome.pictures}.")
    place = shlex.quote(str(outcome.index))
    click.echo(f"\nDone in {outcome.seconds:.0f} s. Now open the page:\n  densecap serve {place}")


@main.command("inspect")
@click.argument("collection", type=click.Path(path_type=Path))
@_model_options
@_collection_options
@click.option("--batch-size", type=click.IntRange(2), default=128, show_default=True, help="To predict saturation for.")
@click.option("--logit-scale", type=click.FloatRange(1, 100), help="To predict saturation for. Default: the model's.")
@click.option("--pictures/--no-pictures", default=True, help="Open every picture, or read only the table.")
@_max_pixels_option
@click.option("--report", type=click.Path(path_type=Path, dir_okay=False), metavar="F.html", help="Also write a page.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def inspect_collection(collection: Path, model_name: str | None, pretrained: str | None, arch: str | None, device: str,
                       image_column: str | None, caption_column: str | None, format: str | None,
                       hidden: bool | None, batch_size: int, logit_scale: float | None, pictures: bool,
                       max_pixels: int | None, report: Path | None, as_json: bool) -> None:
    """Look at a collection before training: what is broken or there twice, what splits share, how long captions are.

    With --model also how much its window cuts, how alike it finds the captions, and whether InfoNCE will run dry; then
    it suggests settings. One line is printed for each finding that needs repair; --report shows everything.

    \b
    densecap inspect photos/
    densecap inspect table.csv --model starter --report table.html
    densecap inspect table.csv --model starter --batch-size 16 --logit-scale 100 --no-pictures
    """
    from densecap_search.evaluation import inspect
    from densecap_search.evaluation.geometry import look_at_captions
    from densecap_search.evaluation.inspect_page import inspection_page
    from densecap_search.retrieval.pictures import look_at_pictures

    talk = terminal_talk()
    if report is not None:
        check_writable(report.absolute().parent)
    found = _read(collection, image_column, caption_column, format, hidden)
    geometry = None
    files = look_at_pictures(found.records, max_pixels=max_pixels, talk=talk) if pictures else None
    if model_name and found.captioned:
        from densecap_search.model.sources import load_encoder

        model = _model(None, model_name, pretrained, arch)
        encoder = load_encoder(**model, device=device)
        scale = logit_scale or encoder.logit_scale().item()
        geometry = look_at_captions(found, encoder, model=model["name"], batch_size=batch_size, logit_scale=scale,
                                    talk=talk)
    inspection = inspect.inspect(found, files, geometry)
    if as_json:
        click.echo(json.dumps(inspect.as_json(inspection), ensure_ascii=False))
    else:
        print_inspection(inspection)
    if report is not None:
        write_text(report, inspection_page(inspection))
        talk.say(f"The report is {report}.")


@main.command()
@click.argument("collection", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path),
              help="A .jsonl or .csv file, or a folder.")
@_collection_options
def export(collection: Path, output: Path, image_column: str | None, caption_column: str | None, format: str | None,
           hidden: bool | None) -> None:
    """Read any collection and write it again: as JSON Lines, as CSV, or as a folder of pictures with text files.

    Captions arrive exactly as they were. A folder gets copies of the pictures.

    \b
    densecap export photos/ -o photos.jsonl
    densecap export table.csv --caption-column beschreibung -o table.csv
    densecap export shards/ --format webdataset -o photos/
    """
    from densecap_search.collection.export import export_collection

    found = _read(collection, image_column, caption_column, format, hidden)
    export_collection(found, output)
    click.echo(f"{len(found)} pictures written to {output}")


@main.command()
@click.argument("collection", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The run folder to make.")
@click.option("--config", "config_file", type=click.Path(path_type=Path, dir_okay=False), help="Settings in YAML.")
@_model_options
@_collection_options
@click.option("--objective", type=click.Choice(config.OBJECTIVE_NAMES), help="Default: hn_clip.")
@click.option("--gamma", type=float, help="Margin per caption similarity. Default: 0.5.")
@click.option("--late-interaction", type=float, metavar="L", help="Add L times the loss of patches and words.")
@click.option("--tune", metavar="|".join(config.TUNE_FORMS), help="What trains; N: blocks of each tower.")
@click.option("--batch-size", type=int, help="Pairs that are each other's negatives.")
@click.option("--micro-batch", type=int, help="Pairs in memory at once; the batch stays as large as it is.")
@click.option("--batches", type=click.Choice(config.BATCHES), help="neighbours: captions that are alike together.")
@click.option("--epochs", type=int)
@click.option("--lr", type=float, help="Peak learning rate.")
@click.option("--context-length", type=int, help="Text window in tokens. Default: 248 for CLIP's text towers.")
@_long_text_option
@_resize_option
@_max_pixels_option
@click.option("--checkpoint", type=click.Choice(["best", "last"]), help="Keep the best on validation, or the last.")
@click.option("--interpolate", metavar="A", help="Weights A·tuned + (1 - A)·original; or auto, chosen on val.")
@click.option("--diagnose", type=int, metavar="N", help="Measure saturation every N steps.")
@click.option("--precision", type=click.Choice(config.PRECISIONS))
@click.option("--seed", type=int)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any key of the settings file.")
@click.option("--resume", is_flag=True, help="Continue the run in the folder.")
@click.option("--strict", is_flag=True, help="A picture that cannot be used is an error.")
def finetune(collection: Path, output: Path, config_file: Path | None, resume: bool, strict: bool,
             settings: tuple[str, ...], **options: Any) -> None:
    """Fine-tune a model on a collection; the run folder then is a model for every other command.

    COLLECTION is a folder of pictures with text files of the same name, or a CSV, TSV, JSONL or JSON table.
    Pictures are split by the column `split`, or 10 % val and 10 % test are set aside.

    \b
    densecap finetune photos/ -o runs/mine
    densecap finetune table.csv --config configs/vit-b-16.yaml -o runs/b16
    densecap finetune table.csv --model ViT-B-16 --pretrained openai --batch-size 64 -o runs/b16
    densecap finetune table.csv --model starter --objective info_nce --set train.lr=5e-4 -o runs/plain
    densecap finetune table.csv --model ViT-B-16 --pretrained openai --batch-size 1024 --micro-batch 16 -o runs/large
    densecap finetune table.csv --resume -o runs/b16

    Under torchrun all processes share the work:
    torchrun --nproc-per-node 4 -m densecap_search finetune table.csv --config configs/vit-b-16.yaml -o runs/b16
    """
    from densecap_search.training.loop import CONFIG
    from densecap_search.training.loop import finetune as run_finetune

    overrides = [(_SETTING_OF_OPTION[name], value) for name, value in options.items()
                 if value is not None and not (name == "device" and value == "auto")]
    overrides += [config.parse_setting(text) for text in settings]
    if resume:
        chosen = _resumed_config(output / CONFIG, config_file, overrides)
    else:
        chosen = config.load_config(config_file, overrides)
    found = _read(collection, chosen.data.image_column, chosen.data.caption_column, chosen.data.format,
                  chosen.data.hidden)
    summary = run_finetune(found, chosen, output, resume=resume, strict=strict, talk=terminal_talk())
    if not first_process():
        return
    tell_skipped(summary.skipped[len(found.skipped):])
    if summary.zero_shot and summary.kept:
        rows = [("before", summary.zero_shot.figures), (f"epoch {summary.kept_epoch}", summary.kept.figures)]
        print_epochs(rows[: 2 if summary.kept_epoch else 1])
    if summary.zero_shot and summary.kept_epoch == 0:
        click.echo("No epoch was better on validation than the model before training: that one was kept.")
    if summary.saturated is not None:
        click.echo(f"InfoNCE was solved (below 0.001) on {100 * summary.saturated:.0f} % of the measured batches.")
    if summary.interpolation is not None:
        click.echo(f"The kept weights are {summary.interpolation.alpha:g} of the tuned ones.")
    table, run, place = (shlex.quote(str(path)) for path in (collection, output, Path("indexes") / output.name))
    click.echo(f"{summary.steps} steps in {summary.seconds:.0f} s. The model is {output}. Next:\n"
               f"  densecap evaluate {table} --model {run}\n  densecap index {table} --model {run} -o {place}")


_SETTING_OF_OPTION = {
    "model_name": "model.name", "pretrained": "model.pretrained", "arch": "model.arch",
    "context_length": "model.context_length", "image_column": "data.image_column",
    "caption_column": "data.caption_column", "format": "data.format", "hidden": "data.hidden",
    "resize": "model.resize", "long_text": "model.long_text", "max_pixels": "data.max_pixels",
    "objective": "train.objective",
    "gamma": "train.gamma", "late_interaction": "train.late_interaction",
    "tune": "train.tune", "batch_size": "train.batch_size", "micro_batch": "train.micro_batch",
    "batches": "train.batches", "interpolate": "train.interpolate", "diagnose": "train.diagnose",
    "epochs": "train.epochs", "lr": "train.lr",
    "checkpoint": "train.checkpoint", "precision": "train.precision", "device": "train.device", "seed": "train.seed",
}


def _resumed_config(saved: Path, config_file: Path | None, overrides: list[tuple[str, Any]]) -> config.RunConfig:
    """The run's own settings; what is given again must agree with them."""
    if not saved.is_file():
        raise ConfigError(f"{saved.parent} holds no run: there is nothing to resume; train without --resume")
    before = config.load_config(saved)
    again = config.load_config(saved if config_file is None else config_file, overrides)
    differing = [
        f"{section}.{key} is {getattr(getattr(before, section), key)}, not {value}"
        for section, values in asdict(again).items() for key, value in values.items()
        if getattr(getattr(before, section), key) != value
    ]
    if differing:
        raise ConfigError(f"--resume continues the run as it was begun, where {'; '.join(differing)}; "
                          "leave these options out, or train anew into another folder")
    return before


@main.command()
@click.argument("collection", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The index folder.")
@_model_options
@_collection_options
@click.option("--type", "kind", type=click.Choice(["auto", *config.INDEX_NAMES]), default="auto", show_default=True,
              help="flat is exact; hnsw, a graph for very many pictures, is not. auto: as it is, or flat.")
@_resize_option
@_max_pixels_option
@click.option("--precision", type=click.Choice(config.PRECISIONS), default="auto", show_default=True)
@click.option("--strict", is_flag=True, help="A picture that cannot be used is an error.")
def index(collection: Path, output: Path, model_name: str | None, pretrained: str | None, arch: str | None,
          device: str, image_column: str | None, caption_column: str | None, format: str | None, hidden: bool | None,
          kind: str, resize: str | None, max_pixels: int | None, precision: str, strict: bool) -> None:
    """Make an index of a collection or a folder of pictures, or bring it up to date.

    Run again, it encodes only pictures that are new or changed, and drops those that are gone.

    \b
    densecap index photos/ --model runs/mine -o indexes/mine
    densecap index table.csv --model starter -o indexes/table
    densecap index panoramas/ --model starter --resize pad --max-pixels 600000000 -o indexes/panoramas
    """
    from densecap_search.files import check_writable
    from densecap_search.model.sources import load_encoder
    from densecap_search.retrieval.indexing import encode_share, update_index
    from densecap_search.training.distributed import joined

    talk = terminal_talk()
    found = _read(collection, image_column, caption_column, format, hidden)
    model = _model(output, model_name, pretrained, arch, resize)
    check_writable(output)
    encoder = load_encoder(**model, device=device, precision=precision, max_pixels=max_pixels)
    talk.say(f"{model['name']}, {encoder.precision}; {len(found)} pictures")
    started = time.monotonic()
    with joined() as processes:
        if processes.count > 1:
            encode_share(processes.share(found.records), encoder, talk=talk)
            processes.wait()
        if not processes.first:
            return
    summary = update_index(found, encoder, model, output, kind=None if kind == "auto" else kind, strict=strict,
                           talk=talk)
    tell_skipped(summary.skipped[len(found.skipped):])
    if summary.rebuilt_for:
        click.echo(f"The index was built by {summary.rebuilt_for}; it has been built anew by {model['name']}.")
    state = "written" if summary.changed else "up to date"
    click.echo(f"{output}: {len(summary.index.entries)} pictures {state} ({summary.encoded} encoded, "
               f"{summary.reused} kept, {summary.removed} removed, {len(summary.skipped)} skipped) "
               f"in {time.monotonic() - started:.1f} s")


def _model(index_folder: Path | None, name: str | None, pretrained: str | None, arch: str | None,
           resize: str | None = None) -> dict[str, Any]:
    """The keywords of load_encoder; without --model those of the index that is being updated."""
    from densecap_search.retrieval.index import is_index, load_index

    if name is None:
        if pretrained or arch or resize:
            raise ConfigError("--pretrained, --arch and --resize go with --model")
        if index_folder is not None and is_index(index_folder):
            return load_index(index_folder).manifest.model
        raise ConfigError("say which model with --model: starter, a run folder, or an open_clip name")
    if Path(name).expanduser().exists():
        name = str(Path(name).expanduser().resolve())
    given = {"pretrained": pretrained, "arch": arch, "resize": resize}
    return {"name": name.strip(), **{key: value for key, value in given.items() if value}}


@main.command()
@click.argument("index_folder", metavar="INDEX", type=click.Path(path_type=Path))
@click.argument("caption", required=False)
@click.option("--image", type=click.Path(path_type=Path, dir_okay=False), help="Search by a picture.")
@click.option("--queries", type=click.Path(path_type=Path, dir_okay=False),
              help="A text file with a caption a line, or a JSON list of captions.")
@click.option("-k", "k", type=click.IntRange(1), default=10, show_default=True, help="Hits for each query.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Write the hits to a .csv or .jsonl.")
@click.option("--json", "as_json", is_flag=True, help="One hit a line, as JSON.")
@_model_options
@_long_text_option
@_max_pixels_option
def search(index_folder: Path, caption: str | None, image: Path | None, queries: Path | None, k: int,
           output: Path | None, as_json: bool, model_name: str | None, pretrained: str | None, arch: str | None,
           device: str, long_text: str | None, max_pixels: int | None) -> None:
    """Find the pictures of an index that a caption describes.

    \b
    densecap search indexes/mine "a red bus at the far left, before a brick house with green shutters"
    densecap search indexes/mine --queries captions.txt -k 50 --output hits.csv
    densecap search indexes/mine --image photo.jpg
    """
    from densecap_search.retrieval.searcher import open_searcher

    if sum(value is not None for value in (caption, image, queries)) != 1:
        raise click.UsageError("give one of: a caption, --image FILE, --queries FILE")
    if output and output.suffix.lower() not in (".csv", ".jsonl"):
        raise click.UsageError(f"--output must end in .csv or .jsonl, not {output.name}")
    model = _model(None, model_name, pretrained, arch) if model_name else None
    searcher = open_searcher(index_folder, model=model, device=device, long_text=long_text, max_pixels=max_pixels)
    if image is not None:
        results = [(str(image), searcher.by_image(image, k))]
    else:
        captions = [caption] if caption is not None else _read_queries(queries)
        hits, truncation = searcher.by_captions(captions, k)
        if truncation.longer:
            click.echo(str(truncation), err=True)
        results = list(zip(captions, hits, strict=True))
    if output:
        write_hits(output, results)
        count = sum(len(hits) for _, hits in results)
        click.echo(f"{count} hits of {len(results)} queries written to {output}", err=True)
    if as_json:
        for row in hit_rows(results):
            click.echo(json.dumps(row, ensure_ascii=False))
    elif not output:
        for query, found in results:
            print_hits(query, found, titled=len(results) > 1)


def _read_queries(path: Path | None) -> list[str]:
    from densecap_search.collection.text_files import decode

    assert path is not None
    try:
        text = decode(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read the queries {path}: {error.strerror}") from error
    if "\0" in text:
        raise ConfigError(f"{path} is not a text file; give a caption a line, or a JSON list of captions")
    if text.lstrip().startswith("["):
        try:
            captions = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{path} is not a JSON list: {error}") from error
        if not all(isinstance(caption, str) for caption in captions):
            raise ConfigError(f"{path} must be a JSON list of texts")
    else:
        captions = [line.rstrip("\r") for line in text.split("\n") if line.strip()]
    if not captions:
        raise ConfigError(f"{path} holds no query")
    return list(captions)


@main.command()
@click.argument("collection", type=click.Path(path_type=Path))
@_model_options
@_collection_options
@click.option("--against", multiple=True, metavar="M2", help="Another model, compared on the same queries.")
@_long_text_option
@_resize_option
@_max_pixels_option
@click.option("--split", "split", default="test", show_default=True, help="One or several names (val,test), or all.")
@click.option("--slice", "slices", multiple=True, metavar="COLUMN",
              help="Also by words, truncated, hardness, or a column of the table. May be given again.")
@click.option("--index", "index_folder", type=click.Path(path_type=Path, file_okay=False),
              help="Also through this index's own search.")
@click.option("--retain", type=click.Path(path_type=Path), metavar="COLLECTION",
              help="Another collection, with the model and the one before: what fine-tuning has cost there.")
@click.option("--precision", type=click.Choice(config.PRECISIONS), default="fp32", show_default=True)
@click.option("--report", type=click.Path(path_type=Path, dir_okay=False), help="Write a page (.html) or tables (.md).")
@click.option("--per-query", type=click.Path(path_type=Path, dir_okay=False), help="Write a row a query (.csv).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a model.")
def evaluate(collection: Path, model_name: str | None, pretrained: str | None, arch: str | None, device: str,
             image_column: str | None, caption_column: str | None, format: str | None, hidden: bool | None,
             against: tuple[str, ...], long_text: str | None, resize: str | None, max_pixels: int | None, split: str,
             slices: tuple[str, ...], index_folder: Path | None, retain: Path | None, precision: str,
             report: Path | None, per_query: Path | None, as_json: bool) -> None:
    """Measure retrieval in both directions: R@1, R@5, R@10, MRR and median rank; more in the report and the JSON.

    \b
    densecap evaluate photos/ --model runs/mine
    densecap evaluate table.csv --model runs/mine --against starter --split val,test
    densecap evaluate table.csv --model runs/mine --against starter --report report.html --per-query queries.csv
    densecap evaluate table.csv --model runs/mine --slice words --slice place
    densecap evaluate table.csv --model runs/mine --retain other.csv --index indexes/mine
    densecap evaluate table.csv --model ViT-B-16 --pretrained openai --split all --json
    """
    from densecap_search.evaluation.per_query import write_per_query
    from densecap_search.evaluation.report import write_report
    from densecap_search.evaluation.slices import BUILT_IN
    from densecap_search.experiments.measurement import run_evaluation

    for path, suffixes in ((report, (".html", ".md")), (per_query, (".csv",))):
        if path and path.suffix.lower() not in suffixes:
            raise click.UsageError(f"{path.name} must end in {' or '.join(suffixes)}")
    models = [_model(None, model_name, pretrained, arch, resize), *({"name": name} for name in against)]
    outcome = run_evaluation(
        _read(collection, image_column, caption_column, format, hidden), models, device=device, precision=precision,
        splits=[name.strip() for name in split.split(",") if name.strip()], index=index_folder,
        slices=(*slices, *(BUILT_IN if report else ())), long_text=long_text, max_pixels=max_pixels,
        talk=terminal_talk(),
        retain=_read(retain, None, None, None, None) if retain else None,
    )
    tell_skipped(outcome.reports[0].skipped)
    if report:
        write_report(report, outcome)
        click.echo(f"The report is {report}", err=True)
    if per_query:
        write_per_query(per_query, outcome.reports)
    if as_json:
        for found in outcome.as_json():
            click.echo(json.dumps(found, ensure_ascii=False))
        return
    print_outcome(outcome, sliced=slices)


@main.command("experiment")
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
    from densecap_search.experiments import grid, report
    from densecap_search.experiments.plan import load_experiment
    from densecap_search.experiments.results import summarise

    found = load_experiment(config_file).with_changes(
        dict(_place(text) for text in places), [config.parse_setting(text) for text in settings])
    runs = found.runs()
    if dry_run:
        print_table(["setting", "arm", "seed", "trains on", "folder"],
                    [[run.cell, run.arm, str(run.seed), run.collection, run.folder] for run in runs])
        click.echo(f"{len(runs)} runs; tested on {', '.join(found.tests_of(found.train_on))}.\n{found.notes}")
        return
    folder = output or Path("runs") / config_file.stem
    outcomes = grid.run_experiment(found, folder, talk=terminal_talk())
    rows = summarise(outcomes, found.baseline, found.expect)
    report.write_reports(found, rows, outcomes, folder)
    if as_json:
        for row in rows:
            click.echo(json.dumps(row.as_json(), ensure_ascii=False))
        return
    for title, own in report.tables(rows).items():
        click.echo(f"\n{title}. Δ is against {found.baseline}. {report.warning_of(own)}")
        print_table(report.header(own), [report.cells(row, own) for row in own])
    click.echo(f"\nWith curves: {folder / 'results.html'}; tables: results.md, results.csv, results.json")


def _place(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not equals or not path:
        raise ConfigError(f"--collection takes NAME=PATH, not {text!r}")
    return name, path


@main.command()
@click.argument("index_folder", metavar="INDEX", type=click.Path(path_type=Path))
@_model_options
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(1, 65535), default=7860, show_default=True)
@_long_text_option
def serve(index_folder: Path, model_name: str | None, pretrained: str | None, arch: str | None, device: str,
          host: str, port: int, long_text: str | None) -> None:
    """Open a page that searches an index.

    \b
    densecap serve indexes/mine
    densecap serve indexes/mine --host 0.0.0.0 --port 8080
    """
    from densecap_search.retrieval.searcher import open_searcher
    from densecap_search.ui.app import launch

    model = _model(None, model_name, pretrained, arch) if model_name else None
    searcher = open_searcher(index_folder, model=model, device=device, long_text=long_text)
    app = launch(searcher, host=host, port=port)
    click.echo(f"{len(searcher.index.entries)} pictures; open {app.local_url} (Ctrl-C ends)", err=True)
    app.block_thread()


@main.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object a model.")
def models(as_json: bool) -> None:
    """List what can be named with --model, and which weights are on this machine.

    \b
    densecap models
    densecap models --json
    """
    from densecap_search.model.catalogue import list_models

    rows = list_models()
    if as_json:
        for row in rows:
            click.echo(json.dumps(asdict(row)))
        return
    print_table(["model", "--pretrained", "on this machine"],
           [[row.name, ", ".join(row.pretrained), ", ".join(row.present) or "-"] for row in rows])
    click.echo("Also: a run folder, a checkpoint file (--arch where its keys do not tell), a Hugging Face folder, "
               "hf-hub:…, local-dir:….")


def _read(path: Path, image_column: str | None, caption_column: str | None, format: str | None,
          hidden: bool | None) -> Collection:
    from densecap_search.collection.readers import read_collection

    found = read_collection(path, image_column=image_column, caption_column=caption_column, format=format,
                            hidden=bool(hidden))
    tell_skipped(found.skipped)
    if not found.records:
        raise DensecapError(f"{path} holds no picture that can be used; "
                            f"{len(found.skipped)} were skipped" if found.skipped else f"{path} holds no pictures")
    return found
