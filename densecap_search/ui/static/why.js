// Why a hit was found: the sentences of the query by their percentile in the archive, each of which may be left out or
// counted twice, and the words of the query in the stored caption.

import { askJson, told } from "./ask.js";
import { el } from "./dom.js";
import { heat } from "./heat.js";

const AROUND = 10; // hits on each side that are explained together
const COUNTS = ["left out", "counts once", "counts twice"];
const SIGNS = ["off", "", "×2"];

export function why({ hits, query, onsearch }) {
  let known = new Map(), of, asking; // picture → what is known of it, for the query ``of``

  async function explained(asked, hit, signal) {
    if (asked !== of) [known, of] = [new Map(), asked];
    if (!known.has(hit.picture)) {
      const place = hits.findIndex((one) => one.picture === hit.picture);
      const near = place < 0 ? [hit] : hits.slice(Math.max(0, place - AROUND), place + AROUND);
      const { caption, also, without } = asked;
      const found = await askJson("/api/explain", { body: { caption, also, without, pictures: near.map((one) => one.picture) }, signal });
      found.hits.forEach((one) => known.set(one.picture, { ...one, sentences: found.sentences, own: found.own }));
    }
    return known.get(hit.picture);
  }

  return {
    // place: for the sentences; caption: the element with the stored one; frame: that of the large picture
    async show(hit, place, caption, frame) {
      const asked = query();
      asking?.abort();
      place.replaceChildren();
      if (!asked) return;
      asking = new AbortController();
      const { signal } = asking;
      try {
        const found = await explained(asked, hit, signal);
        if (signal.aborted) return;
        if (hit.caption) caption.replaceChildren(...found.caption.map(([text, same]) => (same ? el("mark", {}, text) : text)));
        place.replaceChildren(...sentences(found, asked, onsearch, heat(hit, frame)));
      } catch (error) {
        if (!signal.aborted) place.replaceChildren(el("p", {}, told(error)));
      }
    },
    stop: () => asking?.abort(),
  };
}

function sentences({ sentences: texts, own, percentiles }, asked, onsearch, heated) {
  const counts = texts.slice(0, own).map((_, number) => asked.sentences[number] ?? 1);
  const again = el("button", { type: "button", className: "again", hidden: true, onclick: () => onsearch(counts) }, "Search with these");
  const list = el("ol", { className: "sentences" }, ...texts.map((text, number) => {
    const share = percentiles[number], shown = share === null ? "–" : `${Math.floor(share)} %`;
    const parts = [el("span", {}, text), el("span", { className: "share" }, shown)];
    const line = number < own
      ? el("button", { type: "button", onclick: () => { counts[number] = (counts[number] + 1) % 3; tell(); } }, ...parts)
      : el("p", {}, ...parts);
    line.style.setProperty("--share", `${share ?? 0}%`);
    function tell() {
      line.dataset.count = SIGNS[counts[number]];
      line.lastChild.textContent = [SIGNS[counts[number]], shown].filter(Boolean).join(" · ");
      line.title = `${COUNTS[counts[number]]}; a click changes that`;
      again.hidden = counts.every((count, place) => count === (asked.sentences[place] ?? 1)) || counts.every((count) => !count);
    }
    if (number < own) tell();
    return el("li", {}, line, heated.button(text));
  }));
  return [el("h3", {}, "Why this picture"), list, heated.note, again, el("p", { className: "note" },
    "Percent: the share of the archive's other pictures that a sentence fits less well. A click on a sentence counts it twice, another leaves it out.")];
}
