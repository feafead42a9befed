// What is asked for beside the caption. None of it is ever read out of the caption.

import { el } from "./dom.js";

const MODES = { auto: "what finds most here", fused: "pictures and captions together", image: "the pictures", text: "their captions, by meaning", words: "their captions, by words" };
const ROOM = "(min-width: 701px)";
const NONE = { mode: "auto", must: "", where: "", without: "", also: [], least: "", sort: "score", stacks: true, like: [], unlike: [] };

export function conditions({ onchange }) {
  const mode = el("select", { id: "mode" }, ...Object.entries(MODES).map(([value, name]) => el("option", { value }, name)));
  const must = line("must", { maxLength: 1000, placeholder: "line 12; Inv. 1984.23" });
  const where = line("where", { maxLength: 2000, placeholder: "year >= 1990 and place = 'Lyon'" });
  const without = line("without", { maxLength: 2000, placeholder: "people; cars" });
  const least = line("least", { type: "number", step: "any", min: -1, max: 1, placeholder: "0.2" });
  const sort = el("select", { id: "sort" }, el("option", { value: "score" }, "best first"), el("option", { value: "date" }, "newest first, each page"));
  const stacks = el("input", { id: "stacks", type: "checkbox", checked: true, onchange });
  const terms = el("div", { id: "also" });
  const pictures = el("ul", { id: "likes", "aria-label": "Pictures it should be like, or not", hidden: true });
  const first = el("details", { id: "conditions", open: matchMedia(ROOM).matches }, el("summary", {}, "Conditions"),
    field(mode, "Compare with"), field(must, "Must contain (several: with ; between)"), field(where, "Filter"));
  const further = el("details", { id: "more-conditions" }, el("summary", {}, "More conditions"),
    field(without, "Without (several: with ; between)"),
    el("div", { className: "field", role: "group", "aria-label": "Also, each with its weight; the caption has 1" },
      el("span", { className: "name", "aria-hidden": "true" }, "Also (weight and text; the caption has 1)"), terms,
      el("button", { type: "button", id: "one-more", onclick: () => terms.append(term(1, "")) }, "One more")),
    field(least, "Least score"), field(sort, "Order"),
    el("div", { className: "field check" }, stacks, el("label", { htmlFor: "stacks" }, "Put what is nearly the same into one stack")));
  let like = [], unlike = [], given = null; // given: a file, as { data, url }

  function showPictures() {
    const chips = (names, sign, word) => names.map((name) => el("li", {},
      el("img", { src: `/pictures/${name}/small`, alt: "" }), sign, el("button", { type: "button", title: "Take it out",
        "aria-label": `No longer ${word} this picture`, onclick: () => { drop(name); onchange(); } }, "✕")));
    const own = given && el("li", {}, el("img", { src: given.url, alt: "" }), "like this", el("button", { type: "button",
      title: "Take it out", "aria-label": "No longer like the picture that was given", onclick: () => { given = null; showPictures(); onchange(); } }, "✕"));
    pictures.replaceChildren(...(own ? [own] : []), ...chips(like, "like this", "like"), ...chips(unlike, "not like this", "unlike"));
    pictures.hidden = !pictures.children.length;
  }

  function drop(name) {
    like = like.filter((one) => one !== name);
    unlike = unlike.filter((one) => one !== name);
    showPictures();
  }

  const own = {
    element: el("div", {}, pictures, first, further),
    get value() {
      const also = [...terms.children].map((row) => [Number(row.firstChild.value || 1), row.lastChild.value.trim()]).filter(([, text]) => text);
      return { mode: mode.value, must: must.value.trim(), where: where.value.trim(), without: without.value.trim(), also,
        least: least.value, sort: sort.value, stacks: stacks.checked, like, unlike, picture: given?.data };
    },
    set value(asked) {
      const known = { ...NONE, ...asked };
      mode.value = known.mode in MODES ? known.mode : NONE.mode;
      for (const [input, name] of [[must, "must"], [where, "where"], [without, "without"], [least, "least"]]) input.value = known[name];
      sort.value = known.sort === "date" ? "date" : "score";
      stacks.checked = known.stacks;
      terms.replaceChildren(...(known.also.length ? known.also : [[1, ""]]).map(([weight, text]) => term(weight, text)));
      [like, unlike, given] = [known.like, known.unlike, null];
      showPictures();
      if (changed(known, "mode", "must", "where")) first.open = true; // what narrows the hits must be seen
      if (changed(known, "without", "also", "least", "sort", "stacks")) further.open = true;
    },
    give(picture) {
      given = picture;
      showPictures();
    },
    near(name, wanted) { // more, or less, like a picture
      drop(name);
      if (wanted) like = [...like, name]; else unlike = [...unlike, name];
      showPictures();
    },
  };
  own.value = NONE;
  return own;
}

export function asksFor(asked) { // something without a caption
  return Boolean(asked.must || asked.where || asked.also.length || asked.like.length || asked.unlike.length || asked.picture);
}

export function texts({ without, also }) {
  return { also, without: several(without) };
}

export function asBody(asked) {
  const { mode, must, where, least, sort, stacks, like, unlike, picture } = asked;
  return { mode, picture, must: several(must), where: where || null, min_score: least === "" ? null : Number(least), sort, stacks, like, unlike, ...texts(asked) };
}

function changed(asked, ...names) {
  return names.some((name) => String(asked[name]) !== String(NONE[name]));
}

function several(text) {
  return text.split(";").map((part) => part.trim()).filter(Boolean);
}

function term(weight, text) {
  return el("div", { className: "term" },
    el("input", { type: "number", step: "any", min: -100, max: 100, value: weight, "aria-label": "Weight" }),
    el("input", { type: "text", maxLength: 2000, value: text, spellcheck: false, autocomplete: "off", placeholder: "rain at night", "aria-label": "Also" }));
}

function line(id, properties) {
  return el("input", { id, type: "text", spellcheck: false, autocomplete: "off", ...properties });
}

function field(input, name) {
  return el("div", { className: "field" }, el("label", { htmlFor: input.id }, name), input);
}
