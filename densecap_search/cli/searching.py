"""Commands that use an index: search, serve."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

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
    terminal_talk,
    write_hits,
)
from densecap_search.errors import ConfigError
from densecap_search.files import json_text
from densecap_search.talk import printable

if TYPE_CHECKING:
    from densecap_search.retrieval.explain import Explanation
    from densecap_search.retrieval.hits import Hit
    from densecap_search.retrieval.queries import Query
    from densecap_search.retrieval.searcher import Narrowed, Searcher


@click.command()
@click.argument("index_folder", metavar="INDEX", required=False)
@click.argument("caption", required=False)
@click.option("--server", metavar="URL", help="Ask a running `densecap serve` in place of an INDEX, which saves the "
              "start; DENSECAP_AUTH=USER:PASSWORD logs in.")
@click.option("--image", type=click.Path(path_type=Path, dir_okay=False),
              help="Search by a picture, or by a picture and a caption together.")
@click.option("--others", is_flag=True, help="With --image: not that picture itself, nor what is nearly the same.")
@click.option("--also", type=(float, str), multiple=True, metavar="WEIGHT TEXT",
              help="A further text beside the caption, which has the weight 1.")
@click.option("--without", multiple=True, metavar="TEXT", help="What should not be on the picture.")
@click.option("--must", multiple=True, metavar="WORDS",
              help="Words that occur in a caption or the file name, exactly and one after the other: names, numbers.")
@click.option("--queries", type=click.Path(path_type=Path, dir_okay=False),
              help="A file of queries: .txt with a caption a line, .csv with the columns caption, image, also, "
              "without, must, .jsonl with these keys, or a .json list of captions.")
@where_option
@click.option("--mode", type=click.Choice(["auto", "image", "text", "words", "fused"]), default="auto",
              show_default=True, help="Rank by the pictures, by the vectors or the words of their captions, or by the "
              "sum of all three. auto: what finds most by the index's own check.")
@click.option("--min-score", type=float, metavar="X", help="Only hits whose cosine is at least X.")
@click.option("--sort", type=click.Choice(["score", "date"]), default="score", show_default=True, help="date: the "
              "hits newest first, by when the pictures were taken; their ranks stay.")
@click.option("-k", "k", type=click.IntRange(1), default=10, show_default=True, help="Hits for each query.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Write the hits to a .csv or .jsonl. "
              "With --queries, a run that was stopped goes on where it was.")
@click.option("--spreadsheet", is_flag=True, help="For a .csv that a spreadsheet opens: texts that begin with = + - @, "
              "a tab or a carriage return get an apostrophe before them, so that they are not run as formulas.")
@click.option("--json", "as_json", is_flag=True, help="One hit a line, as JSON.")
@click.option("--explain", "explained", is_flag=True, help="Below each hit the sentences of the query, each with the "
              "share of the archive's other pictures that it fits less well.")
@click.option("--stacks/--no-stacks", "stacks", default=None, help="Whether bursts and near-duplicates lie under the "
              "best of them, marked +3, so that -k counts stacks. Default: where hits are printed; not with --json, "
              "--output and --queries, whose rows stay a hit each.")
@model_options
@long_text_option
@max_pixels_option
@click.pass_context
def search(context: click.Context, index_folder: str | None, caption: str | None, server: str | None,
           image: Path | None, others: bool, also: tuple[tuple[float, str], ...], without: tuple[str, ...],
           must: tuple[str, ...], queries: Path | None, where: str | None, mode: str, min_score: float | None,
           sort: str, k: int, output: Path | None, spreadsheet: bool, as_json: bool, explained: bool,
           stacks: bool | None, model_name: str | None, pretrained: str | None, arch: str | None, prefix: str | None,
           device: str, long_text: str | None, max_pixels: int | None) -> None:
    """Find the pictures of an index that a caption describes.

    INDEX is a folder, or the name of a store that holds one, as it was given to `densecap index --store`.

    \b
    densecap search indexes/mine "a red bus at the far left, before a brick house with green shutters"
    densecap search indexes/mine "a red bus" --without people --also 0.5 "rain at night"
    densecap search indexes/mine "A red bus stands at the far left. It rains." --explain
    densecap search indexes/mine --must "Inv. 1984.23"
    densecap search indexes/mine "the same room by day" --image night.jpg
    densecap search indexes/mine --queries captions.csv -k 50 --output hits.csv --spreadsheet
    densecap search milvus:http://milvus.lan:19530#mine "a tram in the rain" --model runs/mine
    densecap search indexes/mine "a tram in the rain" --where "year >= 1990 and place = 'Lyon'" --mode image
    densecap search --server http://127.0.0.1:7860 "a tram in the rain"
    """
    if server is not None:
        if caption is not None:
            raise click.UsageError("--server URL stands in place of INDEX; give the caption alone")
        _check_asked_of_server(context)
        caption, index_folder = index_folder, ""
    if index_folder is None:
        raise click.UsageError("Missing argument 'INDEX'.")
    one = caption is not None or image is not None or bool(also or must)
    if one == (queries is not None):
        raise click.UsageError("give one of: a caption, --image FILE, --also or --must (or several of these); "
                               "--queries FILE")
    if output and output.suffix.lower() not in (".csv", ".jsonl"):
        raise click.UsageError(f"--output must end in .csv or .jsonl, not {output.name}")
    if spreadsheet and not (output and output.suffix.lower() == ".csv"):
        raise click.UsageError("--spreadsheet is for --output FILE.csv")
    if others and image is None and queries is None:
        raise click.UsageError("--others goes with --image, or with queries that have one")
    if stacks and (output or queries):
        raise click.UsageError("--stacks goes with one query whose hits are printed, or with --json")
    if explained and (output or queries):
        raise click.UsageError("--explain goes with one query whose hits are printed, or with --json")
    if caption is not None:
        _doubt_caption(caption)
    from densecap_search.retrieval.queries import Query, read_queries

    if server is not None:
        from densecap_search.workflows.ask_server import ask_server

        answer = ask_server(server, caption or "", k, mode=mode, must=must, where=where, sort=sort,
                            stacks=stacks if stacks is not None else not (as_json or output))
        if answer.note:
            click.echo(printable(answer.note), err=True)
        _tell_found(Query(caption or ""), answer.hits, output, spreadsheet, as_json)
        return
    model = named_model(None, model_name, pretrained, arch, prefix=prefix) if model_name else None
    check_index(index_folder)
    if where is not None:
        from densecap_search.retrieval.filters import parse_filter

        parse_filter(where)
    if queries is not None:
        next(read_queries(queries), None)  # a file that cannot be read is told before a model is loaded

    from densecap_search.retrieval.searcher import Narrowed, open_searcher  # torch: not before all that is checked

    searcher = open_searcher(index_folder, model=model, device=device, long_text=long_text, max_pixels=max_pixels,
                             quick=queries is None and image is None and device in ("auto", "cpu"))
    if queries is not None:
        narrowed = Narrowed(where, must, min_score, others)
        _search_file(searcher, queries, k, mode, narrowed, sort, output, spreadsheet, as_json)
        return
    asked = Query(caption or "", image, also, without)
    if searcher.mode(mode) != "words":
        from densecap_search.model.letters import letters_hint

        if unread := letters_hint(searcher.encoder.tokenizer, " ".join(text for _, text in asked.texts)):
            click.echo(printable(unread), err=True)
    stacks = stacks if stacks is not None else not (as_json or output)
    find = searcher.stacks if stacks else searcher.find
    hits, truncation = find([asked], k, mode=mode, narrowed=Narrowed(where, must, min_score, others), sort=sort)
    if truncation.longer:
        click.echo(str(truncation), err=True)
    _tell_found(asked, hits[0], output, spreadsheet, as_json,
                searcher.explain(asked, [hit.number for hit in hits[0]]) if explained else None)


def _check_asked_of_server(context: click.Context) -> None:
    """Refuse what only a search of an index on this machine has."""
    known = {"index_folder", "server", "must", "where", "mode", "sort", "k", "output", "spreadsheet", "as_json",
             "stacks"}
    for option in context.command.params:
        given = option.name and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
        if given and option.name not in known:
            raise click.UsageError(f"{option.opts[0]} does not go with --server; search the index itself")


def _tell_found(asked: Query, hits: Sequence[Hit], output: Path | None, spreadsheet: bool, as_json: bool,
                explanation: Explanation | None = None) -> None:
    from densecap_search.retrieval.queries import hints

    for hint in hints(asked.caption):
        click.echo(hint, err=True)
    results = [(str(asked), hits)]
    if output:
        write_hits(output, results, inert=spreadsheet)
        click.echo(f"{len(hits)} hits written to {output}", err=True)
    if as_json:
        for place, row in enumerate(hit_rows(results)):
            click.echo(json_text(row if explanation is None else {**row, "explanation": explanation.of(place)}))
    elif not output:
        print_hits(*results[0], titled=False, explanation=explanation)


def _doubt_caption(caption: str) -> None:
    """A file or an address is no caption; what only looks like the name of a picture is searched, with a hint."""
    from densecap_search.collection.walk import is_picture
    from densecap_search.files import is_file

    text = caption.strip()
    if "\n" not in text and (is_file(Path(text).expanduser()) or text.lower().startswith(("http://", "https://"))):
        raise click.UsageError(f"{text} is a {'file' if '://' not in text else 'URL'}, not a caption; to search by a "
                               "picture: --image FILE")
    if is_picture(text) and " " not in text:
        click.echo(f"Searching for the words {text!r}; if it is a picture, name it with --image", err=True)


def _search_file(searcher: Searcher, queries: Path, k: int, mode: str, narrowed: Narrowed, sort: str,
                 output: Path | None, spreadsheet: bool, as_json: bool) -> None:
    from densecap_search.retrieval.queries import read_queries
    from densecap_search.workflows.search_file import answers, search_file

    talk = terminal_talk()
    if output:
        count, asked = search_file(searcher, queries, output, k, mode=mode, narrowed=narrowed, sort=sort,
                                   inert=spreadsheet, talk=talk)
        click.echo(f"{count} hits of {asked} queries written to {output}", err=True)
        return
    some = False
    for number, query, hits in answers(searcher, read_queries(queries), k, mode=mode, narrowed=narrowed, sort=sort,
                                       talk=talk):
        some = True
        if as_json:
            for row in hit_rows([(str(query), hits)], first=number):
                click.echo(json_text(row))
        else:
            print_hits(str(query), hits, titled=True)
    if not some:
        raise ConfigError(f"{queries} holds no query")


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
@click.option("--edit/--no-edit", "edit", default=None, help="Whether the page keeps what people teach it, beside the "
              "index: which picture they meant. Default: where it is open to this machine only, without --allow-host.")
@click.option("--beside", type=click.Path(path_type=Path), metavar="INDEX2", help="Another index, of another model or "
              "of other pictures, whose hits the page can show beside the first one's.")
@long_text_option
def serve(index_folder: Path, model_name: str | None, pretrained: str | None, arch: str | None,
          prefix: str | None, device: str, host: str,
          port: int, auth_file: Path | None, auth: str | None, no_auth: bool, allowed: tuple[str, ...],
          paths: bool | None, edit: bool | None, beside: Path | None, long_text: str | None) -> None:
    """Open a page that searches an index, and the same as a JSON API.

    \b
    densecap serve indexes/mine
    densecap serve indexes/mine --no-edit
    densecap serve indexes/tuned --beside indexes/starter
    densecap serve indexes/mine --host 0.0.0.0 --port 8080 --auth-file users.txt --allow-host pictures.lan
    """
    from densecap_search.ui import access, server

    users = access.read_users(auth_file, auth)
    access.check_open(host, users, no_auth)
    model = named_model(None, model_name, pretrained, arch, prefix=prefix) if model_name else None
    check_index(str(index_folder))
    if beside is not None:
        check_index(str(beside))
    sock = server.listen(host, port)

    from densecap_search.retrieval.searcher import open_searcher
    from densecap_search.ui.app import build_app
    from densecap_search.ui.live import LiveIndex

    live = LiveIndex(lambda: open_searcher(index_folder, model=model, device=device, long_text=long_text))
    shown_paths = access.is_loopback(host) if paths is None else paths
    editing = access.may_edit(host, allowed, edit)
    other = LiveIndex(lambda: open_searcher(beside, device=device, long_text=long_text)) if beside else None
    app = build_app(live, access.make_access(host, allowed, users), paths=shown_paths, edit=editing, beside=other)
    compared = f", beside {other.shown.count} of {beside}" if other else ""
    click.echo(f"{live.shown.count} pictures{compared}; open {server.address(sock)} (Ctrl-C ends)", err=True)
    click.echo(access.open_to(host, users, shown_paths), err=True)
    if editing:
        from densecap_search.collection.feedback import feedback_file

        click.echo(f"answers to searches are kept in {feedback_file(index_folder)} (--no-edit keeps none)", err=True)
    server.serve(app, sock)
