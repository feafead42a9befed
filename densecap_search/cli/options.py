"""Options that several commands share, and what they become: a collection, a model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from densecap_search import config
from densecap_search.cli.terminal import tell_skipped
from densecap_search.errors import ConfigError, DensecapError

if TYPE_CHECKING:
    from densecap_search.collection.records import Collection

F = TypeVar("F", bound=Callable[..., Any])


def model_options(command: F) -> F:
    """--model and what goes with it, for commands that encode."""
    for option in reversed((
        click.option("--model", "model_name", metavar="M", help="starter, a run folder, an open_clip name, "
                     "hf-hub:…, local-dir:…, a checkpoint file, or a folder of Hugging Face or peft."),
        click.option("--pretrained", metavar="W", help="Weights for an open_clip name: a tag, a file, or random. Or "
                     "a folder of peft's adapters, for any base."),
        click.option("--arch", metavar="NAME", help="Architecture of a checkpoint file whose keys do not tell."),
        click.option("--prefix", metavar="NAME.", help="What stands before the names of the model's tensors in a "
                     "checkpoint file, where that is not found by itself, such as student."),
        click.option("--device", type=click.Choice(config.DEVICES), default="auto", show_default=True),
    )):
        command = option(command)
    return command


resize_option = click.option(
    "--resize", type=click.Choice(config.RESIZES), help="How pictures are brought to the model's size: the middle, all "
    "of it with a border, or all of it out of shape. Default: as the model has it, crop for CLIP.")
long_text_option = click.option(
    "--long-text", type=click.Choice(config.LONG_TEXT), help="A caption beyond the text window: cut, or split at "
    "sentence ends and scored by the mean or the best segment. Default: as the model has it, mostly cut.")
max_pixels_option = click.option(
    "--max-pixels", type=click.IntRange(1), metavar="N", help="Larger pictures are skipped, for decoding takes 3 bytes "
    "a pixel. Default: 178956970.")


where_option = click.option(
    "--where", metavar="FILTER", help="Only pictures that meet a condition on their table's columns, or on folder, "
    "split, date, collection: \"year >= 1990 and (place = 'Lyon' or folder under 'trips')\".")


def collection_options(command: F) -> F:
    """How to read a collection; the command is handed all of it as one ``reading``."""

    @functools.wraps(command)
    def with_reading(*arguments: Any, image_column: str | None, caption_column: tuple[str, ...], format: str | None,
                     hidden: bool, images: tuple[str, ...], exclude: tuple[str, ...], skip_lines: int | None,
                     corrections: str | None, **others: Any) -> Any:
        reading = config.Reading(image_column, caption_column, format, hidden, images, exclude, skip_lines, corrections)
        return command(*arguments, reading=reading, **others)

    decorated: Any = with_reading
    for option in reversed((
        click.option("--image-column", metavar="NAME", help="The column that names the picture."),
        click.option("--caption-column", multiple=True, metavar="NAME", help="The column that holds the caption. "
                     "Given again, the captions of several columns are taken."),
        click.option("--images", multiple=True, metavar="DIR", help="Where the pictures of a table lie. May be given "
                     "again. Default: beside the table, in images/ and the like, then anywhere below by their names."),
        click.option("--format", metavar="NAME", help="How to read it (coco, docci, webdataset, embedded, …), where "
                     "its content does not tell; a wrong name lists them all."),
        click.option("--exclude", multiple=True, metavar="PATTERN", help="Leave out files or folders, as in a "
                     ".gitignore: 'drafts/', '*.gif'. May be given again. A file .densecapignore says the same."),
        click.option("--skip-lines", type=click.IntRange(0), metavar="N", help="Lines above a table's header."),
        click.option("--corrections", type=click.Path(resolve_path=True, dir_okay=False), metavar="FILE",
                     help="Captions that were corrected on the page of an index (INDEX.corrections.jsonl), put in "
                     "place of what is read."),
        click.option("--hidden", is_flag=True, help="Also pictures in hidden files and folders."),
    )):
        decorated = option(decorated)
    return cast(F, decorated)


def read(path: Path, reading: config.Reading = config.BY_CONTENT, *, strict: bool = False) -> Collection:
    from densecap_search.collection.readers import read_collection

    collection = read_collection(path, reading)
    for note in collection.notes:
        click.echo(f"{path}: {note}", err=True)
    tell_skipped(collection.skipped)
    if strict:
        from densecap_search.collection.images import refuse_cut

        refuse_cut([record.image for record in collection.records])
    if not collection.records:
        skipped = len(collection.skipped)
        raise DensecapError(f"{path} holds no picture that can be used; {skipped} were skipped" if skipped
                            else f"{path} holds no pictures")
    return collection


def check_index(place: str) -> None:
    """Refuse a folder that holds no index, before anything is loaded to search it; a store tells it itself."""
    from densecap_search.retrieval.index_folder import current_place

    if not place.startswith(config.STORE_NAMES):
        current_place(Path(place))


def named_model(index_folder: Path | None, name: str | None, pretrained: str | None, arch: str | None,
                resize: str | None = None, prefix: str | None = None) -> config.ModelConfig:
    """The encoder that the options name; without --model that of the index that is being updated."""
    if name is None:
        from densecap_search.retrieval.index_folder import is_index, read_model

        if pretrained or arch or resize or prefix:
            raise ConfigError("--pretrained, --arch, --prefix and --resize go with --model")
        if index_folder is not None and is_index(index_folder):
            return read_model(index_folder)
        raise ConfigError("say which model with --model: starter, a run folder, or an open_clip name")
    return config.ModelConfig(name, pretrained, arch, resize=resize, prefix=prefix).resolved()
