// A lesson: heads tuned on what was answered here, judged by questions that were held out, and taken only when asked.

import { askJson, told } from "./ask.js";
import { el } from "./dom.js";

const POLL = 700; // ms between two looks at a lesson that runs
const SAYS = {
  none: "", learning: "Learning. Searches go on meanwhile.", learned: "Learned. Nothing has changed yet.",
  taking: "The pictures are encoded by the new model. Searches go on meanwhile.",
  taken: "The index is searched by the new model. densecap index --undo goes back.",
};

export function learn() {
  const counts = el("p", {}), status = el("p", { role: "status" }), problem = el("p", { role: "alert" });
  const step = el("p", { className: "step" }), bar = el("progress", { max: 1, "aria-label": "Progress of the lesson" });
  const figures = el("div", {}), doubt = el("p", { className: "step" });
  const start = button("Learn from the answers", "start"), cancel = button("Stop", "cancel");
  const use = button("Use it", "take"), discard = button("Throw it away", "discard");
  const element = el("details", { id: "learn", ontoggle: () => element.open && look() },
    el("summary", {}, "Learn from the answers"), counts, status, step, bar, figures, doubt,
    el("div", { className: "buttons" }, start, cancel, use, discard), problem);
  let waiting = null;

  function button(name, what) {
    return el("button", { type: "button", hidden: true, onclick: () => look({ path: `/api/lesson/${what}`, body: {} }) }, name);
  }

  async function look({ path = "/api/lesson", body } = {}) {
    clearTimeout(waiting);
    try {
      show(await askJson(path, { body }));
    } catch (error) {
      problem.textContent = told(error);
    }
  }

  function show(lesson) {
    const { stage, share, train, held_out: held } = lesson, runs = stage === "learning" || stage === "taking";
    const focused = element.contains(document.activeElement) && document.activeElement;
    counts.textContent = `${questions(train)} to learn from, ${held} held out to be asked before and after.`;
    if (status.textContent !== SAYS[stage]) status.textContent = SAYS[stage];
    problem.textContent = lesson.problem;
    step.hidden = bar.hidden = !runs;
    step.textContent = [`${Math.round(lesson.seconds)} s`, lesson.what || lesson.said].filter(Boolean).join(" · ");
    if (share === null) bar.removeAttribute("value");
    else bar.value = share;
    figures.replaceChildren(...(lesson.figures.length && stage !== "none" ? [table(lesson)] : []));
    doubt.textContent = lesson.doubt;
    start.hidden = runs || stage === "learned";
    start.disabled = !train;
    cancel.hidden = !runs;
    use.hidden = discard.hidden = stage !== "learned";
    if (focused && focused.closest("[hidden]")) [use, cancel, start].find((one) => !one.hidden).focus();
    if (runs && element.open) waiting = setTimeout(look, POLL);
  }

  return { element, count() { if (element.open) look(); } }; // count: what can be learned from has changed
}

function table({ questions: count, figures }) {
  const rows = figures.map(({ name, before, after, low, high }) => {
    const digits = name === "MRR" ? 3 : 1;
    return el("tr", {}, el("th", { scope: "row" }, name), ...[before, after].map((value) => el("td", {}, value.toFixed(digits))),
      el("td", {}, `${signed(low, digits)} to ${signed(high, digits)}`));
  });
  return el("table", {}, el("caption", {}, `${questions(count)} held out, text to picture`),
    el("thead", {}, el("tr", {}, ...["", "before", "after", "difference, 95 %"].map((name) => name ? el("th", { scope: "col" }, name) : el("td", {})))),
    el("tbody", {}, ...rows));
}

function questions(count) {
  return `${count.toLocaleString("en")} question${count === 1 ? "" : "s"}`;
}

function signed(value, digits) {
  return `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`;
}
