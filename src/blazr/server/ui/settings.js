// The settings' drawer and the question for a key.

import { key } from "./api.js";
import { el } from "./dom.js";
import { DEFAULTS, forgetAll, NUMBERS, saveSettings } from "./store.js";

const at = (id) => document.getElementById(id);
const TEXTS = { system: "system", stop: "stop-strings", tools: "tools", agent: "agent", thinking: "thinking" };

/** Show the settings and follow what is changed. */
export function bindSettings(state, { onKey, onForget }) {
  at("numbers").append(...Object.entries(NUMBERS).map(([name, about]) => numberField(name, about)));
  fill(state.settings);
  at("settings").addEventListener("input", () => {
    read(state.settings);
    checkTools();
    saveSettings(state.settings);
  });
  at("defaults").addEventListener("click", () => {
    reset(state.settings);
    saveSettings(state.settings);
  });
  at("set-key").addEventListener("click", async () => {
    at("settings").close();
    if (await askForKey("An empty key is forgotten.")) onKey();
  });
  at("forget").addEventListener("click", () => {
    if (!confirm("Forget every chat, the settings and the key in this browser?")) return;
    forgetAll();
    reset(state.settings);
    at("settings").close();
    onForget();
  });
}

function numberField(name, [label, min, max, step, title, placeholder = "default"]) {
  const input = el("input", { id: `n-${name}`, type: "number", min, max, step: "any", title,
    placeholder, inputMode: step < 1 ? "decimal" : "numeric" });
  return el("label", { title }, label, input);
}

function fill(settings) {
  for (const [name, id] of Object.entries(TEXTS)) at(id).value = settings[name];
  for (const name of Object.keys(NUMBERS)) at(`n-${name}`).value = settings[name] ?? "";
  checkTools();
}

/** Take back what was set; the chosen model stays. */
function reset(settings) {
  Object.keys(NUMBERS).forEach((name) => delete settings[name]);
  Object.assign(settings, { ...DEFAULTS, model: settings.model });
  fill(settings);
}

function read(settings) {
  for (const [name, id] of Object.entries(TEXTS)) settings[name] = at(id).value;
  for (const name of Object.keys(NUMBERS)) {
    const input = at(`n-${name}`);
    if (input.value === "" || !input.validity.valid) delete settings[name];
    else settings[name] = input.valueAsNumber;
  }
}

function checkTools() {
  let problem = "";
  try {
    const text = at("tools").value.trim();
    if (text && !Array.isArray(JSON.parse(text))) problem = "This is not a list.";
  } catch (error) {
    problem = error.message;
  }
  at("tools-error").textContent = problem;
  at("tools-error").hidden = !problem;
}

/** Ask for the key; says whether one was given. */
export function askForKey(why) {
  const dialog = at("key-dialog");
  if (dialog.open) return Promise.resolve(false);
  at("key-why").textContent = why;
  at("key").value = key.get();
  at("cancel-key").onclick = () => dialog.close("");
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      const isGiven = dialog.returnValue === "ok";
      if (isGiven) key.set(at("key").value.trim(), at("keep-key").checked);
      resolve(isGiven);
    }, { once: true });
  });
}
