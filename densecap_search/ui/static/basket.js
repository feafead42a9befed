// Pictures that were kept, over searches and reloads, in this browser; and their export.

import { ask, told } from "./ask.js";
import { el } from "./dom.js";

const MOST = 5000;
const FORMATS = { csv: "CSV", jsonl: "JSONL", zip: "ZIP", html: "Contact sheet" };

export function basket({ key, onchange, onproblem }) {
  const name = `densecap basket ${key}`;
  let items = read(name, []);
  const count = el("span", { className: "count" });
  const element = el("div", { id: "basket", role: "region", "aria-label": "Basket", hidden: true }, count,
    ...Object.entries(FORMATS).map(([format, label]) => el("button", { type: "button", onclick: () => save(format) }, label)),
    el("button", { type: "button", onclick: () => change([]) }, "Empty it"));

  function change(next) {
    const touched = [...items.filter((one) => !next.includes(one)), ...next.filter((one) => !items.includes(one))];
    items = next.slice(-MOST);
    write(name, items);
    tell();
    touched.forEach((one) => onchange(one, items.includes(one)));
  }

  function tell() {
    element.hidden = !items.length;
    count.textContent = `${items.length} in the basket; save as`;
  }

  async function save(format) {
    const sent = items;
    try {
      const reply = await ask(`/api/export?format=${format}`, { body: { items: sent } });
      const link = el("a", { href: URL.createObjectURL(await reply.blob()), download: `pictures.${format}` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
    } catch (error) {
      onproblem(told(error));
    }
  }

  tell();
  const has = (hit) => items.some((one) => one.picture === hit.picture);
  return {
    element, has,
    toggle(hit, query) {
      change(has(hit) ? items.filter((one) => one.picture !== hit.picture)
        : [...items, { picture: hit.picture, score: hit.score, query }]);
    },
  };
}

export function read(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export function write(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
  } catch { /* private windows and full stores: it lasts as long as the page */ }
}
