"""Commands that use an index: search, serve."""

from __future__ import annotations

import json
from pathlib import Path

import click

from densecap_search.cli.options import (
    check_index,
    long_text_option,
    max_pixels_option,
    model_options,
    named_model,
    where_option,
)
from densecap_search.cli.terminal import (
    hit_rows,
    print_hits,
    write_hits,
)
from densecap_search.errors import ConfigError
from densecap_search.files import json_text, read_bytes


@click.command()
@click.argument("index_folder", metavar="INDEX", type=click.Path(path_type=Path))
@click.argument("caption", required=False)
@click.option("--image", type=click.Path(path_type=Path, dir_okay=False), help="Search by a picture.")
@click.option("--queries", type=click.Path(path_type=Path, dir_okay=False),
              help="A text file with a caption a line, or a JSON list of captions.")
@where_option
@click.option("-k", "k", type=click.IntRange(1), default=10, show_default=True, help="Hits for each query.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Write the hits to a .csv or .jsonl.")
@click.option("--json", "as_json", is_flag=True, help="One hit a line, as JSON.")
@model_options
@long_text_option
@max_pixels_option
def search(index_folder: Path, caption: str | None, image: Path | None, queries: Path | None, where: str | None,
           k: int, output: Path | None, as_json: bool, model_name: str | None, pretrained: str | None,
           arch: str | None, device: str, long_text: str | None, max_pixels: int | None) -> None:
    """Find the pictures of an index that a caption describes.

    \b
    densecap search indexes/mine "a red bus at the far left, before a brick house with green shutters"
    densecap search indexes/mine --queries captions.txt -k 50 --output hits.csv
    densecap search indexes/mine --image photo.jpg
    densecap search indexes/mine "a tram in the rain" --where "year >= 1990 and place = 'Lyon'"
    """
    if sum(value is not None for value in (caption, image, queries)) != 1:
        raise click.UsageError("give one of: a caption, --image FILE, --queries FILE")
    if output and output.suffix.lower() not in (".csv", ".jsonl"):
        raise click.UsageError(f"--output must end in .csv or .jsonl, not {output.name}")
    model = named_model(None, model_name, pretrained, arch) if model_name else None
    captions = [caption] if caption is not None else _read_queries(queries) if queries is not None else []
    check_index(index_folder)
    if where is not None:
        from densecap_search.retrieval.filters import parse_filter

        parse_filter(where)

    from densecap_search.retrieval.searcher import open_searcher  # torch: not before all that can be checked without

    searcher = open_searcher(index_folder, model=model, device=device, long_text=long_text, max_pixels=max_pixels)
    if image is not None:
        results = [(str(image), searcher.by_image(image, k, where))]
    else:
        hits, truncation = searcher.by_captions(captions, k, where)
        if truncation.longer:
            click.echo(str(truncation), err=True)
        results = list(zip(captions, hits, strict=True))
    if output:
        write_hits(output, results)
        count = sum(len(hits) for _, hits in results)
        click.echo(f"{count} hits of {len(results)} queries written to {output}", err=True)
    if as_json:
        for row in hit_rows(results):
            click.echo(json_text(row))
    elif not output:
        for query, found in results:
            print_hits(query, found, titled=len(results) > 1)


QUERIES_BYTES = 1 << 28  # of a file of queries


def _read_queries(path: Path) -> list[str]:
    from densecap_search.collection.text_files import decode

    try:
        text = decode(read_bytes(path, QUERIES_BYTES))
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


@click.command()
@click.argument("index_folder", metavar="INDEX", type=click.Path(path_type=Path))
@model_options
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen; 0.0.0.0: on every network of "
              "this machine, which asks for a login or --no-auth.")
@click.option("--port", type=click.IntRange(0, 65535), default=7860, show_default=True, help="0: any free one.")
@click.option("--auth-file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Who may log in: USER:PASSWORD, one a line. Or set DENSECAP_AUTH.")
@click.option("--auth", metavar="USER:PASSWORD", help="The same for one; others on this machine can read it in the "
              "list of processes.")
@click.option("--no-auth", is_flag=True, help="Everybody who reaches --host may search without login.")
@click.option("--allow-host", "allowed", multiple=True, metavar="NAME", help="Another name under which the page is "
              "reached, of a proxy or on the network; may be given several times.")
@click.option("--show-paths/--hide-paths", "paths", default=None, help="Whether the page shows whole paths of pictures "
              "or only from the archive's folder on. Default: whole on this machine, else not.")
@long_text_option
def serve(index_folder: Path, model_name: str | None, pretrained: str | None, arch: str | None, device: str, host: str,
          port: int, auth_file: Path | None, auth: str | None, no_auth: bool, allowed: tuple[str, ...],
          paths: bool | None, long_text: str | None) -> None:
    """Open a page that searches an index, and the same as a JSON API.

    \b
    densecap serve indexes/mine
    densecap serve indexes/mine --host 0.0.0.0 --port 8080 --auth-file users.txt --allow-host pictures.lan
    """
    from densecap_search.ui import access, server

    users = access.read_users(auth_file, auth)
    access.check_open(host, users, no_auth)
    model = named_model(None, model_name, pretrained, arch) if model_name else None
    check_index(index_folder)
    sock = server.listen(host, port)

    from densecap_search.retrieval.searcher import open_searcher
    from densecap_search.ui.app import build_app
    from densecap_search.ui.live import LiveIndex

    live = LiveIndex(lambda: open_searcher(index_folder, model=model, device=device, long_text=long_text))
    shown_paths = access.is_loopback(host) if paths is None else paths
    app = build_app(live, access.make_access(host, allowed, users), paths=shown_paths)
    click.echo(f"{live.shown.count} pictures; open {server.address(sock)} (Ctrl-C ends)", err=True)
    click.echo(access.open_to(host, users, shown_paths), err=True)
    server.serve(app, sock)
