// Talking to the REST API. The token is in this tab's session storage and goes
// out in a header, never by itself: no other site can have this one act.

const place = "breaker-token";
export const token = {
  get: () => sessionStorage.getItem(place) ?? "",
  set: (value) => sessionStorage.setItem(place, value),
  forget: () => sessionStorage.removeItem(place),
};

export class APIError extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (token.get()) headers.Authorization = "Bearer " + token.get();
  const answer = await fetch("api/v1/" + path, { ...options, headers, cache: "no-store", credentials: "same-origin", redirect: "error" });
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  throw new APIError(answer.status, said.detail ?? "The server answered " + answer.status + ".");
}

export async function read(path, signal) {
  return (await request(path, { signal })).json();
}

const circuitPath = (id, rest = "") => "circuit-breakers/" + id + rest;

export const readCircuit = (id) => read(circuitPath(id));
export const readHistory = (id) => read(circuitPath(id, "/history"));
export const readList = (query) => read("circuit-breakers?" + new URLSearchParams(query));

// change makes one, and returns the circuit as it is then, or null.
export async function change(id, verb, body) {
  const answer = await request(circuitPath(id, "/" + verb), {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  });
  return answer.status === 204 ? null : answer.json();
}

const silence = 40_000; // ms; the server says something every 15s

// listen hands the events of the stream to told, until it ends.
export async function listen(told, signal) {
  const quiet = new AbortController();
  const answer = await request("events", { signal: AbortSignal.any([signal, quiet.signal]) });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const watchdog = setTimeout(() => quiet.abort(), silence);
    const { done, value } = await reader.read().finally(() => clearTimeout(watchdog));
    if (done) return;
    const frames = (rest + value).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      const event = /^event: (.*)$/m.exec(frame)?.[1];
      const data = /^data: (.*)$/m.exec(frame)?.[1];
      if (event && data) told(event, JSON.parse(data));
    }
  }
}
