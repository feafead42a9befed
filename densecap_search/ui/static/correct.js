// The correction of a caption in the place where it is read. The archive's own files stay as they are.

import { askJson, told } from "./ask.js";
import { el } from "./dom.js";

export function correctable(hit, whole, onkept) { // whole: shows the caption; onkept: told what was kept, null: none can be
  if (!onkept) return whole;
  const place = el("div", { className: "corrections" });
  const problem = el("p", { role: "alert" });
  const begin = el("button", { type: "button", onclick: edit }, hit.caption ? "Correct the caption" : "Write a caption");

  async function edit() {
    try {
      show(await askJson(`/api/captions?picture=${encodeURIComponent(hit.picture)}`));
      place.querySelector("textarea").focus();
    } catch (error) {
      problem.textContent = told(error);
    }
  }

  function show({ captions }) {
    problem.textContent = "";
    place.replaceChildren(...[...captions, ...(captions.length ? [] : [""])].flatMap((before, number) => {
      const area = el("textarea", { value: before, maxLength: 100_000, "aria-label": `Caption ${number + 1}` });
      return [area, el("button", { type: "button", onclick: () => save(before, area.value) }, "Save")];
    }), el("button", { type: "button", onclick: rest }, "Close without saving"), problem);
  }

  async function save(before, after) {
    if (before === after) return rest();
    try {
      const { captions, file } = await askJson("/api/captions", { body: { picture: hit.picture, before, after } });
      hit.caption = captions.join("\n");
      whole.textContent = hit.caption || "(no caption)";
      rest();
      onkept(`Kept in ${file}; searches know it after the next densecap index.`);
    } catch (error) {
      problem.textContent = told(error);
    }
    return undefined;
  }

  function rest() {
    place.replaceChildren(whole, begin, problem);
    begin.focus();
  }

  place.append(whole, begin, problem);
  return place;
}
