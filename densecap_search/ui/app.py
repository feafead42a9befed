"""The page: a caption in, pictures out. Wires plain functions; the only room that imports gradio."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import gradio as gr

from densecap_search.errors import DensecapError
from densecap_search.retrieval.searcher import Hit, Searcher
from densecap_search.ui.gallery import LARGE, Gallery, details

SHOWN, MOST_SHOWN = 24, 200
# Fonts of the reader's own machine: gradio's default theme asks a font server on the internet.
_FONTS = ("system-ui", "sans-serif")
# gradio lays a gallery's captions over its pictures and cuts the grid off; here they stand below, and the page scrolls
_CSS = """
#caption textarea { font-size: 1.05rem; line-height: 1.5; }
#grid .grid-wrap { max-height: none; overflow: visible; }
#grid .gallery-item, #grid .thumbnail-item { height: auto; }
#grid .thumbnail-item { display: flex; flex-direction: column; aspect-ratio: auto; transform: none; filter: none; }
#grid .thumbnail-item img { aspect-ratio: 4 / 3; height: auto; background: var(--background-fill-secondary); }
#grid .caption-label { position: static; width: 100%; max-width: none; border: 0; opacity: 1; text-align: left;
  white-space: pre-line; }
"""


def build_app(searcher: Searcher) -> gr.Blocks:
    """The page for one index."""
    gallery = Gallery.of(searcher.index)
    count = len(searcher.index)

    def find(caption: str, shown: float) -> tuple[list[tuple[str, str]], str, list[dict[str, Any]], Any]:
        hits, message = run_search(searcher, caption, int(shown))
        items = gallery.items(hits)
        return items, message, [asdict(hit) for hit in hits], gr.update(visible=False)

    def show(hits: list[dict[str, Any]], event: gr.SelectData) -> tuple[Any, str, str]:
        hit = Hit(**hits[event.index])
        return gr.update(visible=True), str(gallery.copy(hit, LARGE)), details(hit)

    with gr.Blocks(title="densecap search", analytics_enabled=False, fill_width=True,
                   delete_cache=(3600, 3600)) as app:
        gr.Markdown(f"### Search {count} pictures by describing them")
        with gr.Row():
            with gr.Column(scale=1, min_width=320):
                caption = gr.Textbox(
                    label="Caption", lines=8, max_lines=12, autofocus=True, elem_id="caption",
                    placeholder="Describe the picture as fully as you can: the place, what is where, colours, "
                    "counts, light. A hundred words are welcome.",
                )
                most = min(MOST_SHOWN, max(2, count))
                shown = gr.Slider(1, most, value=min(SHOWN, most), step=1, label="Pictures shown")
                button = gr.Button("Search", variant="primary", elem_id="search")
                message = gr.Markdown(elem_id="message")
            with gr.Column(scale=3):
                with gr.Row(visible=False) as chosen:
                    picture = gr.Image(interactive=False, show_label=False, buttons=[], elem_id="picture", scale=2)
                    text = gr.Markdown(elem_id="details")
                grid = gr.Gallery(
                    show_label=False, columns=4, object_fit="contain", height="auto", allow_preview=False,
                    elem_id="grid", buttons=[], interactive=False,
                )
        hits = gr.State([])
        gr.on(
            [button.click, caption.submit], find, [caption, shown], [grid, message, hits, chosen], api_name="search",
        )
        grid.select(show, [hits], [chosen, picture, text], api_visibility="private")
    return app


def run_search(searcher: Searcher, caption: str, shown: int) -> tuple[list[Hit], str]:
    """Hits and the sentence above them; what is wrong with a query is said there and raises nothing."""
    if not caption.strip():
        return [], "Describe the picture you look for."
    try:
        found, truncation = searcher.by_captions([caption], shown)
    except DensecapError as error:
        return [], str(error)
    message = f"{len(found[0])} of {len(searcher.index)} pictures, best first."
    if truncation.longer:
        how = (f"the model reads it in {truncation.segments} segments" if truncation.split
               else f"the model reads the first {truncation.context_length}")
        message += f" The caption has {truncation.longest} tokens; {how}."
    return found[0], message


def launch(searcher: Searcher, *, host: str, port: int) -> gr.Blocks:
    """Serve the page in the background. Of all files only the small copies of indexed pictures can be fetched."""
    app = build_app(searcher)
    try:
        app.launch(
            server_name=host, server_port=port, quiet=True, footer_links=[], ssr_mode=False, share=False,
            prevent_thread_lock=True, allowed_paths=[str(Gallery.of(searcher.index).folder)],
            theme=gr.themes.Default(font=_FONTS, font_mono=("ui-monospace", "monospace")), css=_CSS,
        )
    except OSError as error:
        raise DensecapError(f"cannot serve on {host}:{port}, which is taken or not allowed; "
                            "choose another --port") from error
    return app
