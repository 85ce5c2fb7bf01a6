// The dashboard: it reads the list once, and then lives on the event stream.
import { APIError, listen, readHistory, readCircuit, readList, token } from "./api.js";
import { byID, keyText, words } from "./dom.js";
import { Detail } from "./detail.js";
import { ask } from "./dialog.js";
import { at, learn } from "./format.js";
import { List, showTiles, showVerdict, tick } from "./list.js";

const needsToken = document.body.dataset.signIn === "true";
const readOnly = document.body.dataset.readOnly === "true";

const circuits = new Map(); // id -> circuit, as far as they are on the page
let totals = { open: 0, half_open: 0, closed: 0, unreadable: 0 };
let only = null; // the state that alone is shown
let search = "";
let cursor = null; // of the next healthy circuits; null: all are on the page
let loads = 0; // how often the list was begun to be read: a late answer is dropped
let connection = null; // aborts the stream

const list = new List(open);
const detail = new Detail({ act: (verb, c) => ask(verb, c, changed), close, readOnly });

// What is on the page.

function newest(c) {
  const known = circuits.get(c.id);
  return !known || Date.parse(c.as_of) >= Date.parse(known.as_of);
}

const matches = (c) => c.key.toLowerCase().includes(search.toLowerCase()) && (!only || c.state === only);

// keep takes a circuit in. A healthy one beyond those read so far stays out.
function keep(c) {
  learn(c.as_of);
  if (!newest(c)) return;
  if (circuits.has(c.id) || c.state !== "closed" || cursor === null) circuits.set(c.id, c);
  if (c.id === detail.id) detail.show(c);
}

// draw shows what has changed, soon, however often it is asked. It is a timer,
// since a tab in the background draws no frames, and its title should still tell.
let drawing = false;
function draw() {
  if (drawing) return;
  drawing = true;
  setTimeout(() => {
    drawing = false;
    const shown = [...circuits.values()].filter(matches);
    list.show(shown, detail.id);
    showVerdict(totals);
    showTiles(totals, only, choose);
    byID("empty").hidden = shown.length > 0;
    byID("empty").textContent = search || only ? "No circuit is like that." : "No circuit is known yet. One appears with the first call of its key.";
    byID("more").hidden = cursor === null || (only !== null && only !== "closed");
  }, 30);
}

async function load() {
  const mine = ++loads;
  const began = Date.now();
  const name = search ? { name: search } : {};
  const [unwell, well] = await Promise.all([
    readList({ ...name, state: "open,half-open", limit: 500 }), readList({ ...name, state: "closed", limit: 100 })]);
  if (mine !== loads) return;
  learn(well.as_of);
  const there = new Set();
  for (const page of [unwell, well]) take(page, there);
  for (const [id, c] of circuits) {
    if (!there.has(id) && !(c.heard > began)) circuits.delete(id);
  }
  cursor = well.next_cursor ?? null;
  draw();
}

function take(page, there = new Set()) {
  for (const u of page.unreadable) {
    there.add(u.id);
    circuits.set(u.id, { ...u, state: "unreadable", as_of: page.as_of });
  }
  for (const c of page.circuits) {
    there.add(c.id);
    if (newest(c)) circuits.set(c.id, c);
  }
}

async function more() {
  const mine = loads;
  const page = await readList({ ...(search ? { name: search } : {}), state: "closed", limit: 100, cursor });
  if (mine !== loads) return;
  take(page);
  cursor = page.next_cursor ?? null;
  draw();
}

// The panel.

async function open(id) {
  const c = circuits.get(id);
  if (!c || c.state === "unreadable") return;
  detail.open(c);
  draw();
  await history();
}

function close() {
  const id = detail.id;
  detail.hide();
  draw();
  list.focus(id);
}

// history reads the events of the circuit in the panel, once at a time: what
// is asked for meanwhile is read after it.
let readingHistory = false, historyAgain = false;
async function history() {
  if (readingHistory) {
    historyAgain = true;
    return;
  }
  readingHistory = true;
  try {
    do {
      historyAgain = false;
      const id = detail.id;
      if (id === null) return;
      const answer = await readHistory(id);
      if (detail.id === id) detail.showHistory(answer.events);
    } while (historyAgain);
  } catch (failure) {
    report(failure);
  } finally {
    readingHistory = false;
  }
}

