// A change is asked for in words, and says why and by whom.
import { byID, el, fill, keyText } from "./dom.js";
import { change } from "./api.js";

const changes = {
  reset: { title: (key) => `Reset ${key}?`, button: "Reset", says: "It closes at once and calls run again, in every process. Its counts and any hold are cleared; its history stays." },
  "force-open": { title: (key) => `Hold ${key} open?`, button: "Hold open", timed: true, says: "No call runs, in any process, whatever the circuit itself finds out." },
  "force-closed": { title: (key) => `Hold ${key} closed?`, button: "Hold closed", timed: true, says: "All calls run, in every process, and no failure trips it. A dependency that is down is not spared." },
  "clear-override": { title: (key) => `Release the hold on ${key}?`, button: "Release", says: "The circuit is again what it knows itself." },
};

const durations = [["10m", "10 minutes"], ["30m", "30 minutes"], ["1h", "1 hour"], ["4h", "4 hours"], ["24h", "24 hours"], ["", "until released"]];
const namePlace = "breaker-operator";

// ask asks whether to make a change, makes it, and hands the circuit to done.
export function ask(verb, circuit, done) {
  const c = changes[verb];
  const dialog = byID("dialog");
  const reason = el("input", { id: "reason", required: true, maxlength: "150", autocomplete: "off", placeholder: "For the history, and for whoever comes next" });
  const by = el("input", { id: "by", required: true, maxlength: "80", autocomplete: "username" });
  by.value = localStorage.getItem(namePlace) ?? "";
  const duration = el("select", { id: "duration" }, durations.map(([value, text]) => el("option", { value }, text)));
  const error = el("p", { class: "error", role: "alert" });
  const confirm = el("button", { class: verb === "clear-override" ? "primary" : "danger", type: "submit", id: "confirm" }, c.button);
  const field = (label, input) => el("div", {}, el("label", { for: input.id }, label), input);

  const submit = async (e) => {
    e.preventDefault();
    const body = { reason: reason.value.trim(), by: by.value.trim() };
    if (!body.reason || !body.by) {
      error.textContent = "Say why, and who you are.";
      return;
    }
    if (c.timed && duration.value) body.duration = duration.value;
    localStorage.setItem(namePlace, body.by);
    confirm.disabled = true;
    try {
      done(await change(circuit.id, verb, body));
      dialog.close();
    } catch (failure) {
      error.textContent = failure.message;
      confirm.disabled = false;
    }
  };
  fill(dialog, el("form", { onsubmit: submit },
    el("h2", { id: "dialog-title" }, c.title(keyText(circuit.key))),
    el("p", {}, c.says),
    c.timed ? field("For how long", duration) : null,
    field("Reason", reason),
    field("Your name", by),
    error,
    el("div", { class: "buttons" }, el("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), confirm)));
  dialog.showModal();
  (c.timed ? duration : reason).focus();
}
