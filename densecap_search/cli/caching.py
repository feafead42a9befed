"""The command cache."""

from __future__ import annotations

import click

from densecap_search.cli.terminal import print_table
from densecap_search.files import cache_folder


@click.command()
@click.option("--clear", type=click.Choice(["towers", "pictures", "all"]), help="Remove what towers made; outlines and "
              "small copies of pictures; or everything, also the pictures out of shards, which are unpacked again when "
              "they are missed.")
@click.option("--older", type=click.FloatRange(0), default=0.0, metavar="DAYS", help="Only what is that old.")
@click.option("--model", metavar="F", help="Of the towers only those whose fingerprint, as shown, begins so.")
def cache(clear: str | None, older: float, model: str | None) -> None:
    """Say how large the cache is, and empty it. It lies in $DENSECAP_CACHE, or ~/.cache/densecap.

    \b
    densecap cache
    densecap cache --clear towers --older 30
    densecap cache --clear all
    """
    from densecap_search.workflows.caches import PARTS, cache_sizes, clear_cache

    if clear is None and (older or model):
        raise click.UsageError("--older and --model go with --clear")
    if clear:
        gone = clear_cache(clear, older=older, model=model)
        click.echo(f"{gone / 1e6:.1f} MB removed from {cache_folder()}")
        return
    sizes = cache_sizes()
    if sizes:
        print_table(["what", "MB", "files", "newest, days ago", ""],
                    [[f"{size.part} {size.folder.name[:12]}" if size.part == "towers" else size.part,
                      f"{size.bytes / 1e6:.1f}", str(size.files), f"{size.age:.0f}", PARTS[size.part]]
                     for size in sizes])
    click.echo(f"{sum(size.bytes for size in sizes) / 1e6:.1f} MB in {cache_folder()}")
