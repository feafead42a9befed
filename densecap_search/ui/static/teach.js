// What people say of the hits of a caption: which one was meant, or none. Kept on the server's machine.

import { askJson, told } from "./ask.js";
import { el } from "./dom.js";

export function teach({ onkept, onproblem }) {
  let query = "", shown = [], meant = new Map(); // picture → whether it is the one; "" → whether none is
  const none = toggle("None of these", () => say(""));
  const element = el("p", { className: "none", hidden: true }, none);

  async function say(picture) {
    const yes = !meant.get(picture), asked = meant;
    const rank = shown.find((hit) => hit.picture === picture)?.rank ?? null; // null: found as a neighbour of a hit
    const body = { caption: query, answer: yes ? (picture ? "this" : "none") : "undo", picture: picture || null, rank, hits: shown.length };
    try {
      const { file } = await askJson("/api/feedback", { body });
      asked.set(picture, yes);
      if (asked === meant) mark();
      onkept(yes ? `Kept in ${file}, beside the index.` : "Taken back.");
    } catch (error) {
      onproblem(told(error));
    }
  }

  function mark() {
    set(none, meant.get(""));
    document.querySelectorAll("#densecap .meant").forEach((button) => set(button, meant.get(button.dataset.id)));
  }

  return {
    element,
    begin(caption, hits) { // a caption was searched for; without one nothing can be said of the hits
      [query, shown, meant] = [caption, hits, new Map()];
      element.hidden = true;
      mark();
    },
    found() { element.hidden = !query; },
    button(hit) {
      if (!query) return null;
      const made = toggle("This is the one", () => say(hit.picture), "meant");
      made.dataset.id = hit.picture;
      set(made, meant.get(hit.picture));
      return made;
    },
  };
}

function toggle(name, onclick, className = "") {
  return el("button", { type: "button", className, onclick, "aria-pressed": "false" }, name);
}

function set(button, yes) {
  button.setAttribute("aria-pressed", String(Boolean(yes)));
}
