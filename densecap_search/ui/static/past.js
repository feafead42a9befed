// The query in the address, so that reload, back and a shared link keep it, and the searches of this browser.
// The fragment is never sent to a server.

import { read, write } from "./basket.js";
import { el, firstLine } from "./dom.js";

const MOST = 50;

export function fromAddress() {
  const values = new URLSearchParams(location.hash.slice(1));
  const one = (name, otherwise = "") => values.get(name) || otherwise;
  return { caption: one("q"), like: one("like"), mode: one("mode", "auto"), must: one("must"), where: one("where") };
}

export function toAddress({ caption = "", like = "", mode = "auto", must = "", where = "" }) {
  const own = { q: caption, ...(mode !== "auto" && { mode }), ...(must && { must }), ...(where && { where }) };
  const hash = `#${new URLSearchParams(like ? { like } : own)}`;
  if (hash !== location.hash) history.pushState(null, "", hash);
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
