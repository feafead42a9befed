"""The command line ``densecap``: parse, call one workflow, print. Workflows are imported inside the commands."""

from __future__ import annotations

from densecap_search.cli import caching, collections, evaluating, indexing, publishing, searching, starting, training
from densecap_search.cli.group import main

for _command in (starting.demo, collections.inspect_collection, collections.export, training.finetune,
                 indexing.index, searching.search, evaluating.evaluate, training.run_experiments, searching.serve,
                 publishing.publish, caching.cache, starting.models):
    main.add_command(_command)

__all__ = ["main"]
