// The list: circuits by what is wrong with them, then by name.
import { byID, el, fill, keyText, shape, stateLabel, visible, words } from "./dom.js";
import { ago, at, clock, nearest, now, openUntil } from "./format.js";

const rank = { open: 0, "half-open": 1, unreadable: 2, closed: 3 };

function before(a, b) {
  return rank[a.state] - rank[b.state] || Number(!a.override) - Number(!b.override) || (a.key < b.key ? -1 : a.key > b.key ? 1 : a.id < b.id ? -1 : 1);
}

// gauge is a rule as a bar, with a text above.
export function gauge(rule, state, text) {
  const bar = el("span", { class: "fill" });
  const share = Math.min(1, Math.max(0, rule.ratio));
  bar.style.width = share * 100 + "%";
  const level = rule.good ? "far" : share >= 1 && state !== "closed" ? "met" : share >= 0.6 ? "near" : "far";
  return [text, el("span", { class: "bar", "data-level": level, "aria-hidden": "true" }, bar)];
}

function shortGauge(c) {
  const rule = nearest(c);
  return gauge(rule, c.state, rule.short);
}

function held(c) {
  if (!c.override) return null;
  const how = c.override.state === "open" ? "Held open" : "Held closed";
  return el("span", { class: "held" }, el("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, el("use", { href: "#lock" })), how + " by " + visible(c.override.by ?? "?"));
}

function why(c) {
  if (c.state === "unreadable") return visible(c.error);
  if (c.override) return [held(c), c.override.reason ? ": " + visible(c.override.reason) : ""];
  if (c.state === "half-open") return c.probes_in_flight > 0 ? `${c.probes_in_flight} of ${c.policy.max_probes} probes under way` : "The next call is a probe";
  if (!c.last_failure) return "No failure known";
  const failure = visible(c.last_failure.error ?? "unknown error");
  return c.state === "open" ? failure : el("span", {}, "Last failure ", el("span", { "data-ago": c.last_failure.at }, ago(c.last_failure.at)), ": " + failure);
}

// countdown is filled in by tick.
export function countdown(c) {
  const end = openUntil(c);
  if (end !== null) return [el("b", { "data-until": end }, clock(end - now())), el("span", {}, c.override ? "of the hold left" : "to next probe")];
  if (c.override?.until) {
    const t = Date.parse(c.override.until);
    return [el("b", { "data-until": t }, clock(t - now())), el("span", {}, "of the hold left")];
  }
  if (c.override) return [el("span", {}, "until released")];
  return [];
}

// tick moves all countdowns and ages on.
export function tick() {
  for (const node of document.querySelectorAll("[data-until]")) {
    const left = node.dataset.until - now();
    node.textContent = left > 0 ? clock(left) : "0:00";
  }
  for (const node of document.querySelectorAll("[data-ago]")) node.textContent = ago(node.dataset.ago);
}

function rowParts(c) {
  return [
    stateLabel(c.state),
    el("span", { class: "what" },
      el("span", { class: c.key === "" ? "name odd" : "name", title: keyText(c.key) }, keyText(c.key)),
      el("span", { class: "why" }, why(c))),
    el("span", { class: "gauge" }, c.state === "unreadable" ? "" : shortGauge(c)),
    el("span", { class: "count" }, c.state === "unreadable" ? [] : countdown(c)),
  ];
}

// spoken is a row as a screen reader says it: with the time at which a
// countdown ends, since it would have to say each second anew.
function spoken(c, row) {
  const parts = [...row.children].slice(0, 3).map((part) => part.innerText.replace(/\s+/g, " ").trim());
  const end = openUntil(c);
  if (end !== null) parts.push((c.override ? "held until " : "next probe at ") + at(new Date(end).toISOString()));
  return parts.filter(Boolean).join(", ");
}

// A List shows circuits, and moves no row that need not move: what has the
// focus keeps it.
export class List {
  rows = new Map(); // id -> {item, button, circuit}

  constructor(open) {
    this.node = byID("circuits");
    this.open = open;
    this.node.addEventListener("keydown", (e) => this.#arrow(e));
  }

  show(circuits, selected) {
    const sorted = [...circuits].sort(before);
    const wanted = new Set(sorted.map((c) => c.id));
    for (const [id, row] of this.rows) {
      if (!wanted.has(id)) {
        row.item.remove();
        this.rows.delete(id);
      }
    }
    const focused = document.activeElement;
    let next = this.node.firstElementChild;
    for (const c of sorted) {
      const row = this.rows.get(c.id) ?? this.#add(c.id);
      if (row.circuit !== c) {
        row.circuit = c;
        row.button.dataset.state = c.state;
        fill(row.button, rowParts(c));
        row.button.setAttribute("aria-label", spoken(c, row.button));
      }
      row.button.setAttribute("aria-expanded", String(c.id === selected));
      if (row.item === next) next = next.nextElementSibling;
      else this.node.insertBefore(row.item, next);
    }
    if (focused !== document.activeElement && this.node.contains(focused)) focused.focus({ preventScroll: true });
  }

  #add(id) {
    const button = el("button", { class: "row", type: "button", "aria-controls": "detail", onclick: () => this.open(id) });
    const row = { item: el("li", {}, button), button, circuit: null };
    this.rows.set(id, row);
    return row;
  }

  focus(id) {
    this.rows.get(id)?.button.focus();
  }

  #arrow(e) {
    const item = e.target.closest("li");
    const to = { ArrowDown: item?.nextElementSibling, ArrowUp: item?.previousElementSibling }[e.key];
    if (to) {
      e.preventDefault();
      to.firstElementChild.focus();
    }
  }
}

// showVerdict says how things are in one sentence.
export function showVerdict(totals) {
  const node = byID("verdict");
  const n = totals.open, all = totals.open + totals.half_open + totals.closed + totals.unreadable;
  const circuits = (k) => k.toLocaleString("en") + (k === 1 ? " circuit" : " circuits");
  let state = "closed", text = all === 0 ? "No circuit is known yet" : all === 1 ? "The one circuit is healthy" : `All ${circuits(all)} are healthy`;
  if (n > 0) [state, text] = ["open", circuits(n) + (n === 1 ? " is open" : " are open")];
  else if (totals.half_open > 0) [state, text] = ["half-open", circuits(totals.half_open) + (totals.half_open === 1 ? " is being tested" : " are being tested")];
  else if (totals.unreadable > 0) [state, text] = ["unreadable", circuits(totals.unreadable) + " can't be read"];
  fill(node, el("span", { class: "is-" + state }, shape(state)), el("span", {}, text));
  document.title = (n > 0 ? `(${n} open) ` : "") + byID("title").textContent;
}

export function showTiles(totals, only, choose) {
  const tiles = byID("tiles");
  const counts = { open: totals.open, "half-open": totals.half_open, closed: totals.closed };
  for (const [state, n] of Object.entries(counts)) {
    let tile = tiles.querySelector(`[data-tile="${state}"]`);
    if (!tile) {
      tile = el("button", { class: "tile", type: "button", "data-tile": state, onclick: () => choose(state) });
      tiles.append(tile);
    }
    tile.setAttribute("aria-pressed", String(only === state));
    fill(tile, el("span", { class: n === 0 && state !== "closed" ? "state none" : "state is-" + state }, shape(state), words[state]), el("b", {}, n.toLocaleString("en")));
  }
}
