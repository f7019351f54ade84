// The chat page: what happens when.

import { key, models } from "./api.js";
import { el, iconButton, shortened } from "./dom.js";
import { editorView, ReplyView, userView } from "./message.js";
import { newReply, stream } from "./reply.js";
import { askForKey, bindSettings } from "./settings.js";
import * as store from "./store.js";

const at = (id) => document.getElementById(id);
const [box, log, scroller] = ["box", "log", "scroller"].map(at);

const state = {
  chats: store.loadChats(),
  chat: store.newChat(),
  settings: store.loadSettings(),
  running: null, // the AbortController of the reply that is being written
};

// Showing

function showChats() {
  const rows = state.chats.map((chat) => {
    const title = shortened(chat.messages[0]?.content ?? "", 60) || "Chat";
    const isCurrent = chat.id === state.chat.id;
    const open = el("button", { type: "button", className: "open", title, onclick: () => openChat(chat),
      "aria-current": isCurrent ? "true" : null }, el("span", {}, title));
    const forget = iconButton("trash", `Delete “${title}”`, () => deleteChat(chat));
    return el("li", { className: isCurrent ? "current" : "" }, open, forget);
  });
  at("chats").replaceChildren(...rows);
}

function showChat() {
  const { messages } = state.chat;
  const results = new Map(messages.filter((each) => each.role === "tool")
    .map((each) => [each.callId, each.content]));
  const lastReply = messages.findLast((each) => each.role === "assistant");
  const views = messages.map((message, place) => {
    if (message.role === "user") return userView(message, { onEdit: (view) => edit(place, view) });
    if (message.role === "tool") return null; // it stands with its call
    const view = new ReplyView(message, { results, isLast: message === lastReply,
      onRetry: () => retry(place), onResults: sendResults });
    view.update(false);
    return view.root;
  });
  log.replaceChildren(...views.filter(Boolean));
  at("empty").hidden = messages.length > 0;
  showChats();
}

function setRunning(controller) {
  state.running = controller;
  at("send").hidden = controller !== null;
  at("stop").hidden = controller === null;
}

const isAtEnd = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 60;
const toEnd = () => scroller.scrollTo({ top: scroller.scrollHeight });
const say = (text) => (at("status").textContent = text);

// Chats

function openChat(chat) {
  stop();
  state.chat = chat;
  showChat();
  closeMenu();
  toEnd();
  box.focus();
}

function deleteChat(chat) {
  if (!confirm("Delete this chat?")) return;
  store.forgetChat(chat.id);
  state.chats = state.chats.filter((other) => other.id !== chat.id);
  if (chat.id === state.chat.id) openChat(store.newChat());
  else showChats();
}

function keep(chat) {
  // one that was deleted meanwhile stays deleted
  if (!state.chats.includes(chat)) return;
  store.saveChat(chat);
}

function edit(place, view) {
  if (state.running) return;
  const message = state.chat.messages[place];
  const { form, area } = editorView(message, {
    onSave: (text) => {
      state.chat.messages.splice(place);
      ask({ role: "user", content: text });
    },
    onCancel: () => {
      showChat();
      box.focus();
    },
  });
  view.replaceWith(form);
  area.focus();
}

function retry(place) {
  if (state.running) return;
  state.chat.messages.splice(place);
  answer();
}

function retryLast() {
  const place = state.chat.messages.findLastIndex((each) => each.role === "assistant");
  if (place >= 0) retry(place);
}

function sendResults(results) {
  state.chat.messages.push(...results.map((each) => ({ role: "tool", ...each })));
  answer();
}

function ask(message) {
  if (!state.chats.includes(state.chat)) state.chats.unshift(state.chat);
  state.chat.messages.push(message);
  answer();
}

// Replies

function stop() {
  state.running?.abort();
}

async function answer() {
  const { chat } = state;
  const reply = newReply(at("model").selectedOptions[0]?.textContent || "model");
  const body = requestOf(chat);
  keep(chat);
  if (body === null) return showChat();
  chat.messages.push(reply);
  showChat();
  const view = new ReplyView(reply, { isLast: true, onResults: sendResults,
    onRetry: () => retry(chat.messages.indexOf(reply)) });
  log.lastChild.replaceWith(view.root);
  view.update(true);
  toEnd();
  const controller = new AbortController();
  setRunning(controller);
  say("Writing…");
  let isStale = false;
  const draw = () => {
    isStale = false;
    const follows = isAtEnd();
    view.update(state.running === controller);
    if (follows) toEnd();
  };
  const onChange = () => {
    if (!isStale) requestAnimationFrame(draw);
    isStale = true;
  };
  const status = await written(reply, body, { signal: controller.signal, onChange });
  setRunning(null);
  keep(chat);
  const follows = isAtEnd();
  if (state.chat === chat) showChat();
  if (follows) toEnd();
  say(reply.error ? "Failed." : reply.finish === "stopped" ? "Stopped." : "Done.");
  if (status === 401) await retryWithKey(chat, reply);
  return undefined;
}

