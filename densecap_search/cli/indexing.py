"""The command index: make an index, bring it up to date, and look after it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from densecap_search import config
from densecap_search.cli.options import (
    collection_options,
    max_pixels_option,
    model_options,
    named_model,
    read,
    resize_option,
)
from densecap_search.cli.terminal import print_table, seconds_so_far, tell_skipped, terminal_talk
from densecap_search.talk import Talk

if TYPE_CHECKING:
    from densecap_search.retrieval.index import ImageIndex
    from densecap_search.retrieval.update import IndexSummary

ASKED_RECALL = 0.95


@click.command()
@click.argument("collection", type=click.Path(path_type=Path), required=False)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The index folder.")
@model_options
@collection_options
@click.option("--type", "kind", type=click.Choice(["auto", *config.INDEX_NAMES]),
              help="flat looks at every vector; the others are for very many pictures and may miss some. auto chooses "
                   "by their number and this machine's memory, and says why. Default: as it is, auto for a new index.")
@resize_option
@max_pixels_option
@click.option("--precision", type=click.Choice(config.PRECISIONS), default="auto", show_default=True,
              help="auto: what the index has; for a new one the quickest on this machine that returns fp32's vectors "
                   "(cosine 0.999 on average), tried where there are many pictures.")
@click.option("--strict", is_flag=True, help="A picture that cannot be used is an error.")
@click.option("--store", metavar="STORE", help="Where the vectors go: faiss (files in the index folder) or "
              "milvus:URI[#NAME], a .db file or http://HOST:PORT; $DENSECAP_MILVUS_TOKEN logs in. Default: where they "
              "are, faiss for a new index.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--add", is_flag=True, help="Beside the collections that the index holds.")
@click.option("--name", metavar="NAME", help="What the collection is called in the index. Default: as its folder.")
@click.option("--prune", is_flag=True, help="Much of what the index holds is gone for good, or is to be replaced.")
@click.option("--rebuild", is_flag=True, help="Encode every picture anew.")
@click.option("--undo", is_flag=True, help="Go back to the index as it was before its last change.")
@click.option("--list", "listed", is_flag=True, help="Show the collections of the index.")
@click.option("--remove", metavar="NAME", help="Take a collection out of the index.")
@click.option("--check", is_flag=True, help="Read every byte of the index and say whether it is as it was written.")
def index(collection: Path | None, output: Path, model_name: str | None, pretrained: str | None, arch: str | None,
          prefix: str | None,
          device: str, reading: config.Reading, kind: str | None, resize: str | None, max_pixels: int | None,
          precision: str, strict: bool, store: str | None, dry_run: bool, add: bool, name: str | None, prune: bool,
          rebuild: bool, undo: bool, listed: bool, remove: str | None, check: bool) -> None:
    """Make an index of a collection or a folder of pictures, or bring it up to date.

    Run again, it looks at the files' sizes and times, encodes only pictures that are new or changed, and drops those
    that are gone.

    \b
    densecap index photos/ --model runs/mine -o indexes/mine
    densecap index photos/ -o indexes/mine --dry-run
    densecap index scans/table.csv -o indexes/mine --add --name scans
    densecap index photos/ -o indexes/mine --store milvus:http://milvus.lan:19530
    densecap index --list -o indexes/mine
    densecap index --undo -o indexes/mine
    densecap index panoramas/ --model starter --resize pad --max-pixels 600000000 -o indexes/panoramas
    """
    talk = terminal_talk()
    if sum((collection is not None, undo, listed, remove is not None, check)) != 1:
        raise click.UsageError("give one of: a collection, --list, --remove NAME, --undo, --check")
    if listed:
        _list(output, talk)
    elif undo:
        _undo(output, talk)
    elif remove is not None:
        _remove(output, remove, talk)
    elif check:
        _check(output, talk)
    if collection is None:
        return
    from densecap_search.files import check_writable

    model = named_model(output, model_name, pretrained, arch, resize, prefix=prefix)
    read_from = read(collection, _with_corrections(reading, output), strict=strict)
    check_writable(output)

    from densecap_search.retrieval.update import Wanted, encode_share, preview_update
    from densecap_search.training.distributed import joined
    from densecap_search.workflows.index import encoder_for, index_collection

    wanted = Wanted(kind, name, add, prune, rebuild, strict, collection, max_pixels, trust_files=True,
                    store=store)
    if dry_run:
        click.echo(f"{output}: {preview_update(read_from, model, output, wanted, talk=talk)}; nothing was written")
        return
    with joined() as processes:
        load = cache(partial(encoder_for, read_from, model, output, precision=precision, device=device,
                             max_pixels=max_pixels, rebuild=rebuild, trial=processes.count == 1, talk=talk))
        if processes.count > 1:
            encode_share(processes.share(read_from.records), load(), talk=talk)
            processes.wait()
        if not processes.first:
            return
    made = index_collection(read_from, load, model, output, wanted, talk=talk)
    tell_skipped(made.pictures.skipped[len(read_from.skipped):])
    _tell(output, made.pictures, model.name)
    if made.captions is not None:
        click.echo(str(made.captions.calibration))


def _with_corrections(reading: config.Reading, output: Path) -> config.Reading:
    """The captions that were corrected on the index's page, which lie beside it, unless others were named."""
    from densecap_search.collection.corrections import corrections_file

    beside = corrections_file(output)
    return replace(reading, corrections=str(beside)) if reading.corrections is None and beside.is_file() else reading


