"""The command evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from densecap_search import config
from densecap_search.cli.options import (
    check_index,
    collection_options,
    long_text_option,
    max_pixels_option,
    model_options,
    named_model,
    read,
    resize_option,
)
from densecap_search.cli.terminal import print_modes, print_outcome, tell_skipped, terminal_talk
from densecap_search.errors import DensecapError
from densecap_search.files import json_text

if TYPE_CHECKING:
    from densecap_search.collection.records import Collection


@click.command()
@click.argument("collection", type=click.Path(path_type=Path))
@model_options
@collection_options
@click.option("--against", multiple=True, metavar="M2", help="Another model, compared on the same queries.")
@long_text_option
@resize_option
@max_pixels_option
@click.option("--split", "split", default="test", show_default=True, help="One or several names (val,test), or all.")
@click.option("--gallery", type=click.Choice(["split", "all"]), default="split", show_default=True,
              help="What is searched: the pictures of the split, or all, as an index of the collection has them.")
@click.option("--among", type=click.Path(path_type=Path), metavar="PATH", help="What is searched instead: another "
              "collection or an index. Default for answers to searches: the index that they lie beside.")
@click.option("--slice", "slices", multiple=True, metavar="COLUMN",
              help="Also by words, truncated, hardness, or a column of the table. May be given again.")
@click.option("--index", "index_folder", type=click.Path(path_type=Path, file_okay=False),
              help="Also through this index's own search.")
@click.option("--retain", type=click.Path(path_type=Path), metavar="COLLECTION",
              help="Another collection, with the model and the one before: what fine-tuning has cost there.")
@click.option("--mode", type=click.Choice(["image", "text", "words", "fused", "all"]), default=None,
              help="By what pictures are ranked: their vectors, their captions' vectors, the words of their captions, "
              "or the sum. Default: image; with --protocol all.")
@click.option("--protocol", type=click.Choice(["captions", "halves"]), default=None,
              help="What asks where captions are searched: the first of several captions, or every other sentence; the "
              "rest is what is found. Default: what fits the collection.")
@click.option("--precision", type=click.Choice(config.PRECISIONS), default="fp32", show_default=True)
@click.option("--report", type=click.Path(path_type=Path, dir_okay=False), help="Write a page (.html) or tables (.md).")
@click.option("--per-query", type=click.Path(path_type=Path, dir_okay=False), help="Write a row a query (.csv).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a model.")
def evaluate(collection: Path, model_name: str | None, pretrained: str | None, arch: str | None,
             prefix: str | None, device: str,
             reading: config.Reading, against: tuple[str, ...], long_text: str | None, resize: str | None,
             max_pixels: int | None, split: str, gallery: str, among: Path | None, slices: tuple[str, ...],
             index_folder: Path | None, retain: Path | None, mode: str | None, protocol: str | None, precision: str,
             report: Path | None, per_query: Path | None, as_json: bool) -> None:
    """Measure retrieval in both directions: R@1, R@5, R@10, MRR and median rank; more in the report and the JSON.

    \b
    densecap evaluate photos/ --model runs/mine
    densecap evaluate table.csv --model runs/mine --against starter --split val,test
    densecap evaluate table.csv --model runs/mine --against starter --report report.html --per-query queries.csv
    densecap evaluate table.csv --model runs/mine --gallery all
    densecap evaluate table.csv --model runs/mine --slice words --slice place
    densecap evaluate table.csv --model runs/mine --retain other.csv --index indexes/mine
    densecap evaluate table.csv --model ViT-B-16 --pretrained openai --split all --json
    densecap evaluate table.csv --model starter --split all --protocol halves
    densecap evaluate indexes/mine.feedback.jsonl --model runs/taught --against starter
    """
    by_captions = protocol is not None or mode not in (None, "image")
    if by_captions and (slices or index_folder or retain or report or per_query):
        raise click.UsageError("--protocol and --mode print their own table: leave out --slice, --index, --retain, "
                               "--report and --per-query")
    for path, suffixes in ((report, (".html", ".md")), (per_query, (".csv",))):
        if path and path.suffix.lower() not in suffixes:
            raise click.UsageError(f"{path.name} must end in {' or '.join(suffixes)}")
    if retain and gallery == "all":
        raise click.UsageError("--retain compares within the splits; leave out --gallery all, or ask for it apart")
    models = [named_model(None, model_name, pretrained, arch, resize, prefix=prefix),
              *(config.ModelConfig(name).resolved() for name in against)]
    read_from = read(collection, reading)
    taught = read_from.format == "feedback"
    if taught and by_captions:
        raise click.UsageError("answers to searches are no descriptions that could be taken apart; leave out --mode "
                               "and --protocol")
    gallery_of = _gallery_of(collection, among, taught)
    retained = read(retain) if retain else None
    if index_folder is not None:
        check_index(str(index_folder))

    wanted = [name.strip() for name in split.split(",") if name.strip()]
    if by_captions:
        from densecap_search.workflows.evaluate import run_modes

        reports = run_modes(read_from, models, splits=wanted, protocol=protocol, whole_gallery=gallery == "all",
                            precision=precision, device=device, long_text=long_text, max_pixels=max_pixels,
                            talk=terminal_talk())
        tell_skipped(reports[0].skipped)
        for each in reports:
            if as_json:
                click.echo(json_text(each.as_json()))
            else:
                print_modes(each, "all" if mode is None else mode)
        return

    from densecap_search.evaluation.outcome import few_questions
    from densecap_search.evaluation.per_query import write_per_query  # torch: not before all that is checked without
    from densecap_search.evaluation.report import write_report
    from densecap_search.evaluation.slices import BUILT_IN
    from densecap_search.workflows.evaluate import run_evaluation

    outcome = run_evaluation(
        read_from, models, device=device, precision=precision,
        splits=wanted, index=index_folder, gallery=gallery,
        slices=(*slices, *(BUILT_IN if report else ())), long_text=long_text, max_pixels=max_pixels,
        talk=terminal_talk(), retain=retained, among=gallery_of,
    )
    tell_skipped(outcome.reports[0].skipped[len(read_from.skipped):])
    if taught and (few := few_questions(outcome.reports[0])):
        click.echo(few, err=True)
    if report:
        write_report(report, outcome)
        click.echo(f"The report is {report}", err=True)
    if per_query:
        write_per_query(per_query, outcome.reports)
    if as_json:
        for row in outcome.as_json():
            click.echo(json_text(row))
        return
    print_outcome(outcome, sliced=slices)


def _gallery_of(collection: Path, among: Path | None, taught: bool) -> Collection | None:
    """What is searched in place of the collection's own pictures."""
    from densecap_search.collection.feedback import index_beside
    from densecap_search.retrieval.index_folder import is_index

    place = index_beside(collection) if taught and among is None else among
    if place is None:
        return None
    if is_index(place):
        from densecap_search.workflows.index import indexed_collection

        return indexed_collection(place)
    if among is None:
        raise DensecapError(f"the index {place} is not there; say with --among which pictures are searched")
    return read(place)
