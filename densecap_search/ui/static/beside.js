// The hits of another index under the same query, and how each has moved.

import { askJson, told } from "./ask.js";
import { el } from "./dom.js";
import { grid } from "./grid.js";

const BASE = "/beside";

export function beside({ first, other, onswitch, onproblem }) { // first: the hits of this index; other: what is told of that one
  const named = `${other.name} · ${other.model}`;
  let asked = null; // the second index: whose hits, and what stops them
  const box = el("input", { type: "checkbox", id: "compares", onchange: () => onswitch() });
  const hits = grid({ id: "grid-beside", label: `Hits of ${named}`, onmore: () => more(), below: (hit) => moved(hit),
    onopen: (number) => window.open(`${BASE}/pictures/${hits.hits[number].picture}/large`, "_blank", "noopener") });
  const note = el("p", { role: "status" });
  const element = el("section", { id: "beside", hidden: true, "aria-label": named }, el("h2", {}, named), note, hits.element);
  const control = el("label", { id: "compare" }, box, `Beside ${named}`);

  function moved(hit) { // content, by which a picture is known in both, stands behind the number in its name
    const content = hit.picture.split("-")[1], there = first.find((one) => one.picture.split("-")[1] === content);
    if (!there) return el("span", { className: "moved" }, "not among the hits here");
    const steps = there.rank - hit.rank;
    if (!steps) return el("span", { className: "moved" }, "the same rank");
    const words = `${Math.abs(steps)} rank${Math.abs(steps) === 1 ? "" : "s"} ${steps > 0 ? "higher" : "lower"}`;
    return el("span", { className: "moved" }, `${steps > 0 ? "▲" : "▼"} ${words}`);
  }

  async function more() {
    if (asked && !asked.signal.aborted) await load(hits.stacks());
  }

  async function load(offset) {
    const { ask, signal } = asked;
    hits.busy(true);
    try {
      const found = await ask(offset, signal, BASE);
      if (signal.aborted) return;
      hits.add(found.hits.map((hit) => at(hit)), { rest: found.hits.length > 0 && Math.max(...found.hits.map((hit) => hit.rank)) < found.total });
      if (!offset) note.textContent = found.message;
    } catch (error) {
      if (!signal.aborted) note.textContent = told(error);
    } finally {
      if (!signal.aborted) hits.busy(false);
    }
  }

  return {
    element, control,
    clear() {
      asked = null;
      hits.clear();
      note.textContent = "";
      element.hidden = !box.checked;
      element.parentElement?.classList.toggle("compared", box.checked);
    },
    async show(query, signal) { // after the first index has answered
      if (!box.checked) return;
      if (!query.both) {
        note.textContent = "Only captions and conditions are asked of both; a picture of this index is not known there.";
        return;
      }
      asked = { ask: query.ask, signal };
      await load(0).catch(onproblem);
    },
  };
}

function at(hit) {
  return { ...hit, base: BASE, under: hit.under.map(at) };
}

export async function otherIndex(about) {
  return about.beside ? askJson(`${BASE}/api/index`) : null;
}
