"""The group ``densecap``: what a user can mend becomes one line on stderr and an exit code."""

from __future__ import annotations

import errno
import io
import socket
import sys
import time
from pathlib import Path
from typing import Any

import click

from densecap_search import __version__
from densecap_search.cli.memory import keep_freed_memory
from densecap_search.cli.terminal import STARTED
from densecap_search.errors import DensecapError
from densecap_search.files import cache_folder
from densecap_search.talk import printable


class Group(click.Group):
    """Errors that a user can mend become one line on stderr and exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except DensecapError as error:
            click.echo(f"Error: {printable(str(error))}", err=True)
            ctx.exit(1)
        except BrokenPipeError:
            raise  # whoever read our output has enough (`| head`): click ends quietly
        except OSError as error:
            sentence = sentence_of(error)
            if sentence is None:
                raise
            click.echo(f"Error: {printable(sentence)}", err=True)
            ctx.exit(1)
        except KeyboardInterrupt:
            click.echo("Stopped; what was finished is kept.", err=True)
            ctx.exit(1)


def sentence_of(error: OSError) -> str | None:
    """What a user can mend of an error of the system; None where it is none of files, disks and networks."""
    if isinstance(error, (ConnectionError, TimeoutError, socket.gaierror)):
        return f"the network does not answer ({error.strerror or error}); try again, or use what is on this machine"
    if error.errno == errno.ENOSPC:
        place = f": cannot write {error.filename}" if error.filename else ""
        return f"the disk is full{place}; make room and run it again"
    place = str(error.filename or "")
    if place and Path(place).is_relative_to(cache_folder()):
        return f"cannot use the cache {place}: {error.strerror}; DENSECAP_CACHE can place it elsewhere"
    if place:
        return f"cannot read or write {place}: {error.strerror or error}"
    return None


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
            stream.reconfigure(errors="backslashreplace")
    keep_freed_memory()
    click.get_current_context().meta[STARTED] = time.monotonic()