/** Stream a reply, with whatever ends it noted in it; the status of what refused it. */
async function written(reply, body, options) {
  try {
    await stream(reply, body, options);
    return 200;
  } catch (error) {
    if (error.name === "AbortError") reply.finish = "stopped";
    else reply.error = error.message;
    return error.status;
  }
}

async function retryWithKey(chat, reply) {
  if (!(await askForKey("The key is missing or wrong."))) return;
  await showModels();
  if (state.chat === chat && chat.messages.at(-1) === reply) retryLast();
}

function requestOf(chat) {
  try {
    return store.requestBody(chat, state.settings);
  } catch {
    say("The tools in Settings are not JSON.");
    at("settings").showModal();
    return null;
  }
}

// Models

async function showModels() {
  let found = [];
  try {
    found = await models();
  } catch (error) {
    if (error.status === 401) return (await askForKey("This server asks for a key.")) && showModels();
    say(error.message);
  }
  const { settings } = state;
  const options = found.map(({ id }) => el("option", { value: id, selected: id === settings.model }, id));
  at("model").replaceChildren(...options);
  const chosen = found.some(({ id }) => id === settings.model);
  if (!chosen) settings.model = found[0]?.id ?? "";
  document.title = settings.model ? `${settings.model} · blazr` : "blazr";
  return undefined;
}

// The page's parts

function openMenu() {
  document.body.classList.add("menu-open");
  at("menu").setAttribute("aria-expanded", "true");
  at("new").focus();
}

function closeMenu() {
  document.body.classList.remove("menu-open");
  at("menu").setAttribute("aria-expanded", "false");
}

function fitBox() {
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight}px`;
}

function submit() {
  const text = box.value.trim();
  if (!text || state.running) return;
  box.value = "";
  fitBox();
  ask({ role: "user", content: text });
}

const SHORTCUTS = {
  KeyN: () => openChat(store.newChat()),
  KeyR: retryLast,
  KeyC: openMenu,
  KeyM: () => at("model").focus(),
  KeyS: () => at("settings").showModal(),
  KeyT: () => window.toggleTheme(),
};

function onKey(event) {
  const isOpen = document.querySelector("dialog[open]") !== null;
  if (event.key === "Escape" && !isOpen) {
    if (document.body.classList.contains("menu-open")) closeMenu();
    else stop();
    box.focus();
  }
  if (event.altKey && !event.ctrlKey && !event.metaKey && !isOpen && SHORTCUTS[event.code]) {
    event.preventDefault();
    SHORTCUTS[event.code]();
    return;
  }
  const isTyping = event.target.matches?.("input, textarea, select");
  if (isOpen || isTyping || event.ctrlKey || event.metaKey) return;
  if (event.key === "?") at("shortcuts").showModal();
  if (event.key === "/") {
    event.preventDefault();
    box.focus();
  }
}

function onBoxKey(event) {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    submit();
  }
  if (event.key === "ArrowUp" && !box.value) {
    event.preventDefault();
    [...log.querySelectorAll(".user .ghost")].at(-2)?.click();
  }
}

function bind() {
  at("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  box.addEventListener("keydown", onBoxKey);
  box.addEventListener("input", fitBox);
  at("stop").addEventListener("click", stop);
  at("new").addEventListener("click", () => openChat(store.newChat()));
  at("menu").addEventListener("click", openMenu);
  at("veil").addEventListener("click", closeMenu);
  at("keys").addEventListener("click", () => at("shortcuts").showModal());
  at("open-settings").addEventListener("click", () => at("settings").showModal());
  at("to-end").addEventListener("click", toEnd);
  scroller.addEventListener("scroll", () => (at("to-end").hidden = isAtEnd()));
  at("model").addEventListener("change", () => {
    state.settings.model = at("model").value;
    store.saveSettings(state.settings);
    document.title = `${state.settings.model} · blazr`;
  });
  document.addEventListener("keydown", onKey);
  bindSettings(state, { onKey: showModels, onForget: () => {
    key.forget();
    state.chats = [];
    openChat(store.newChat());
  } });
}

bind();
showChat();
showModels();
box.focus();
