// The page: a caption in, pictures out.

import { askJson, told } from "./ask.js";
import { basket } from "./basket.js";
import { beside, otherIndex } from "./beside.js";
import { captionBox } from "./caption.js";
import { asBody, asksFor, conditions, texts } from "./conditions.js";
import { el } from "./dom.js";
import { grid } from "./grid.js";
import { learn } from "./learn.js";
import { lightbox } from "./lightbox.js";
import { fromAddress, past, toAddress } from "./past.js";
import { right, review } from "./review.js";
import { teach } from "./teach.js";
import { why } from "./why.js";

const PAGE = 24, MOST_LETTERS = 20_000, MOST_BYTES = 32 * 2 ** 20;
const AS_IT_IS = 2 * 2 ** 20, SIDE = 1600; // bytes of a picture that is sent as it is; longer side of others
const LOOK = 15_000; // ms between two looks whether the index has changed

async function start(place) {
  const about = await askJson("/api/index");
  const page = makePage(about, await otherIndex(about));
  place.replaceChildren(page);
}

function makePage(about, other) {
  // what the hits belong to: ask(offset, signal), the query in words, and its texts, if it has any
  let asking, current = { name: "" };
  const message = el("p", { id: "message", role: "status" });
  const special = el("p", { id: "counted", hidden: true });
  const news = el("p", { id: "news", role: "status", hidden: true });
  const box = captionBox({ most: MOST_LETTERS, onsearch: () => byCaption() });
  const narrow = conditions({ onchange: () => current.ask && byCaption() });
  const kept = basket({ key: about.name, onchange: (hit, yes) => hits.mark(hit, yes), onproblem: say });
  const lesson = about.edit ? learn() : null;
  const teaching = teach({ onkept: (text) => { say(text); lesson?.count(); }, onproblem: say });
  const doubtful = about.edit ? review({ onfound: byDoubt }) : null;
  const below = (hit) => !about.edit ? null : current.review ? right(hit, { onkept: say, onproblem: say }) : teaching.button(hit);
  const hits = grid({ below, onopen: (number) => large.open(number), onmore: more, iskept: kept.has,
    onkeep: (hit) => kept.toggle(hit, current.name) });
  const large = lightbox({ below, onkept: about.edit ? say : null, hits: hits.hits, onend: more, onclose: hits.focus, iskept: kept.has,
    onkeep: (hit) => kept.toggle(hit, current.name), onsimilar: (hit) => byHit(hit.picture),
    onnear: (hit, wanted) => { narrow.near(hit.picture, wanted); byCaption(); },
    why: why({ hits: hits.hits, query: () => current.texts, onsearch: byCaption }) });
  const before = past({ key: about.name, onchoose: (caption) => { box.value = caption; byCaption([]); } });
  const empty = welcome(about, (caption) => { box.value = caption; byCaption(); });
  const second = other ? beside({ first: hits.hits, other, onproblem: say, onswitch: () => current.ask && search(current) }) : null;
  const title = el("h1", {});

  function say(text) { message.textContent = text; }

  async function search(query) { // what was found before goes at once: no old picture beside new words
    asking?.abort();
    asking = new AbortController();
    current = query;
    large.close();
    hits.clear();
    second?.clear();
    teaching.begin(query.caption || "", hits.hits);
    empty.hidden = true;
    say("Searching…");
    const { signal } = asking;
    await load(0);
    if (!signal.aborted) await second?.show(query, signal);
  }

  async function more() {
    if (!asking?.signal.aborted && hits.hits.length) await load(hits.stacks());
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
      hits.add(found.hits, { rest: found.hits.length > 0 && Math.max(...found.hits.map((hit) => hit.rank)) < found.total });
      if (about.edit && found.hits.length) teaching.found();
      const message = offset ? found.message.replace(/^[\d,]+/, "1") : [found.message, ...found.hints].join(" ");
      if (!offset || found.hits.length) say([found.note, message].filter(Boolean).join(" "));
      changed(found.generation, found.total);
    } catch (error) {
      if (!signal.aborted) say(told(error));
    } finally {
      if (!signal.aborted) hits.busy(false);
    }
  }

  // counts: how often each sentence counts; while the caption stays the same, as before
  function byCaption(counts = current.texts?.caption === box.value ? current.texts.sentences : []) {
    const caption = box.value, asked = narrow.value, sentences = counts.every((count) => count === 1) ? [] : counts;
    const described = Boolean(caption.trim());
    if (!described && !asksFor(asked)) return say("Describe the picture you look for.");
    toAddress({ caption, sentences, ...asked });
    if (described) before.add(caption);
    counted(sentences);
    return search({ caption: caption.trim(), name: described ? caption : asked.must || asked.where || "like a picture",
      texts: described ? { caption, sentences, ...texts(asked) } : null, both: !asked.like?.length && !asked.unlike?.length,
      ask: (offset, signal, base = "") => askJson(`${base}/api/search`, { body: { caption, sentences, ...asBody(asked), count: PAGE, offset }, signal }) });
  }

  function counted(sentences) {
    const many = sentences.filter((count) => count !== 1).length;
    special.hidden = !many;
    special.replaceChildren(many === 1 ? "One sentence counts otherwise. " : `${many} sentences count otherwise. `,
      el("button", { type: "button", onclick: () => byCaption([]) }, "Count all once"));
  }

  function byDoubt() { // captions that may not fit are shown as hits are
    box.value = "";
    return search({ name: "captions that may not fit", review: true, texts: null, ask: (offset, signal) =>
      askJson(`/api/review/pairs?count=${PAGE}&offset=${offset}`, { signal }) });
  }

  function byHit(id) {
    box.value = "";
    narrow.value = { like: [id] };
    return byCaption([]);
  }

  async function byFile(file) {
    if (!file) return undefined;
    if (file.size > MOST_BYTES) return say("That file is larger than 32 MB.");
    const sent = file.size <= AS_IT_IS ? file : await smaller(file).catch(() => null);
    if (sent) {
      narrow.give({ data: await base64(sent), url: URL.createObjectURL(sent) });
      return byCaption();
    } // too large, and not for this browser: by itself
    return search({ name: `like ${file.name}`, ask: (offset, signal) => askJson(`/api/similar?count=${PAGE}&offset=${offset}`,
      { body: file, type: file.type || "application/octet-stream", signal }) });
  }

  function restore() {
    const { caption, sentences, ...asked } = fromAddress();
    box.value = caption;
    narrow.value = asked;
    if (caption || asksFor(asked)) byCaption(sentences);
    else {
      asking?.abort();
      large.close();
      hits.clear();
      second?.clear();
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
    el("p", { id: "keys" }, "Ctrl+Enter or Shift+Enter searches; a picture can be dropped here."), special, message, news);

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
    el("div", { className: "left" }, form, second?.control, before.element, lesson?.element,
      doubtful?.element), el("div", { className: "right" }, empty, hits.element, second?.element, teaching.element),
    kept.element, large.element);
}

async function smaller(file) {
  const image = await createImageBitmap(file), scale = Math.min(1, SIDE / Math.max(image.width, image.height));
  const canvas = el("canvas", { width: Math.round(image.width * scale), height: Math.round(image.height * scale) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
}

function base64(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
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
