"""Commands about a collection: inspect, export."""

from __future__ import annotations

from pathlib import Path

import click

from densecap_search.cli.options import collection_options, max_pixels_option, model_options, named_model, read
from densecap_search.cli.terminal import print_inspection, tell_skipped, terminal_talk
from densecap_search.config import Reading
from densecap_search.files import check_writable, json_text, write_text


@click.command("inspect")
@click.argument("collection", type=click.Path(path_type=Path))
@model_options
@collection_options
@click.option("--batch-size", type=click.IntRange(2), default=128, show_default=True, help="To predict saturation for.")
@click.option("--logit-scale", type=click.FloatRange(1, 100), help="To predict saturation for. Default: the model's.")
@click.option("--pictures/--no-pictures", default=True, help="Open every picture, or read only the table.")
@max_pixels_option
@click.option("--report", type=click.Path(path_type=Path, dir_okay=False), metavar="F.html", help="Also write a page.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def inspect_collection(collection: Path, model_name: str | None, pretrained: str | None, arch: str | None,
                       prefix: str | None, device: str,
                       reading: Reading, batch_size: int, logit_scale: float | None, pictures: bool,
                       max_pixels: int | None, report: Path | None, as_json: bool) -> None:
    """Look at a collection before training: what is broken or there twice, what splits share, how long captions are.

    With --model also how much its window cuts, how alike it finds the captions, which captions do not fit their
    pictures, and whether InfoNCE will run dry; then it suggests a command. One line is printed for each finding that
    needs repair; --report shows everything.

    \b
    densecap inspect photos/
    densecap inspect table.csv --model starter --report table.html
    densecap inspect table.csv --model starter --batch-size 16 --logit-scale 100 --no-pictures
    """
    talk = terminal_talk()
    if report is not None:
        check_writable(report.absolute().parent)
    read_from = read(collection, reading)
    model = named_model(None, model_name, pretrained, arch, prefix=prefix) if model_name else None

    from densecap_search.inspection.inspect import as_json as as_object  # torch, matplotlib: not before the checks
    from densecap_search.inspection.page import inspection_page
    from densecap_search.workflows import inspect as workflow

    inspection = workflow.inspect_collection(read_from, model, device=device, pictures=pictures, max_pixels=max_pixels,
                                             batch_size=batch_size, logit_scale=logit_scale, talk=talk)
    if as_json:
        click.echo(json_text(as_object(inspection)))
    else:
        print_inspection(inspection, collection)
    if report is not None:
        write_text(report, inspection_page(inspection))
        talk.say(f"The report is {report}.")


@click.command()
@click.argument("collection", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path),
              help="A .jsonl or .csv file, or a folder.")
@click.option("--outside", is_flag=True, help="Into a folder, also copy pictures that lie outside the table's folder.")
@collection_options
def export(collection: Path, output: Path, outside: bool, reading: Reading) -> None:
    """Read any collection and write it again: as JSON Lines, as CSV, or as a folder of pictures with text files.

    Captions arrive exactly as they were. A folder gets copies of the pictures; a table may name any file of this
    machine, so those that lie outside its folder are copied only with --outside, and no file that is no picture.

    \b
    densecap export photos/ -o photos.jsonl
    densecap export table.csv --caption-column beschreibung -o table.csv
    densecap export shards/ --format webdataset -o photos/
    densecap export captions/table.jsonl --images /mnt/photos --outside -o copies/
    """
    from densecap_search.collection.export import export_collection

    read_from = read(collection, reading)
    inside = collection if collection.is_dir() else collection.absolute().parent
    broken = export_collection(read_from, output, inside=None if outside else inside)
    tell_skipped(broken)
    click.echo(f"{len(read_from) - len(broken)} pictures written to {output}")