async function changed(c) {
  try {
    keep(c ?? await readCircuit(detail.id));
    draw();
    await history();
  } catch (failure) {
    report(failure);
  }
}

// The stream.

const told = {
  totals(t) {
    learn(t.as_of);
    totals = t;
    trouble(null);
    draw();
  },
  circuit(c) {
    c.heard = Date.now();
    keep(c);
    draw();
    if (c.id === detail.id) history();
  },
  gone({ id }) {
    circuits.delete(id);
    if (id === detail.id) close();
    draw();
  },
  transition(t) {
    byID("announcer").textContent = `${keyText(t.key)}: ${words[t.to]}`;
  },
  trouble(t) {
    learn(t.as_of);
    trouble(`The store can't be read since ${at(t.as_of)}; what is shown is from before. ${t.detail}`);
  },
  resync: () => load().catch(report),
};

function trouble(text) {
  byID("trouble").hidden = text === null;
  byID("trouble").textContent = text ?? "";
}

function live(on, text) {
  byID("live").dataset.live = on ? "on" : "off";
  byID("live-text").textContent = text;
}

function report(failure) {
  if (failure instanceof APIError && failure.status === 401) signOut("The token is not valid.");
  else if (failure.name !== "AbortError") {
    trouble(failure.message);
    setTimeout(() => byID("trouble").textContent === failure.message && trouble(null), 10_000);
  }
}

// connect keeps a stream open until it is aborted. The first event of each
// says that all that changes from then on will be told: then the list is read.
async function connect() {
  connection?.abort();
  const mine = (connection = new AbortController());
  for (let wait = 1000; !mine.signal.aborted; wait = Math.min(2 * wait, 15_000)) {
    try {
      let greeted = false;
      await listen((event, data) => {
        if (mine.signal.aborted) return;
        if (!greeted) {
          greeted = true;
          wait = 1000;
          live(true, "Live");
          load().catch(report);
        }
        told[event]?.(data);
      }, mine.signal);
    } catch (failure) {
      if (mine.signal.aborted) return;
      if (failure instanceof APIError) report(failure);
      if (mine.signal.aborted) return;
    }
    live(false, "Reconnecting…");
    await new Promise((done) => setTimeout(done, wait));
  }
}

// Signing in.

function signIn() {
  byID("sign-in").hidden = false;
  byID("board").hidden = true;
  byID("sign-out").hidden = true;
  live(false, "Not connected");
  byID("token").focus();
}

function signOut(why = "") {
  connection?.abort();
  token.forget();
  circuits.clear();
  detail.hide();
  byID("dialog").close();
  byID("sign-in-error").textContent = why;
  signIn();
}

function start() {
  byID("sign-in").hidden = true;
  byID("board").hidden = false;
  byID("sign-out").hidden = !needsToken;
  live(false, "Connecting…");
  connect();
}

byID("sign-in").addEventListener("submit", async (e) => {
  e.preventDefault();
  token.set(byID("token").value.trim());
  try {
    await readList({ limit: 1 });
  } catch (failure) {
    if (failure.status === 401) {
      token.forget();
      byID("sign-in-error").textContent = "The token is not valid.";
      byID("token").select();
      return;
    }
  }
  byID("token").value = "";
  byID("sign-in-error").textContent = "";
  start();
});
byID("sign-out").addEventListener("click", () => signOut());
byID("more").addEventListener("click", () => more().catch(report));

function choose(state) {
  only = only === state ? null : state;
  draw();
}

let typing = 0;
byID("search").addEventListener("input", (e) => {
  search = e.target.value.trim();
  draw();
  clearTimeout(typing);
  typing = setTimeout(() => load().catch(report), 250);
});

document.addEventListener("keydown", (e) => {
  if (byID("dialog").open || byID("board").hidden) return;
  const writing = e.target.matches("input, textarea, select");
  if (e.key === "/" && !writing) {
    e.preventDefault();
    byID("search").focus();
  } else if (e.key === "Escape" && detail.id !== null) {
    close();
  }
});
setInterval(tick, 500);

if (needsToken && !token.get()) signIn();
else start();
