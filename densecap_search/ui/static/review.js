// Captions that may not fit their pictures: looked for in the background, shown as hits, mended or found right one by one.

import { askJson, told } from "./ask.js";
import { el } from "./dom.js";

const POLL = 500; // ms between two looks at a review that runs

export function review({ onfound }) {
  const status = el("p", { role: "status" }), problem = el("p", { role: "alert" });
  const bar = el("progress", { max: 1, hidden: true, "aria-label": "Progress of the review" });
  const start = el("button", { type: "button", onclick: () => look({ body: {} }) }, "Look for them");
  const show = el("button", { type: "button", hidden: true, onclick: onfound }, "Show them");
  const element = el("details", { id: "review", ontoggle: () => element.open && look() },
    el("summary", {}, "Captions that may not fit"), status, bar, el("div", { className: "buttons" }, show, start), problem);
  let waiting = null, began = false;

  async function look({ body } = {}) {
    clearTimeout(waiting);
    try {
      began ||= Boolean(body);
      tell(await askJson("/api/review", { body }));
    } catch (error) {
      problem.textContent = told(error);
    }
  }

  function tell({ stage, share, what, message, problem: reason }) {
    const looking = stage === "looking";
    status.textContent = looking ? what || "Looking. Searches go on meanwhile." : message;
    problem.textContent = reason;
    start.textContent = stage === "done" ? "Look again" : "Look for them";
    start.disabled = looking;
    show.hidden = stage !== "done";
    bar.hidden = !looking;
    if (share === null) bar.removeAttribute("value");
    else bar.value = share;
    if (looking && element.open) waiting = setTimeout(look, POLL);
    if (stage === "done" && began) {
      began = false;
      onfound();
    }
  }

  return { element };
}

export function right(hit, { onkept, onproblem }) { // the caption stands as it is, and is not asked about again
  const { caption } = hit;
  const button = el("button", { type: "button", className: "right", "aria-pressed": "false", onclick: keep }, "It is right");

  async function keep() {
    try {
      const { file } = await askJson("/api/captions", { body: { picture: hit.picture, before: caption, after: caption } });
      button.setAttribute("aria-pressed", "true");
      onkept(`Kept in ${file}; this caption is not asked about again.`);
    } catch (error) {
      onproblem(told(error));
    }
  }

  return button;
}
