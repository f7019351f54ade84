// The chat page: what happens when.

import { key, models } from "./api.js";
import { addVersion, showVersion } from "./branches.js";
import { el, iconButton } from "./dom.js";
import { Attachments } from "./files.js";
import { editorView, ReplyView, userView } from "./message.js";
import { paced } from "./pace.js";
import { newReply, stream } from "./reply.js";
import { askForKey, bindSettings } from "./settings.js";
import * as store from "./store.js";
import { chatAsJson, chatAsMarkdown, chatsFrom, download } from "./transfer.js";

const at = (id) => document.getElementById(id);
const [box, log, scroller] = ["box", "log", "scroller"].map(at);

const state = {
  chats: store.loadChats(),
  chat: store.newChat(),
  settings: store.loadSettings(),
  running: null, // the AbortController of the reply that is being written
  named: null, // the chat whose name is asked for
};

// Showing

function showChats() {
  const found = state.chats.filter((chat) => store.matches(chat, at("search").value));
  at("chats").replaceChildren(...found.map(chatRow));
  at("title").textContent = store.titleOf(state.chat);
}

function chatRow(chat) {
  const title = store.titleOf(chat);
  const isCurrent = chat.id === state.chat.id;
  const open = el("button", { type: "button", className: "open", title, onclick: () => openChat(chat),
    "aria-current": isCurrent ? "true" : null }, el("span", {}, title));
  const more = iconButton("more", `Rename or export “${title}”`, () => askForName(chat));
  const forget = iconButton("trash", `Delete “${title}”`, () => deleteChat(chat));
  return el("li", { className: isCurrent ? "current" : "" }, open, more, forget);
}

