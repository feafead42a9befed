// One hit, large, over the page: arrows, Escape, zoom, original, path, caption, neighbours. On a phone a sheet.

import { askJson } from "./ask.js";
import { correctable } from "./correct.js";
import { el } from "./dom.js";
import { facts, picture } from "./grid.js";

const NEIGHBOURS = 9; // with the picture itself

export function lightbox({ hits, onend, onclose, onkeep, iskept, onsimilar, onnear, why, below = () => null, onkept = null }) {
  let number = 0, asking;
  const frame = el("div", { className: "large", tabIndex: 0, role: "group", "aria-label": "Picture" });
  const side = el("div", { className: "side" });
  const dialog = el("dialog", { id: "lightbox", "aria-label": "Picture", onkeydown: pressed, onclose: closed,
    onclick: (event) => { if (event.target === dialog) dialog.close(); } },
    el("div", { className: "bar" },
      button("‹", "Previous picture", () => go(-1), "previous"), button("›", "Next picture", () => go(1), "next"),
      button("⤢", "Zoom", zoom, "zoom"), button("✕", "Close", () => dialog.close(), "close")),
    frame, side);

  function pressed(event) {
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      if (frame.classList.contains("zoomed") && event.target === frame) return; // they scroll the picture
      event.preventDefault();
      go(event.key === "ArrowLeft" ? -1 : 1);
    } else if (event.key === "z" && !event.ctrlKey && !event.metaKey) zoom();
  }

  async function go(step) {
    if (number + step < 0) return;
    if (number + step >= hits.length) await onend();
    if (number + step < hits.length && dialog.open) show(number + step);
  }

  function zoom() {
    const large = frame.classList.toggle("zoomed");
    dialog.querySelector(".zoom").setAttribute("aria-pressed", String(large));
    const image = frame.querySelector("img");
    if (large && image) image.src = `/pictures/${hits[number].picture}/original`;
  }

  function closed() {
    asking?.abort();
    why.stop();
    frame.replaceChildren();
    onclose(number);
  }

  function show(place) {
    number = place;
    const hit = hits[number];
    frame.classList.remove("zoomed");
    frame.replaceChildren(picture(hit, "large", { loading: "eager", alt: hit.name, onclick: zoom }));
    const similar = el("div", { className: "neighbours" });
    side.replaceChildren(...details(hit), el("h3", {}, "Looks like it"), similar);
    side.scrollTop = 0;
    dialog.querySelector(".previous").disabled = number === 0;
    dialog.querySelector(".zoom").setAttribute("aria-pressed", "false");
    neighbours(hit, similar);
  }

  function details(hit) {
    const keep = el("button", { type: "button", onclick: () => { onkeep(hit); label(); } });
    const label = () => { keep.textContent = iskept(hit) ? "Take out of the basket" : "Put into the basket"; };
    label();
    const copy = el("button", { type: "button", className: "copy", onclick: async () => {
      copy.textContent = await copied(hit.path) ? "Copied" : "Cannot copy; mark it by hand";
    } }, "Copy path");
    const reasons = el("section", { className: "why", "aria-label": "Why this picture" });
    const whole = el("p", { className: "whole" }, hit.caption || "(no caption)");
    why.show(hit, reasons, whole, frame);
    return [
      el("h2", {}, facts(hit)), el("p", { className: "path" }, hit.path),
      el("p", { className: "actions" }, copy,
        el("a", { href: `/pictures/${hit.picture}/original`, target: "_blank", rel: "noopener" }, "Original"), keep,
        el("button", { type: "button", onclick: () => { dialog.close(); onsimilar(hit); } }, "Search by it"),
        el("button", { type: "button", onclick: () => { dialog.close(); onnear(hit, true); } }, "More like this"),
        el("button", { type: "button", onclick: () => { dialog.close(); onnear(hit, false); } }, "Less like this"), below(hit)),
      reasons, correctable(hit, whole, onkept),
    ];
  }

  async function neighbours(hit, place) {
    asking?.abort();
    asking = new AbortController();
    const path = `/api/similar?picture=${encodeURIComponent(hit.picture)}&count=${NEIGHBOURS}`;
    try {
      const found = (await askJson(path, { signal: asking.signal })).hits.filter((one) => one.picture !== hit.picture);
      place.replaceChildren(...found.slice(0, NEIGHBOURS - 1).map((one) => el("button",
        { type: "button", title: one.name, "aria-label": `Show ${one.name}`, onclick: () => beside(one) }, picture(one, "small"))));
    } catch (error) {
      if (error.name !== "AbortError") place.replaceChildren(error.message);
    }
  }

  function beside(hit) { // a neighbour takes the place of what is shown; arrows go on from the hit
    const similar = el("div", { className: "neighbours" });
    frame.replaceChildren(picture(hit, "large", { loading: "eager", alt: hit.name }));
    side.replaceChildren(...details(hit), el("h3", {}, "Looks like it"), similar);
    neighbours(hit, similar);
  }

  return {
    element: dialog,
    open(place) {
      show(place);
      if (!dialog.open) dialog.showModal();
      dialog.querySelector(".close").focus();
    },
    close: () => dialog.open && dialog.close(),
  };
}

function button(sign, label, onclick, name) {
  return el("button", { type: "button", className: name, "aria-label": label, title: label, onclick }, sign);
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { // no clipboard without https, but on this machine
    const area = el("textarea", { value: text, className: "away" });
    (document.querySelector("dialog[open]") || document.body).append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
