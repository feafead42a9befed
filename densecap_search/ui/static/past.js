// The query in the address, so that reload, back and a shared link keep it, and the searches of this browser.
// The fragment is never sent to a server.

import { read, write } from "./basket.js";
import { el, firstLine } from "./dom.js";

const MOST = 50;

const WORDS = { mode: "auto", must: "", where: "", without: "", least: "", sort: "score" };
const LISTS = ["like", "unlike"];

export function fromAddress() {
  const values = new URLSearchParams(location.hash.slice(1));
  const one = (name, otherwise = "") => values.get(name) || otherwise;
  return {
    caption: one("q"),
    sentences: one("s").split("").map(Number).filter((count) => count <= 9),
    also: terms(one("also")),
    stacks: one("stacks") !== "0",
    ...Object.fromEntries(Object.entries(WORDS).map(([name, none]) => [name, one(name, none)])),
    ...Object.fromEntries(LISTS.map((name) => [name, one(name).split(",").filter(Boolean)])),
  };
}

export function toAddress({ caption = "", sentences = [], also = [], stacks = true, ...asked }) {
  const hash = `#${new URLSearchParams({
    ...(caption && { q: caption }), ...(sentences.length && { s: sentences.join("") }),
    ...(also.length && { also: JSON.stringify(also) }), ...(!stacks && { stacks: "0" }),
    ...Object.fromEntries(Object.entries(WORDS).filter(([name, none]) => (asked[name] ?? none) !== none).map(([name]) => [name, asked[name]])),
    ...Object.fromEntries(LISTS.filter((name) => asked[name]?.length).map((name) => [name, asked[name].join(",")])),
  })}`;
  if (hash !== location.hash) history.pushState(null, "", hash);
}

function terms(text) { // an address may be anybody's
  try {
    return JSON.parse(text).filter(([weight, term]) => Number.isFinite(weight) && typeof term === "string");
  } catch {
    return [];
  }
}

export function past({ key, onchoose }) {
  const name = `densecap searches ${key}`;
  let captions = read(name, []);
  const list = el("ul");
  const element = el("details", { id: "past" }, el("summary", {}, "Earlier searches"), list,
    el("button", { type: "button", onclick: () => keep([]) }, "Forget them"));

  function keep(next) {
    captions = next;
    write(name, captions);
    element.hidden = !captions.length;
    list.replaceChildren(...captions.map((caption) => el("li", {},
      el("button", { type: "button", title: caption.slice(0, 500), onclick: () => onchoose(caption) }, firstLine(caption)))));
  }

  keep(captions);
  return { element, add: (caption) => keep([caption, ...captions.filter((one) => one !== caption)].slice(0, MOST)) };
}
