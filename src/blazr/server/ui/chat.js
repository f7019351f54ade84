// The chat page: what happens when.

import { key, models, speech, transcript } from "./api.js";
import { addVersion, showVersion } from "./branches.js";
import { el, iconButton } from "./dom.js";
import { Attachments, kindOf } from "./files.js";
import { blobOf, keepMedia, loadMedia, MAX_SECONDS, readSound } from "./media.js";
import { editorView, ReplyView, userView } from "./message.js";
import { canRecord, record } from "./microphone.js";
import { paced } from "./pace.js";
import { newReply, paint, stream } from "./reply.js";
import { askForKey, bindSettings } from "./settings.js";
import * as store from "./store.js";
import { chatAsJson, chatAsMarkdown, chatsFrom, download } from "./transfer.js";

const MAX_SPOKEN = 4096; // characters that /v1/audio/speech takes

const at = (id) => document.getElementById(id);
const [box, log, scroller, player] = ["box", "log", "scroller", "player"].map(at);

const state = {
  chats: store.loadChats(),
  chat: store.newChat(),
  settings: store.loadSettings(),
  models: new Map(), // what /v1/models says of each, by name
  recording: null,
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
      onRetry: () => retry(place), onContinue: () => goOn(message), onResults: sendResults,
      onSpeak: modelFor("speech") && speak, isOwnTool });
    view.update(false);
    return view.root;
  });
  for (const each of log.querySelectorAll("audio")) each.pause(); // out of the page it would play on
  log.replaceChildren(...views.filter(Boolean));
  at("empty").hidden = messages.length > 0;
  showChats();
  showMedia(state.chat);
  return views;
}

/** Draw a chat again once what it kept was read. */
async function showMedia(chat) {
  const isFound = await loadMedia(chat);
  const isFree = !state.running && !log.querySelector(".editor");
  if (isFound && isFree && state.chat === chat) showChat();
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
  if (!state.chats.includes(chat) || store.saveChat(chat)) return;
  say("This chat cannot be kept in this browser: it lasts until the page is left.");
}

