// Building the page. All text goes in as text: nothing here reads markup.

const svgNS = "http://www.w3.org/2000/svg";
const svgTags = new Set(["svg", "use", "rect", "path", "circle", "line", "text", "g", "title"]);

// el("p", {class: "x", onclick: f}, "text", child) makes an element. Attributes
// that are null or false are left out; so are such children.
export function el(tag, attributes = {}, ...children) {
  const node = svgTags.has(tag) ? document.createElementNS(svgNS, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return node;
}

export const byID = (id) => document.getElementById(id);

export function fill(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
}

export const words = { closed: "Healthy", "half-open": "Testing", open: "Open", unreadable: "Unreadable" };

export function shape(state) {
  return el("svg", { class: "shape", viewBox: "0 0 20 20", "aria-hidden": "true" }, el("use", { href: "#shape-" + state }));
}

export function stateLabel(state) {
  return el("span", { class: "state is-" + state }, shape(state), words[state]);
}

// visible shows characters that would hide, or turn the text around them.
const unseen = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
export function visible(text) {
  return text.replace(unseen, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

export const keyText = (key) => (key === "" ? "(the empty key)" : visible(key));
