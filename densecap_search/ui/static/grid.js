// Hits as cards, page after page.

import { el, firstLine } from "./dom.js";

export function grid({ onopen, onkeep = null, iskept = () => false, onmore, below = () => null, id = "grid", label = "Hits" }) {
  const list = el("ol", { id, className: "grid", "aria-label": label });
  const more = el("button", { type: "button", className: "more", hidden: true, onclick: onmore }, "Show more");
  new IntersectionObserver((seen) => {
    if (seen.some((one) => one.isIntersecting) && !more.hidden && !more.disabled) onmore();
  }, { rootMargin: "400px" }).observe(more);
  const hits = []; // as they stand there: those of an open stack after its best
  let stacks = 0;

  function unfold(button, hit) {
    const place = hits.indexOf(hit), open = button.getAttribute("aria-expanded") === "false";
    button.setAttribute("aria-expanded", String(open));
    if (!open) {
      hits.splice(place + 1, hit.under.length);
      hit.under.forEach(() => list.children[place + 1].remove());
      return;
    }
    hits.splice(place + 1, 0, ...hit.under);
    const made = hit.under.map((one) => cardOf(one));
    made.forEach((one) => one.classList.add("under"));
    list.children[place].after(...made);
  }

  function cardOf(hit) {
    return card(hit, () => onopen(hits.indexOf(hit)), onkeep, iskept(hit), unfold, below(hit));
  }

  return {
    element: el("div", { className: "hits" }, list, more),
    hits,
    stacks: () => stacks,
    clear() {
      hits.length = stacks = 0;
      list.replaceChildren();
      more.hidden = true;
    },
    add(found, { rest }) {
      hits.push(...found);
      stacks += found.length;
      list.append(...found.map(cardOf));
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
  const image = el("img", { src: `${hit.base ?? ""}/pictures/${hit.picture}/${size}`, alt: "", loading: "lazy", decoding: "async", ...properties });
  image.addEventListener("error", () => image.replaceWith(el("span", { className: "missing" },
    hit.missing ? "The file is no longer where it was indexed." : "This picture cannot be shown.")));
  return image;
}

export function facts(hit) {
  const score = hit.score === null ? "" : ` · score ${hit.score.toFixed(3)}`;
  return `${hit.rank}${score}${hit.strength ? ` · ${hit.strength}` : ""}`;
}

function card(hit, onopen, onkeep, kept, unfold, below) {
  const keep = onkeep && el("button", { type: "button", className: "keep", onclick: () => onkeep(hit) });
  if (keep) {
    keep.dataset.id = hit.picture;
    markKept(keep, kept);
  }
  const stack = hit.under.length ? el("button", { type: "button", className: "stack", "aria-expanded": "false",
    "aria-label": `${hit.under.length} more that are nearly the same`, title: `${hit.under.length} more that are nearly the same`,
    onclick: () => unfold(stack, hit) }, `+${hit.under.length}`) : null;
  return el("li", { className: "card" },
    el("button", { type: "button", className: "open", onclick: onopen },
      el("span", { className: "frame" }, picture(hit, "small")),
      el("span", { className: "facts" }, facts(hit)),
      el("span", { className: "name", title: hit.name }, hit.name),
      el("span", { className: "line" }, firstLine(hit.caption))),
    keep, stack, below);
}

function markKept(button, kept) {
  button.setAttribute("aria-pressed", String(kept));
  button.setAttribute("aria-label", kept ? "In the basket; take it out" : "Put into the basket");
  button.title = button.getAttribute("aria-label");
  button.textContent = kept ? "✓" : "+";
}
