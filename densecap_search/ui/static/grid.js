// Hits as cards, page after page.

import { el, firstLine } from "./dom.js";

export function grid({ onopen, onkeep, iskept, onmore, below = () => null }) {
  const list = el("ol", { id: "grid", "aria-label": "Hits" });
  const more = el("button", { type: "button", id: "more", hidden: true, onclick: onmore }, "Show more");
  new IntersectionObserver((seen) => {
    if (seen.some((one) => one.isIntersecting) && !more.hidden && !more.disabled) onmore();
  }, { rootMargin: "400px" }).observe(more);
  const hits = [];

  return {
    element: el("div", { className: "hits" }, list, more),
    hits,
    clear() {
      hits.length = 0;
      list.replaceChildren();
      more.hidden = true;
    },
    add(found, { rest }) {
      for (const hit of found) {
        const number = hits.push(hit) - 1;
        list.append(card(hit, () => onopen(number), onkeep, iskept(hit), below(hit)));
      }
      more.hidden = !rest;
    },
    busy(yes) {
      list.setAttribute("aria-busy", String(yes));
      more.disabled = yes;
    },
    mark(hit, kept) {
      list.querySelectorAll(".keep").forEach((button) => {
        if (button.dataset.id === hit.picture) markKept(button, kept);
      });
    },
    focus(number) {
      list.children[number]?.querySelector(".open")?.focus();
    },
  };
}

export function picture(hit, size, properties = {}) {
  const image = el("img", { src: `/pictures/${hit.picture}/${size}`, alt: "", loading: "lazy", decoding: "async", ...properties });
  image.addEventListener("error", () => image.replaceWith(el("span", { className: "missing" },
    hit.missing ? "The file is no longer where it was indexed." : "This picture cannot be shown.")));
  return image;
}

export function facts(hit) {
  const score = hit.score === null ? "" : ` · score ${hit.score.toFixed(3)}`;
  return `${hit.rank}${score}${hit.strength ? ` · ${hit.strength}` : ""}`;
}

function card(hit, onopen, onkeep, kept, below) {
  const keep = el("button", { type: "button", className: "keep", onclick: () => onkeep(hit) });
  keep.dataset.id = hit.picture;
  markKept(keep, kept, hit);
  return el("li", { className: "card" },
    el("button", { type: "button", className: "open", onclick: onopen },
      el("span", { className: "frame" }, picture(hit, "small")),
      el("span", { className: "facts" }, facts(hit)),
      el("span", { className: "name", title: hit.name }, hit.name),
      el("span", { className: "line" }, firstLine(hit.caption))),
    keep, below);
}

function markKept(button, kept) {
  button.setAttribute("aria-pressed", String(kept));
  button.setAttribute("aria-label", kept ? "In the basket; take it out" : "Put into the basket");
  button.title = button.getAttribute("aria-label");
  button.textContent = kept ? "✓" : "+";
}
