"""Commands for a first look: demo, models."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path

import click

from densecap_search.cli.terminal import print_reports, print_table, seconds_so_far, terminal_talk
from densecap_search.files import json_text


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default="densecap-demo")
@click.option("--bursts", type=click.IntRange(12), default=180, show_default=True, help="Bursts of near-duplicates.")
@click.option("--seed", type=int, default=0, show_default=True)
def demo(folder: Path, bursts: int, seed: int) -> None:
    """Generate an archive, fine-tune the starter on it, index it, and show what changed.

    Everything is written below FOLDER (default: densecap-demo).

    \b
    densecap demo
    densecap demo /tmp/demo --bursts 60
    """
    from densecap_search.workflows.demo import run_demo

    outcome = run_demo(folder, bursts=bursts, seed=seed, talk=terminal_talk())
    print_reports([outcome.before, outcome.after], ["starter", "fine-tuned"])
    click.echo(f"\nA test caption:\n  {outcome.query}\nfinds its picture at rank {outcome.rank} of {outcome.pictures}, "
               "by the pictures alone; search counts their captions too.")
    place = shlex.quote(str(outcome.index))
    click.echo(f"\nDone in {seconds_so_far():.0f} s. Now open the page:\n  densecap serve {place}")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object a model.")
def models(as_json: bool) -> None:
    """List what can be named with --model, and which weights are on this machine.

    \b
    densecap models
    densecap models --json
    """
    from densecap_search.model.catalogue import list_models

    rows = list_models()
    if as_json:
        for row in rows:
            click.echo(json_text(asdict(row)))
        return
    print_table(["model", "--pretrained", "on this machine"],
                [[row.name, ", ".join(row.pretrained), ", ".join(row.present) or "-"] for row in rows])
    click.echo("Also: a run folder, a checkpoint file (--arch where its keys do not tell), a Hugging Face folder, "
               "hf-hub:…, local-dir:….")
