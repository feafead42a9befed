"""docs/commands.md: what every command says of itself with --help. `make commands` writes it."""

from __future__ import annotations

import click

from densecap_search.cli import main

WIDTH = 110
HEAD = """# Commands

What `densecap COMMAND --help` says; `make commands` writes this page.
"""


def command_page() -> str:
    """Markdown with a section for the program and one for each command."""
    parent = click.Context(main, info_name="densecap", terminal_width=WIDTH, **main.context_settings)
    parts = [HEAD, _section("densecap", main.get_help(parent))]
    for name in main.list_commands(parent):
        command = main.commands[name]
        context = click.Context(command, info_name=name, parent=parent, terminal_width=WIDTH)
        parts.append(_section(f"densecap {name}", command.get_help(context)))
    return "\n".join(parts)


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text.rstrip()}\n```\n"


if __name__ == "__main__":
    click.echo(command_page(), nl=False)
