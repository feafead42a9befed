// Where in the large picture a sentence fits: the rest of it goes dark.

import { askJson, told } from "./ask.js";
import { el } from "./dom.js";

const DARKEST = 0.8;

export function heat(hit, frame) {
  const note = el("p", { className: "note", role: "status" });
  let shown; // the button whose sentence is shown

  function hide() {
    shown?.setAttribute("aria-pressed", "false");
    shown = undefined;
    frame.querySelector("canvas")?.remove();
    frame.querySelector("img")?.removeAttribute("hidden");
  }

  async function show(button, text) {
    if (shown === button) return hide();
    hide();
    note.textContent = "";
    try {
      const found = await askJson("/api/heat", { body: { picture: hit.picture, text } });
      const image = frame.querySelector("img");
      if (found.reason) note.textContent = found.reason;
      if (found.reason || !image || !button.isConnected) return undefined;
      await image.decode();
      hide();
      frame.append(el("canvas", { role: "img", "aria-label": `Where it fits: ${text}`, onclick: hide }));
      draw(frame.lastChild, image, found);
      image.hidden = true;
      frame.scrollIntoView({ block: "nearest" }); // on a phone it stands above the sentences
      shown = button;
      button.setAttribute("aria-pressed", "true");
    } catch (error) {
      note.textContent = told(error);
    }
    return undefined;
  }

  return {
    note,
    button(text) {
      const made = el("button", { type: "button", className: "where", title: "Show where in the picture",
        "aria-label": `Show where in the picture: ${text.slice(0, 60)}`, "aria-pressed": "false", onclick: () => show(made, text) }, "◎");
      return made;
    },
  };
}

function draw(canvas, image, { values, box: [left, top, right, bottom] }) {
  const width = canvas.width = image.naturalWidth, height = canvas.height = image.naturalHeight;
  const dark = el("canvas", { width: values[0].length, height: values.length });
  const pen = dark.getContext("2d"), pixels = pen.createImageData(dark.width, dark.height);
  values.flat().forEach((value, place) => { pixels.data[4 * place + 3] = 255 * DARKEST * (1 - value); });
  pen.putImageData(pixels, 0, 0);
  const paper = canvas.getContext("2d");
  paper.drawImage(image, 0, 0);
  paper.imageSmoothingQuality = "high";
  const covered = [left * width, top * height, (right - left) * width, (bottom - top) * height];
  paper.drawImage(dark, ...covered);
  paper.beginPath(); // what the tower does not see is as dark as what fits least
  paper.rect(0, 0, width, height);
  paper.rect(...covered);
  paper.fillStyle = `rgb(0 0 0 / ${DARKEST})`;
  paper.fill("evenodd");
}