/** Take over what another tab of this browser has made of a chat, but not under what is written here. */
function onStorage({ key: name }) {
  const id = store.idUnder(name);
  if (id === null) return;
  const chat = state.chats.find((each) => each.id === id);
  const isShown = chat === state.chat;
  if (isShown && (state.running || log.querySelector(".editor"))) return;
  const theirs = store.loadChat(id);
  if (theirs === null) state.chats = state.chats.filter((other) => other !== chat);
  else if (chat) Object.assign(chat, theirs);
  else state.chats.unshift(theirs);
  if (isShown && theirs !== null) showChat();
  else showChats();
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
      if (state.running) return;
      const { files, media } = message;
      addVersion(state.chat, place, { role: "user", content: text, ...(files && { files }), ...(media && { media }) });
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

/** Send what tools say, and let the server run the calls that are allowed. */
function sendResults(results, allowed) {
  if (state.running) return;
  state.chat.messages.push(...results.map((each) => ({ role: "tool", ...each })));
  answer(state.chat.messages.length, allowed);
}

/** Whether a tool is one of Settings; the others are those of the server. */
function isOwnTool(name) {
  try {
    return JSON.parse(state.settings.tools || "[]").some((tool) => tool.function?.name === name);
  } catch {
    return true;
  }
}

function ask(message) {
  if (!state.chats.includes(state.chat)) state.chats.unshift(state.chat);
  state.chat.messages.push(message);
  if (message.media) keepMedia(state.chat.id, message.media);
  answer();
}

// Replies

function stop() {
  state.running?.abort();
}

/**
 * Write a reply at a place, the end if none is given; another one there stays a version.
 *
 * @param approved ids of calls before it that the server may run
 */
async function answer(place = state.chat.messages.length, approved = state.chat.messages[place]?.approved) {
  const { chat } = state;
  const controller = new AbortController();
  setRunning(controller); // at once: while pictures are read nothing else may begin
  keep(chat);
  await loadMedia(chat);
  const reply = newReply(at("model").selectedOptions[0]?.textContent || "model");
  if (approved?.length) reply.approved = approved;
  const work = controller.signal.aborted ? null : workOf(chat.messages.slice(0, place), { approved });
  if (work === null) {
    setRunning(null);
    if (state.chat === chat) showChat();
    return;
  }
  addVersion(chat, place, reply);
  keep(chat);
  await write(chat, reply, work, controller);
}

/** Write on a reply that was cut. */
function goOn(reply) {
  const { chat } = state;
  if (state.running || makesPictures() || chat.messages.at(-1) !== reply) return;
  const work = workOf(chat.messages, { goesOn: true });
  if (work !== null) write(chat, reply, work, new AbortController());
}

async function write(chat, reply, work, controller) {
  setRunning(controller);
  showChat();
  const view = new ReplyView(reply, { isLast: true });
  log.lastChild.replaceWith(view.root);
  view.update(true);
  toEnd();
  say("Writing…");
  const drawing = paced(() => {
    const follows = isAtEnd();
    view.update(state.running === controller);
    if (follows) toEnd();
  });
  const leave = () => document.hidden && keepCut(chat, reply);
  document.addEventListener("visibilitychange", leave);
  const status = await written(reply, work, { signal: controller.signal, onChange: drawing.ask });
  document.removeEventListener("visibilitychange", leave);
  drawing.stop();
  setRunning(null);
  say(reply.error ? "Failed." : reply.finish === "stopped" ? "Stopped." : "Done.");
  keep(chat);
  if (reply.media && state.chats.includes(chat)) keepMedia(chat.id, reply.media);
  const follows = isAtEnd();
  if (state.chat === chat) showChat();
  if (follows) toEnd();
  if (status === 401) await retryWithKey(chat, reply);
  else if (isUnknown()) await showModels(); // it is in memory now
}

/** Keep what a reply says so far: a page that is reloaded, closed or put away may not come back to it. */
function keepCut(chat, reply) {
  const { finish } = reply;
  reply.finish = finish ?? "stopped";
  keep(chat);
  reply.finish = finish;
}

/** Do what writes a reply, with whatever ends it noted in it; the status of what refused it. */
async function written(reply, work, options) {
  try {
    await work(reply, options);
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

/** What writes the next message of a chat into it: a stream of words, or a picture; null where it cannot begin. */
function workOf(messages, how) {
  if (makesPictures()) {
    const body = store.pictureBody(messages, state.settings);
    return (reply, options) => paint(reply, body, options);
  }
  try {
    const body = store.requestBody(messages, state.settings, { ...how, takes });
    return (reply, options) => stream(reply, body, options);
  } catch {
    say("The tools in Settings are not JSON.");
    at("settings").showModal();
    return null;
  }
}

// Models

async function showModels() {
  let found;
  try {
    found = await models();
  } catch (error) {
    if (error.status === 401) return (await askForKey("This server asks for a key.")) && showModels();
    say(error.message);
    return undefined; // what was chosen stays chosen
  }
  const { settings } = state;
  state.models = new Map(found.map((each) => [each.id, each]));
  const hasSpoken = Boolean(modelFor("speech"));
  found = found.filter((each) => can(each, "completion") || can(each, "image"));
  const options = found.map(({ id }) => el("option", { value: id, selected: id === settings.model }, id));
  at("model").replaceChildren(...options);
  if (!found.some(({ id }) => id === settings.model)) settings.model = found[0]?.id ?? "";
  showModel();
  // replies that are shown already can be read aloud from now on
  if (hasSpoken && !state.running && !log.querySelector(".editor")) showChat();
  return undefined;
}

/** Offer what the chosen model can do. */
function showModel() {
  const { model } = state.settings;
  document.title = model ? `${model} · blazr` : "blazr";
  box.placeholder = makesPictures() ? "Describe a picture" : "Message";
  const more = [takes("picture") && "pictures", hearer() && "sounds"].filter(Boolean);
  const label = ["Add text files", ...more].join(", ").replace(/, (\w+)$/, " and $1");
  at("attach").setAttribute("aria-label", label);
  at("attach").title = `${label} (or drop or paste them)`;
  at("microphone").hidden = !canRecord || !hearer();
}

const can = ({ capabilities }, what) => capabilities?.includes(what) ?? true;
const chosen = () => state.models.get(state.settings.model);
const makesPictures = () => chosen()?.capabilities?.includes("image") ?? false;

/** Whether it is not known yet what the chosen model takes: what was never in memory has no figures. */
function isUnknown() {
  const model = chosen();
  return Boolean(model && can(model, "completion") && (model.capabilities === null || model.meta === null));
}

/** Whether pictures or sounds can go with a message; where that is not known, the server will say. */
function takes(kind) {
  return isUnknown() || Boolean(chosen()?.capabilities?.includes(kind === "picture" ? "vision" : "audio"));
}

/** The first model that can surely do something. */
function modelFor(what) {
  return [...state.models.values()].find(({ capabilities }) => capabilities?.includes(what))?.id;
}

/** Where sounds can go: into the message, or as text into the box. */
function hearer() {
  return takes("sound") ? "message" : modelFor("transcription") && "box";
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
  if ((!text && attachments.isEmpty) || state.running) return;
  const refused = attachments.media.find(({ kind }) => !takes(kind));
  if (refused) {
    say(`${state.settings.model} takes no ${refused.kind}s. Remove ${refused.name}, or choose another model.`);
    return;
  }
  if (makesPictures() && !text) return;
  box.value = "";
  fitBox();
  ask({ role: "user", content: text, ...attachments.take() });
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

async function addFiles(files) {
  for (const file of files) {
    const kind = kindOf(file);
    if (kind === "text" || takes(kind)) await attachments.add(file);
    else if (kind === "sound" && hearer()) await dictate(file);
    else say(`${state.settings.model} takes no ${kind}s.`);
  }
  box.focus();
}

/** Write what is said in a sound into the box. */
async function dictate(file) {
  say("Listening…");
  try {
    const text = await transcript(modelFor("transcription"), blobOf(await readSound(file)));
    box.value = [box.value.trim(), text.trim()].filter(Boolean).join(" ");
    fitBox();
    say("");
  } catch (error) {
    say(error.message);
  }
}

async function onMicrophone() {
  if (state.recording) {
    state.recording.stop();
    return;
  }
  at("microphone").disabled = true; // until the browser has asked whether it may be used
  try {
    state.recording = await record(MAX_SECONDS);
  } catch (error) {
    say(`The microphone cannot be used: ${error.message}`);
    return;
  } finally {
    at("microphone").disabled = false;
  }
  at("microphone").setAttribute("aria-pressed", "true");
  say("Recording…");
  const file = await state.recording.file;
  state.recording = null;
  at("microphone").setAttribute("aria-pressed", "false");
  say("");
  await addFiles([file]);
}

/** Read a text aloud. */
async function speak(text) {
  say("Making speech…");
  try {
    const sound = await speech({ model: modelFor("speech"), input: text.slice(0, MAX_SPOKEN), response_format: "wav" });
    URL.revokeObjectURL(player.src);
    player.src = URL.createObjectURL(sound);
    player.hidden = false;
    await player.play();
    say(text.length > MAX_SPOKEN ? `Only the first ${MAX_SPOKEN} characters are read aloud.` : "");
  } catch (error) {
    say(error.message);
  }
}

function bindFiles() {
  const isDrop = (event) => event.dataTransfer?.types.includes("Files");
  const follow = (event) => {
    if (!isDrop(event)) return;
    event.preventDefault();
    document.body.classList.toggle("dropping", event.type === "dragover");
    if (event.type === "drop") addFiles([...event.dataTransfer.files]);
  };
  for (const type of ["dragover", "dragleave", "drop"]) document.addEventListener(type, follow);
  box.addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    addFiles(files);
  });
  bindChooser("attach", "choose-files", addFiles);
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
  at("microphone").addEventListener("click", onMicrophone);
  at("stop").addEventListener("click", stop);
  at("new").addEventListener("click", () => openChat(store.newChat()));
  at("menu").addEventListener("click", openMenu);
  at("veil").addEventListener("click", closeMenu);
  at("keys").addEventListener("click", () => at("shortcuts").showModal());
  at("open-settings").addEventListener("click", () => at("settings").showModal());
  at("to-end").addEventListener("click", toEnd);
  scroller.addEventListener("scroll", () => (at("to-end").hidden = isAtEnd()));
  // a picture has its height once it was loaded
  log.addEventListener("load", () => at("to-end").hidden && toEnd(), true);
  at("model").addEventListener("change", () => {
    state.settings.model = at("model").value;
    store.saveSettings(state.settings);
    showModel();
  });
  document.addEventListener("keydown", onKey);
  window.addEventListener("storage", onStorage);
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
