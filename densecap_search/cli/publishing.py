"""The command that writes a run or an index for other programs."""

from __future__ import annotations

from pathlib import Path

import click

from densecap_search import config
from densecap_search.cli.options import named_model
from densecap_search.cli.terminal import terminal_talk
from densecap_search.errors import ConfigError


@click.command()
@click.argument("source", metavar="RUN|INDEX")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path, file_okay=False),
              help="The folder to make.")
@click.option("--as", "name", required=True, help="The library it is for.",
              type=click.Choice((*config.PUBLISHED_AS, *config.INDEX_PUBLISHED_AS)))
@click.option("--dtype", type=click.Choice(config.DTYPES), default="fp32", show_default=True,
              help="Of the weights; fp16 and int8 for onnx and immich.")
@click.option("--license", "licence", default="other", show_default=True, metavar="NAME",
              help="As Hugging Face's hub names it; goes into the card.")
@click.option("--pretrained", metavar="W", help="Weights for an open_clip name: a tag, a file, or random.")
@click.option("--arch", metavar="NAME", help="Architecture of a checkpoint file whose keys do not tell.")
@click.option("--prefix", metavar="NAME.", help="What stands before the names of the model's tensors in a checkpoint "
              "file, where that is not found by itself, such as student.")
def publish(source: str, output: Path, name: str, dtype: str, licence: str, pretrained: str | None,
            arch: str | None, prefix: str | None) -> None:
    """Write a model as another library reads it, load it back with that library, and compare the vectors.

    RUN is a run folder, or anything else that --model takes. The folder gets a README.md with the run's figures.
    An INDEX is written as parquet or npy: ids, pictures, captions and vectors.

    \b
    densecap publish runs/mine -o published/mine --as open_clip
    densecap publish runs/mine -o published/mine-onnx --as onnx --dtype int8
    densecap publish runs/mine -o published/mine-immich --as immich
    densecap publish runs/lora -o published/adapters --as peft
    densecap publish indexes/mine -o published/mine-vectors --as parquet
    """
    if name in config.INDEX_PUBLISHED_AS:
        if dtype != "fp32" or pretrained or arch or prefix:
            raise ConfigError(f"--dtype, --pretrained, --arch and --prefix are for models; --as {name} writes vectors "
                              "in float32")
        from densecap_search.workflows.publish_index import publish_index

        count = publish_index(Path(source), output, name)
        click.echo(f"{output} holds {count} pictures; how to read it is in {output / 'README.md'}.")
        return
    from densecap_search.workflows.publish import publish_run

    agreement = publish_run(named_model(None, source, pretrained, arch, prefix=prefix), output, name,
                            dtype=dtype, licence=licence, talk=terminal_talk())
    for kind, values in (("pictures", agreement.pictures), ("captions", agreement.captions)):
        click.echo(f"cosine of {len(values)} {kind}: " + " ".join(f"{value:.6f}" for value in values))
    click.echo(f"{agreement}.\n{output} is written; how to use it is in {output / 'README.md'}.")
