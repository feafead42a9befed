// The caption box: keys, live count of words and tokens, and where the window ends.

import { askJson } from "./ask.js";
import { el } from "./dom.js";

const PAUSE = 250; // ms without a keystroke before the count is asked for
const SHOWN_END = 40; // letters before the end of the window that are quoted

export function captionBox({ most, onsearch }) {
  const count = el("p", { id: "count", role: "status" });
  const mirror = el("div", { className: "mirror", "aria-hidden": "true" });
  const area = el("textarea", {
    id: "caption", maxLength: most, spellcheck: false, "aria-describedby": "keys count",
    placeholder: "Describe the picture as fully as you can: the place, what is where, colours, counts, light. "
      + "A hundred words are welcome.",
    oninput: changed,
    onscroll: () => { mirror.scrollTop = area.scrollTop; },
    onpaste: () => requestAnimationFrame(() => { area.scrollTop = 0; }),
    onkeydown: (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey || event.shiftKey)) {
        event.preventDefault();
        onsearch();
      }
    },
  });
  let timer, asking;

  function changed() {
    clearTimeout(timer);
    asking?.abort();
    mirror.replaceChildren();
    timer = setTimeout(measure, PAUSE);
  }

  async function measure() {
    const caption = area.value;
    if (!caption.trim()) return count.replaceChildren();
    asking = new AbortController();
    try {
      const read = await askJson("/api/window", { body: { caption }, signal: asking.signal });
      if (area.value === caption) show(caption, read);
    } catch { /* a count that cannot be had is no reason to disturb */ }
  }

  function show(caption, read) {
    count.textContent = sentence(caption, read);
    count.classList.toggle("over", read.end !== null);
    if (read.end === null) return;
    mirror.replaceChildren(caption.slice(0, read.end), el("mark", {}, caption.slice(read.end)), "\n");
    mirror.scrollTop = area.scrollTop;
  }

  return {
    element: el("div", { className: "caption" }, el("label", { htmlFor: "caption" }, "Caption"),
      el("div", { className: "box" }, mirror, area), count),
    get value() { return area.value; },
    set value(text) {
      if (area.value === text) return;
      area.value = text;
      area.scrollTop = 0;
      changed();
    },
    focus: () => area.focus({ preventScroll: true }),
  };
}

export function sentence(caption, { words, tokens, context_length: window, end, segments }) {
  const plain = `${words} ${words === 1 ? "word" : "words"} · `;
  if (segments > 1) return `${plain}${tokens} tokens, read in ${segments} segments of at most ${window}`;
  if (end === null) return `${plain}${tokens} of ${window} tokens`;
  const before = caption.slice(Math.max(0, end - SHOWN_END), end).replace(/\s+/g, " ");
  return `${plain}${tokens} tokens; the model reads the first ${window}, up to “…${before}”`;
}
