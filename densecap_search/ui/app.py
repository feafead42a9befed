"""The page's frame. The only module that imports gradio, which gives theme, dark mode and layout.

The page has no gradio events: searches go through our own routes (api.py), for gradio's queue answers one after the
other, also those who have gone, and brings routes for uploads and files that nobody here needs.
"""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

from fastapi import FastAPI

from densecap_search.ui.access import Access
from densecap_search.ui.api import STATIC, Service, make_api, most_bytes
from densecap_search.ui.guard import Guard
from densecap_search.ui.live import LiveIndex
from densecap_search.ui.server import without_proxies

with without_proxies():  # it makes a client as it is imported, which fails under ALL_PROXY=socks5://…
    import gradio as gr

# Fonts of the reader's own machine: gradio's default theme asks a font server on the internet.
_FONTS, _MONO = ("system-ui", "sans-serif"), ("ui-monospace", "monospace")


def build_app(live: LiveIndex, access: Access, *, paths: bool, edit: bool = False, beside: LiveIndex | None = None
              ) -> Guard:
    """Everything that a server serves for one index, behind its guard. paths: whether whole paths may be seen; edit:
    whether what people teach is kept; beside: another index to compare with.
    """
    service = Service.of(live, paths=paths, edit=edit)
    service.beside = Service.of(beside, paths=paths) if beside else None
    api = make_api(service)
    asyncio.run(_mount_page(api))
    return Guard(api, access, most_bytes)


async def _mount_page(api: FastAPI) -> None:
    """An empty column that page.js fills. Where no event loop runs, gradio makes one a lock and leaves them open."""
    with gr.Blocks(title="densecap search", analytics_enabled=False, fill_width=True) as blocks:
        gr.Column(elem_id="densecap")
    theme = gr.themes.Default(font=_FONTS, font_mono=_MONO)
    gr.mount_gradio_app(api, blocks, path="", footer_links=[], ssr_mode=False, theme=theme, head=_head(),
                        show_error=False, enable_monitoring=False, pwa=False, run_history=False)


def _head() -> str:
    version = hashlib.blake2b(b"".join(path.read_bytes() for path in _files()), digest_size=6).hexdigest()
    return (f'<link rel="stylesheet" href="/page/page.css?v={version}">'
            f'<script type="module" src="/page/page.js?v={version}"></script>')


def _files() -> list[Path]:
    return sorted(path for path in STATIC.iterdir() if path.suffix in (".css", ".js"))


