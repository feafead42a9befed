// What is asked for beside the caption: what it is compared with, words that must occur, a filter.

import { el } from "./dom.js";

const MODES = { auto: "what finds most here", image: "the pictures", text: "their captions, by meaning", words: "their captions, by words" };
const ROOM = "(min-width: 701px)";
const NONE = { mode: "auto", must: "", where: "" };

export function conditions() {
  const mode = el("select", { id: "mode" }, ...Object.entries(MODES).map(([value, name]) => el("option", { value }, name)));
  const must = line("must", { maxLength: 1000, placeholder: "line 12; Inv. 1984.23" });
  const where = line("where", { maxLength: 2000, placeholder: "year >= 1990 and place = 'Lyon'" });
  const element = el("details", { id: "conditions", open: matchMedia(ROOM).matches }, el("summary", {}, "Conditions"),
    field(mode, "Compare with"), field(must, "Must contain (several: with ; between)"), field(where, "Filter"));

  return {
    element,
    get value() { return { mode: mode.value, must: must.value.trim(), where: where.value.trim() }; },
    set value(asked) {
      const known = { ...NONE, ...asked };
      mode.value = known.mode in MODES ? known.mode : NONE.mode;
      must.value = known.must;
      where.value = known.where;
      if (changed(known)) element.open = true; // what narrows the hits must be seen
    },
  };
}

export function changed(asked) {
  return Object.keys(NONE).some((name) => asked[name] !== NONE[name]);
}

export function asBody({ mode, must, where }) {
  return { mode, must: must.split(";").map((words) => words.trim()).filter(Boolean), where: where || null };
}

function line(id, properties) {
  return el("input", { id, type: "text", spellcheck: false, autocomplete: "off", ...properties });
}

function field(input, name) {
  return el("div", { className: "field" }, el("label", { htmlFor: input.id }, name), input);
}
