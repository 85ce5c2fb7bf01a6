// Times and rules in words.

let ahead = 0; // of the server's clock to ours, in ms

// learn takes the server's time from an answer.
export function learn(asOf) {
  const t = Date.parse(asOf);
  if (!Number.isNaN(t)) ahead = t - Date.now();
}

export const now = () => Date.now() + ahead;

// clock is a time left: "0:42", "12:05", "3 h 07 min".
export function clock(ms) {
  const s = Math.max(0, Math.ceil(ms / 1000));
  if (s < 3600) return Math.floor(s / 60) + ":" + String(s % 60).padStart(2, "0");
  const h = Math.floor(s / 3600);
  if (h < 48) return h + " h " + String(Math.floor((s % 3600) / 60)).padStart(2, "0") + " min";
  return Math.floor(h / 24) + " days";
}

export function ago(iso) {
  const s = Math.round((now() - Date.parse(iso)) / 1000);
  if (s < 2) return "just now";
  if (s < 60) return s + " s ago";
  if (s < 3600) return Math.floor(s / 60) + " min ago";
  if (s < 48 * 3600) return Math.floor(s / 3600) + " h ago";
  return Math.floor(s / 86400) + " days ago";
}

// at is the time of day, with the date unless it is today.
export function at(iso, millis = false) {
  const d = new Date(iso);
  const two = (n) => String(n).padStart(2, "0");
  let text = [d.getHours(), d.getMinutes(), d.getSeconds()].map(two).join(":");
  if (millis) text += "." + String(d.getMilliseconds()).padStart(3, "0");
  const today = new Date(now()).toDateString() === d.toDateString();
  return today ? text : [d.getFullYear(), two(d.getMonth() + 1), two(d.getDate())].join("-") + " " + text;
}

const percent = (x) => (Math.round(x * 1000) / 10).toString() + " %";

// rules returns each rule of a circuit's policy: what it has of what opens it,
// in short and in full.
export function rules(c) {
  const p = c.policy;
  const all = [];
  const count = (have, limit, unit, what) => {
    const share = (have > limit ? limit + "+" : have) + " of " + limit;
    all.push({ ratio: have / limit, short: `${share} ${unit} ${what}`, text: `${share} ${unit} ${what}` });
  };
  if (p.consecutive_failures) count(c.consecutive_failures, p.consecutive_failures, "failures", "in a row");
  if (p.window_failures) count(c.window_failures, p.window_failures, "failures", "in " + p.window);
  const rate = (bad, limit, what) => {
    const calls = c.window_calls;
    if (calls < p.min_calls) {
      all.push({ ratio: 0, short: `${calls} of ${p.min_calls} calls needed`, text: `${calls} of the ${p.min_calls} calls in ${p.window} that a rate needs` });
    } else {
      const share = `${percent(bad / calls)} of ${percent(limit)} ${what}`;
      all.push({ ratio: bad / calls / limit, short: share, text: `${share} in ${p.window}` });
    }
  };
  if (p.failure_rate) rate(c.window_failures, p.failure_rate, "failed");
  if (p.slow_rate) rate(c.window_slow, p.slow_rate, "slower than " + p.slow_after);
  return all;
}

// nearest is the rule that is nearest to being met; of a circuit that is being
// tested, what is left to close it.
export function nearest(c) {
  if (c.state !== "half-open") return rules(c).reduce((a, b) => (b.ratio > a.ratio ? b : a));
  const need = c.policy.probe_successes;
  return { ratio: c.probe_successes / need, short: `${c.probe_successes} of ${need} ${need === 1 ? "probe" : "probes"}`, good: true };
}

// openUntil is when a circuit that is open lets a call through, in ms; null if
// nobody knows, or it is not open.
export function openUntil(c) {
  return c.state === "open" && c.retry_in_ms !== undefined ? Date.parse(c.as_of) + c.retry_in_ms : null;
}

const causes = {
  consecutive_failures: "failures in a row", window_failures: "failures in the window", failure_rate: "rate of failures",
  slow_rate: "rate of slow calls", cooldown_over: "cooldown over", probe_failed: "a probe failed", probes_succeeded: "probes succeeded",
  forced: "by an operator", override_cleared: "hold released", override_ended: "hold ended", reset: "reset",
};
export const causeText = (cause) => causes[cause] ?? cause;
