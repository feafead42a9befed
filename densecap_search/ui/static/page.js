// The page: a caption in, pictures out.

import { askJson, told } from "./ask.js";
import { basket } from "./basket.js";
import { captionBox } from "./caption.js";
import { asBody, conditions } from "./conditions.js";
import { el } from "./dom.js";
import { grid } from "./grid.js";
import { lightbox } from "./lightbox.js";
import { fromAddress, past, toAddress } from "./past.js";
import { teach } from "./teach.js";

const PAGE = 24, MOST_LETTERS = 20_000, MOST_BYTES = 32 * 2 ** 20;
const LOOK = 15_000; // ms between two looks whether the index has changed

async function start(place) {
  const about = await askJson("/api/index");
  const page = makePage(about);
  place.replaceChildren(page);
}

function makePage(about) {
  let asking, current = { name: "" }; // what the hits belong to: ask(offset, signal), and the query in words
  const message = el("p", { id: "message", role: "status" });
  const news = el("p", { id: "news", role: "status", hidden: true });
  const box = captionBox({ most: MOST_LETTERS, onsearch: byCaption });
  const narrow = conditions();
  const kept = basket({ key: about.name, onchange: (hit, yes) => hits.mark(hit, yes), onproblem: say });
  const teaching = teach({ onkept: say, onproblem: say });
  const below = (hit) => about.edit ? teaching.button(hit) : null;
  const hits = grid({ below, onopen: (number) => large.open(number), onmore: more, iskept: kept.has,
    onkeep: (hit) => kept.toggle(hit, current.name) });
  const large = lightbox({ below, hits: hits.hits, onend: more, onclose: hits.focus, iskept: kept.has,
    onkeep: (hit) => kept.toggle(hit, current.name), onsimilar: (hit) => byHit(hit.picture, hit.name) });
  const before = past({ key: about.name, onchoose: (caption) => { box.value = caption; byCaption(); } });
  const empty = welcome(about, (caption) => { box.value = caption; byCaption(); });
  const title = el("h1", {});

  function say(text) { message.textContent = text; }

  async function search(query) { // what was found before goes at once: no old picture beside new words
    asking?.abort();
    asking = new AbortController();
    current = query;
    large.close();
    hits.clear();
    teaching.begin(query.caption || "", hits.hits);
    empty.hidden = true;
    say("Searching…");
    await load(0);
  }

  async function more() {
    if (!asking?.signal.aborted && hits.hits.length) await load(hits.hits.length);
  }

  let loading = null;
  function load(offset) {
    const { signal } = asking;
    if (offset && loading?.signal === signal) return loading.done;
    const done = fetchPage(offset, signal).finally(() => { if (loading?.signal === signal) loading = null; });
    loading = { signal, done };
    return done;
  }

  async function fetchPage(offset, signal) {
    hits.busy(true);
    try {
      const found = await current.ask(offset, signal);
      if (signal.aborted) return;
      hits.add(found.hits, { rest: found.hits.length > 0 && hits.hits.length + found.hits.length < found.total });
      if (about.edit && found.hits.length) teaching.found();
      if (!offset || found.hits.length) say(offset ? found.message.replace(/^[\d,]+/, "1") : found.message);
      changed(found.generation, found.total);
    } catch (error) {
      if (!signal.aborted) say(told(error));
    } finally {
      if (!signal.aborted) hits.busy(false);
    }
  }

  function byCaption() {
    const caption = box.value, asked = narrow.value;
    if (!caption.trim() && !asked.must && !asked.where) return say("Describe the picture you look for.");
    toAddress({ caption, ...asked });
    if (caption.trim()) before.add(caption);
    return search({ caption: caption.trim(), name: caption.trim() ? caption : asked.must || asked.where, ask: (offset, signal) =>
      askJson("/api/search", { body: { caption, ...asBody(asked), count: PAGE, offset }, signal }) });
  }

  function byHit(id, name) {
    toAddress({ like: id });
    return search({ name: `like ${name}`, ask: (offset, signal) =>
      askJson(`/api/similar?picture=${encodeURIComponent(id)}&count=${PAGE}&offset=${offset}`, { signal }) });
  }

  function byFile(file) {
    if (!file) return undefined;
    if (file.size > MOST_BYTES) return say("That file is larger than 32 MB.");
    return search({ name: `like ${file.name}`, ask: (offset, signal) => askJson(`/api/similar?count=${PAGE}&offset=${offset}`,
      { body: file, type: file.type || "application/octet-stream", signal }) });
  }

  function restore() {
    const { caption, like, ...asked } = fromAddress();
    box.value = caption;
    narrow.value = asked;
    if (like) byHit(like, like);
    else if (caption || asked.must || asked.where) byCaption();
    else {
      asking?.abort();
      large.close();
      hits.clear();
      teaching.begin("", hits.hits);
      hits.busy(false);
      empty.hidden = false;
      say("");
    }
  }

  function changed(generation, count) {
    if (generation !== about.generation) {
      about.generation = generation;
      news.hidden = false;
      news.textContent = `The index has changed: it now has ${count.toLocaleString("en")} pictures. `;
      news.append(el("button", { type: "button", onclick: () => { news.hidden = true; restore(); } }, "Search again"));
      name(count);
    }
  }

  function name(count) {
    title.textContent = `Search ${count.toLocaleString("en")} pictures by describing them`;
  }

  const chosen = el("input", { type: "file", accept: "image/*", id: "file", className: "away", tabIndex: -1,
    "aria-label": "A picture to search by", onchange: () => byFile(chosen.files[0]) });
  const form = el("form", { id: "ask", onsubmit: (event) => { event.preventDefault(); byCaption(); },
    ondragover: (event) => event.preventDefault(),
    ondrop: (event) => { if (event.dataTransfer.files.length) { event.preventDefault(); byFile(event.dataTransfer.files[0]); } } },
    box.element, narrow.element,
    el("div", { className: "buttons" }, el("button", { type: "submit", id: "search" }, "Search"),
      el("button", { type: "button", id: "by-picture", onclick: () => chosen.click() }, "By a picture…"), chosen),
    el("p", { id: "keys" }, "Ctrl+Enter or Shift+Enter searches; a picture can be dropped here."), message, news);

  setInterval(async () => {
    if (document.hidden) return;
    try {
      const health = await askJson("/api/health");
      changed(health.generation, health.pictures);
    } catch { /* the next search says so */ }
  }, LOOK);
  addEventListener("popstate", restore);
  name(about.pictures);
  restore();
  requestAnimationFrame(box.focus);
  return el("div", { className: "page" },
    el("header", {}, title, el("p", { id: "about" }, `${about.name} · ${about.model}`, about.problem ? ` · ${about.problem}` : "")),
    el("div", { className: "left" }, form, before.element), el("div", { className: "right" }, empty, hits.element, teaching.element),
    kept.element, large.element);
}

function welcome(about, onchoose) {
  return el("section", { id: "welcome", "aria-label": "Examples" },
    el("h2", {}, about.examples.length ? "Captions from this archive, to try" : "Describe a picture to find it"),
    el("ul", {}, ...about.examples.map((caption) => el("li", {},
      el("button", { type: "button", title: caption, onclick: () => onchoose(caption) }, el("span", {}, caption))))),
    el("p", {}, `The model ${about.model} reads up to ${about.context_length} tokens of a caption, some ${
      Math.round(about.context_length * 0.75 / 10) * 10} English words. Nothing leaves the server's machine.`));
}

function whenThere(id, use) {
  const found = document.getElementById(id);
  if (found) return use(found);
  const watching = new MutationObserver(() => {
    const place = document.getElementById(id);
    if (place) { watching.disconnect(); use(place); }
  });
  return watching.observe(document.documentElement, { childList: true, subtree: true });
}

whenThere("densecap", (place) => start(place).catch((error) => place.replaceChildren(el("p", { role: "alert" }, told(error)))));
