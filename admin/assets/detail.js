// One circuit, all there is to know of it.
import { byID, el, fill, keyText, shape, stateLabel, visible, words } from "./dom.js";
import { ago, at, causeText, clock, now, openUntil, rules } from "./format.js";
import { gauge } from "./list.js";
import { legend, timeline } from "./timeline.js";

// A Detail is the panel. Its frame is built once for a circuit, so that what
// has the focus keeps it; news only change what is in the frame.
export class Detail {
  id = null;

  constructor({ act, close, readOnly }) {
    this.node = byID("detail");
    this.act = act;
    this.close = close;
    this.readOnly = readOnly;
  }

  open(c) {
    this.id = c.id;
    const part = (name, title) => {
      this[name] = el("div", {});
      return el("section", {}, title ? el("h3", {}, title) : null, this[name]);
    };
    this.state = el("p", {});
    fill(this.node,
      el("div", { class: "detail-head" },
        el("div", {}, this.state, el("h2", { id: "detail-title", tabindex: "-1" }, keyText(c.key))),
        el("button", { class: "quiet", type: "button", id: "close", onclick: this.close }, "Close")),
      part("says"),
      this.readOnly ? null : this.#actions(),
      part("counts", "Against the thresholds"),
      part("line", "The last events, over time"),
      part("last", "Last failure"),
      part("events", "The last events, newest first"),
      part("policy", "Policy and counters"));
    this.node.hidden = false;
    byID("board").classList.add("split");
    this.show(c);
    fill(this.line, "Reading…");
    byID("detail-title").focus();
  }

  hide() {
    this.id = null;
    this.node.hidden = true;
    byID("board").classList.remove("split");
  }

  show(c) {
    this.circuit = c;
    fill(this.state, stateLabel(c.state));
    fill(this.says, sentences(c));
    fill(this.counts, el("div", { class: "gauges" }, rules(c).map((r) => el("div", { class: "gauge" }, gauge(r, c.state, r.text)))));
    fill(this.last, lastFailure(c));
    fill(this.policy, facts(c));
    if (this.release) this.release.hidden = !c.override;
  }

  // showHistory takes the events, newest first.
  showHistory(events) {
    fill(this.line, timeline(events, this.circuit.state, this.line.clientWidth), legend());
    fill(this.events, events.length ? table(events) : el("p", { class: "why" }, "None yet."));
  }

  #actions() {
    const button = (verb, text) => el("button", { type: "button", "data-verb": verb, onclick: () => this.act(verb, this.circuit) }, text);
    this.release = button("clear-override", "Release hold…");
    return el("div", { class: "actions", role: "group", "aria-label": "Change this circuit" },
      button("reset", "Reset…"), button("force-open", "Hold open…"), button("force-closed", "Hold closed…"), this.release);
  }
}

function sentences(c) {
  const until = (ms) => el("b", { "data-until": ms }, clock(ms - now()));
  const p = (...parts) => el("p", { class: "sentence" }, parts);
  const o = c.override;
  const says = [];
  if (o) {
    const what = o.state === "open" ? "no call runs" : "all calls run and nothing trips";
    says.push(p(`Held ${o.state} by `, el("b", {}, visible(o.by ?? "?")), `: ${what}, `, o.until ? ["for another ", until(Date.parse(o.until)), ` (until ${at(o.until)}).`] : "until it is released."));
    if (o.reason) says.push(p("Reason: ", visible(o.reason)));
    return says;
  }
  const end = openUntil(c);
  if (c.state === "open") says.push(p("No call runs. ", end === null ? "" : ["The next call after ", until(end), " is a probe."]));
  else if (c.state === "half-open") says.push(p(c.probes_in_flight > 0 ? `${c.probes_in_flight} of ${c.policy.max_probes} probes under way; other calls are rejected. ` : "The cooldown is over: the next call is a probe. ", `${c.probe_successes} of ${c.policy.probe_successes} have succeeded that it takes to close.`));
  else says.push(p("Calls run, and what comes of them is counted."));
  if (c.reopens > 0) says.push(p(`${c.reopens} ${c.reopens === 1 ? "recovery has" : "recoveries have"} failed since it opened.`));
  if (c.policy.shadow) says.push(p("Shadow: it counts and changes state, but rejects nothing."));
  return says;
}

function lastFailure(c) {
  const e = c.last_failure;
  if (!e) return el("p", { class: "why" }, "None known.");
  return el("div", { class: "last" },
    el("p", {}, el("b", { "data-ago": e.at }, ago(e.at)), ` (${at(e.at, true)})`, e.instance ? ", seen by " + visible(e.instance) : ""),
    el("pre", {}, visible(e.error ?? "unknown error")));
}

function facts(c) {
  const rows = [["Generation", c.generation]];
  if (c.opened_at) rows.push(["Opened", at(c.opened_at)]);
  if (c.retry_at) rows.push(["Cooldown ends", at(c.retry_at)]);
  if (c.changed_at) rows.push(["Last change", at(c.changed_at)]);
  rows.push(["Calls in the window", c.window_calls], ["Failures in the window", c.window_failures], ["Slow in the window", c.window_slow], ["Probes under way", c.probes_in_flight]);
  for (const [name, value] of Object.entries(c.policy)) rows.push([name.replaceAll("_", " "), value === true ? "on" : value]);
  return el("dl", { class: "facts" }, rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value)))));
}

function table(events) {
  const cell = (...parts) => el("td", {}, parts);
  return el("div", { class: "events", tabindex: "0", role: "region", "aria-label": "Events" }, el("table", {},
    el("thead", {}, el("tr", {}, ["Time", "What", "Details"].map((h) => el("th", { scope: "col" }, h)))),
    el("tbody", {}, events.map((e) => el("tr", {}, cell(at(e.at, true)), cell(what(e)), cell(details(e)))))));
}

function what(e) {
  switch (e.kind) {
    case "transition": return el("span", { class: "state is-" + e.transition.to }, shape(e.transition.to), words[e.transition.to]);
    case "failure": return "Failure";
    case "probe": return "Probe: " + e.outcome;
    case "override": return "Held " + e.override.state;
    case "cleared": return "Hold released";
    case "reset": return "Reset";
  }
  return visible(e.kind);
}

function details(e) {
  const said = [];
  if (e.transition) said.push(causeText(e.transition.cause));
  if (e.by) said.push("by " + e.by);
  if (e.override?.reason) said.push(e.override.reason);
  if (e.override) said.push(e.override.until ? "until " + at(e.override.until) : "until released");
  if (e.error) said.push(e.error);
  if (e.instance) said.push("seen by " + e.instance);
  return visible(said.join(" · "));
}