def _tell(output: Path, summary: IndexSummary, model: str) -> None:
    manifest = summary.index.manifest
    if summary.rebuilt_for:
        click.echo(f"The index was built by {summary.rebuilt_for}; it has been built anew by {model}.")
    if summary.changed and manifest.reason:
        click.echo(f"type {manifest.index_type}: {manifest.reason}")
    made = manifest.approximation
    if summary.changed and made and made.recall is not None:
        doubt = "" if made.recall >= ASKED_RECALL else "; another --type may find more, and flat finds all"
        click.echo(f"{made.kind} finds {100 * made.recall:.1f} % of the exact first ten ({made.queries} as queries)"
                   f"{doubt}")
    state = "written" if summary.changed else "up to date"
    encoded = f"{summary.encoded} new, {summary.cached} of them from the cache" if summary.cached else (
        f"{summary.encoded} encoded")
    click.echo(f"{output}: {len(summary.index)} pictures {state} ({encoded}, "
               f"{summary.reused} kept, {summary.removed} removed, {len(summary.skipped)} skipped) "
               f"in {seconds_so_far():.1f} s")


def _list(output: Path, talk: Talk) -> None:
    from densecap_search.retrieval.index import load_index

    held = load_index(output, talk=talk)
    counts = dict(held.rows.query("SELECT source, count(*) FROM pictures GROUP BY source"))
    rows = [[origin.name, str(counts.get(origin.name, 0)), origin.place or "-"] for origin in held.manifest.origins]
    print_table(["collection", "pictures", "read from"], rows)
    click.echo(f"{output}: {_described(held)}")


def _described(held: ImageIndex) -> str:
    store = f", in {held.manifest.store.place}" if held.manifest.store else ""
    return (f"{len(held)} pictures by {held.manifest.model.name}, type {held.manifest.index_type}, "
            f"{held.place.name}{store}")


def _undo(output: Path, talk: Talk) -> None:
    from densecap_search.locks import locked
    from densecap_search.retrieval.index import load_index
    from densecap_search.retrieval.index_folder import current_place, undo
    from densecap_search.retrieval.writing import publish_store

    current_place(output)
    with locked(output, "densecap index --undo"):
        undo(output)
        publish_store(output, load_index(output, talk=talk).manifest)
    click.echo(f"{output} is as it was: {_described(load_index(output, talk=talk))}")


def _remove(output: Path, name: str, talk: Talk) -> None:
    from densecap_search.retrieval.update import remove_collection

    click.echo(f"{output} without {name}: {_described(remove_collection(output, name, talk=talk))}")


def _check(output: Path, talk: Talk) -> None:
    from densecap_search.retrieval.index import load_index

    held = load_index(output, talk=talk)
    held.check_files()
    click.echo(f"{output} is as it was written: {_described(held)}")
