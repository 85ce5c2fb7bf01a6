// The last events of a circuit, drawn over time. The state is told by height
// as well as by colour.
import { el, words } from "./dom.js";
import { at, now } from "./format.js";

const left = 4, base = 82, heights = { closed: 12, "half-open": 32, open: 52 };

// timeline draws events, newest first, so wide.
export function timeline(events, state, width) {
  const right = Math.max(width, 280) - left;
  const end = now();
  const oldest = events.length ? Date.parse(events[events.length - 1].at) : end;
  const start = Math.min(oldest - 0.04 * (end - oldest), end - 1000);
  const x = (iso) => left + ((Date.parse(iso) - start) / (end - start)) * (right - left);
  const turns = events.filter((e) => e.transition).reverse();

  // The state before the first turn is what that one came from.
  const spans = [];
  let from = left, now_ = turns.length ? turns[0].transition.from : state;
  for (const e of turns) {
    spans.push([from, x(e.at), now_]);
    from = x(e.at);
    now_ = e.transition.to;
  }
  spans.push([from, right, now_]);

  return el("svg", { class: "timeline", viewBox: `0 0 ${right + left} 102`, role: "img", "aria-label": summary(events, state) },
    spans.map(([a, b, s]) => el("rect", { class: "span-" + s, x: a.toFixed(1), y: base - heights[s], width: Math.max(2.5, b - a).toFixed(1), height: heights[s] }, el("title", {}, words[s]))),
    el("line", { class: "axis", x1: left, x2: right, y1: base, y2: base }),
    events.map((e) => mark(e, x(e.at))),
    el("text", { x: left, y: 98 }, at(new Date(start).toISOString())),
    el("text", { x: right, y: 98, "text-anchor": "end" }, "now"));
}

function mark(e, x) {
  const title = el("title", {}, at(e.at) + " " + e.kind);
  const px = x.toFixed(1);
  switch (e.kind) {
    case "failure":
      return el("line", { class: "mark-failure", x1: px, x2: px, y1: 4, y2: 20 }, title);
    case "probe":
      return e.outcome === "success"
        ? el("circle", { class: "mark-good", cx: px, cy: 12, r: 4 }, title)
        : el("path", { class: "mark-bad", d: `M${(x - 5).toFixed(1)} 17L${px} 7L${(x + 5).toFixed(1)} 17z` }, title);
    case "override": case "cleared": case "reset":
      return el("rect", { class: "mark-word", x: (x - 3.5).toFixed(1), y: 8.5, width: 7, height: 7 }, title);
  }
  return null;
}

function summary(events, state) {
  const n = (kind) => events.filter((e) => e.kind === kind).length;
  const operator = n("override") + n("cleared") + n("reset");
  return `Timeline of the last ${events.length} events: ${n("failure")} failures, ${n("transition")} changes of state, ${n("probe")} probes, ${operator} by operators. Now ${words[state]}. The table below has each.`;
}

export function legend() {
  const icon = (...nodes) => el("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" }, nodes);
  const entry = (text, ...nodes) => el("span", {}, icon(...nodes), text);
  return el("p", { class: "legend" },
    entry("healthy", el("rect", { class: "span-closed", x: 1, y: 10, width: 12, height: 3 })),
    entry("testing", el("rect", { class: "span-half-open", x: 1, y: 6, width: 12, height: 7 })),
    entry("open", el("rect", { class: "span-open", x: 1, y: 1, width: 12, height: 12 })),
    entry("failure", el("line", { class: "mark-failure", x1: 7, x2: 7, y1: 1, y2: 13 })),
    entry("probe succeeded", el("circle", { class: "mark-good", cx: 7, cy: 7, r: 4 })),
    entry("probe failed", el("path", { class: "mark-bad", d: "M2 12L7 2L12 12z" })),
    entry("operator", el("rect", { class: "mark-word", x: 3.5, y: 3.5, width: 7, height: 7 })));
}
