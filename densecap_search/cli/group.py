"""The group ``densecap``: what a user can mend becomes one line on stderr and an exit code."""

from __future__ import annotations

import io
import sys
import time
from typing import Any

import click

from densecap_search import __version__
from densecap_search.cli.memory import keep_freed_memory
from densecap_search.cli.terminal import STARTED
from densecap_search.errors import DensecapError


class Group(click.Group):
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


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
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
    keep_freed_memory()
    click.get_current_context().meta[STARTED] = time.monotonic()