function showChat() {
  const { messages } = state.chat;
  const results = new Map(messages.filter((each) => each.role === "tool")
    .map((each) => [each.callId, each.content]));
  const lastReply = messages.findLast((each) => each.role === "assistant");
  const views = messages.map((message, place) => {
    const onVersion = (number) => switchVersion(place, number);
    if (message.role === "user") {
      return userView(message, { onEdit: (view) => edit(place, view), onVersion });
    }
    if (message.role === "tool") return null; // it stands with its call
    const view = new ReplyView(message, { results, isLast: message === lastReply, onVersion,
      onRetry: () => retry(place), onContinue: () => goOn(message), onResults: sendResults });
    view.update(false);
    return view.root;
  });
  log.replaceChildren(...views.filter(Boolean));
  at("empty").hidden = messages.length > 0;
  showChats();
  return views;
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

function askForName(chat) {
  state.named = chat;
  at("chat-name").value = store.titleOf(chat);
  at("chat-dialog").showModal();
  at("chat-name").select();
}

function rename() {
  state.named.title = at("chat-name").value.trim();
  keep(state.named);
  showChats();
}

function exportChat(ending, type, textOf) {
  const chat = state.named;
  const title = store.titleOf(chat);
  const name = title.replace(/[^\p{L}\p{N}._-]+/gu, "-").replace(/^[-.]+|[-.]+$/g, "") || "chat";
  download(`${name}.${ending}`, textOf(chat, title), type);
}

async function importChats(files) {
  let found = [];
  try {
    for (const file of files) found.push(...(await chatsFrom(file)));
  } catch (error) {
    found = [];
    say(`Nothing is imported. ${error.message}`);
  }
  if (!found.length) return;
  state.chats.unshift(...found);
  found.forEach(keep);
  openChat(found[0]);
  say(found.length === 1 ? "One chat is imported." : `${found.length} chats are imported.`);
}

// Versions

function edit(place, view) {
  if (state.running) return;
  const message = state.chat.messages[place];
  const { form, area } = editorView(message, {
    onSave: (text) => {
      const { files } = message;
      addVersion(state.chat, place, { role: "user", content: text, ...(files && { files }) });
      answer();
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
  if (!state.running) answer(place);
}

function retryLast() {
  const place = state.chat.messages.findLastIndex((each) => each.role === "assistant");
  if (place >= 0) retry(place);
}

function switchVersion(place, number) {
  if (state.running) return;
  const { at: before } = state.chat.messages[place].fork;
  showVersion(state.chat, place, number);
  keep(state.chat);
  const buttons = showChat()[place].querySelectorAll(".versions button");
  const [onward, back] = number > before ? [buttons[1], buttons[0]] : [buttons[0], buttons[1]];
  (onward.disabled ? back : onward).focus();
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

/** Write a reply at a place, the end if none is given; another one there stays a version. */
function answer(place = state.chat.messages.length) {
  const { chat } = state;
  const reply = newReply(at("model").selectedOptions[0]?.textContent || "model");
  const body = requestOf(chat.messages.slice(0, place));
  if (body !== null) addVersion(chat, place, reply);
  keep(chat);
  return body === null ? showChat() : write(chat, reply, body);
}

/** Write on a reply that was cut. */
function goOn(reply) {
  const { chat } = state;
  if (state.running || chat.messages.at(-1) !== reply) return;
  const body = requestOf(chat.messages, { goesOn: true });
  if (body !== null) write(chat, reply, body);
}

async function write(chat, reply, body) {
  showChat();
  const view = new ReplyView(reply, { isLast: true });
  log.lastChild.replaceWith(view.root);
  view.update(true);
  toEnd();
  const controller = new AbortController();
  setRunning(controller);
  say("Writing…");
  const drawing = paced(() => {
    const follows = isAtEnd();
    view.update(state.running === controller);
    if (follows) toEnd();
  });
  const status = await written(reply, body, { signal: controller.signal, onChange: drawing.ask });
  drawing.stop();
  setRunning(null);
  keep(chat);
  const follows = isAtEnd();
  if (state.chat === chat) showChat();
  if (follows) toEnd();
  say(reply.error ? "Failed." : reply.finish === "stopped" ? "Stopped." : "Done.");
  if (status === 401) await retryWithKey(chat, reply);
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

function requestOf(messages, how) {
  try {
    return store.requestBody(messages, state.settings, how);
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
  if (!(text || attachments.files.length) || state.running) return;
  box.value = "";
  fitBox();
  const files = attachments.take();
  ask({ role: "user", content: text, ...(files.length && { files }) });
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
    [...log.querySelectorAll(".user .edit")].at(-1)?.click();
  }
}

// The files of a message: by the button, dropped anywhere, or pasted.

const attachments = new Attachments(at("files"), say);

function bindFiles() {
  const isDrop = (event) => event.dataTransfer?.types.includes("Files");
  const follow = (event) => {
    if (!isDrop(event)) return;
    event.preventDefault();
    document.body.classList.toggle("dropping", event.type === "dragover");
    if (event.type === "drop") attachments.add(event.dataTransfer.files).then(() => box.focus());
  };
  for (const type of ["dragover", "dragleave", "drop"]) document.addEventListener(type, follow);
  box.addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    attachments.add(files);
  });
  bindChooser("attach", "choose-files", (files) => attachments.add(files).then(() => box.focus()));
  bindChooser("import", "choose-chats", importChats);
}

function bindChooser(button, input, onFiles) {
  at(button).addEventListener("click", () => at(input).click());
  at(input).addEventListener("change", () => {
    const files = [...at(input).files];
    at(input).value = ""; // the same file may be chosen again
    onFiles(files);
  });
}

function bindChatDialog() {
  const dialog = at("chat-dialog");
  dialog.addEventListener("close", () => {
    if (dialog.returnValue === "rename") rename();
    dialog.returnValue = "";
  });
  at("close-chat-dialog").addEventListener("click", () => dialog.close());
  at("export-markdown").addEventListener("click", () => exportChat("md", "text/markdown", chatAsMarkdown));
  at("export-json").addEventListener("click", () => exportChat("json", "application/json", chatAsJson));
}

function bind() {
  at("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  box.addEventListener("keydown", onBoxKey);
  box.addEventListener("input", fitBox);
  at("search").addEventListener("input", showChats);
  bindFiles();
  bindChatDialog();
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
