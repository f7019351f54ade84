// Chats and settings, kept in this browser only.

import { isSaid } from "./branches.js";
import { shortened } from "./dom.js";
import { withFiles } from "./files.js";
import { newId } from "./ids.js";
import { forgetMedia, partOf } from "./media.js";

const CHAT = "blazr.chat.";
const SETTINGS = "blazr.settings";
const MAX_CHATS = 100;
const MAX_SENT = 7_500_000; // characters of pictures and sounds in a request; servers take 10 MB

/** Settings that go into requests as numbers, by field: label, bounds, step, what it does, what it is if empty. */
export const NUMBERS = {
  temperature: ["Temperature", 0, 2, 0.05, "0 always takes the likeliest token"],
  top_p: ["Top p", 0, 1, 0.01, "smallest set of tokens with this probability"],
  top_k: ["Top k", 0, 1000, 1, "this many of the likeliest; 0 is all"],
  min_p: ["Min p", 0, 1, 0.01, "share of the likeliest token's probability"],
  max_tokens: ["Max tokens", 1, 1000000, 1, "longest reply; empty is as long as the model's context allows", "the context"],
  repetition_penalty: ["Repetition penalty", 0.1, 10, 0.05, "1 is off"],
  presence_penalty: ["Presence penalty", -2, 2, 0.1, "0 is off"],
  frequency_penalty: ["Frequency penalty", -2, 2, 0.1, "0 is off"],
  seed: ["Seed", 0, 4294967295, 1, "makes replies repeatable"],
};

export const DEFAULTS = { system: "", stop: "", tools: "", agent: "", thinking: "", model: "" };

/** A chat without messages. */
export function newChat() {
  return { id: newId(), created: Date.now(), messages: [] };
}

/** A chat's name: the one it was given, or its beginning. */
export function titleOf(chat) {
  const first = chat.messages[0];
  const name = first?.files?.[0]?.name ?? first?.media?.[0]?.name;
  return shortened(chat.title || first?.content || name || "", 60) || "New chat";
}

/** Whether a chat's name or the version of it that is shown has some words in it. */
export function matches(chat, words) {
  const wanted = words.trim().toLowerCase();
  const texts = chat.messages.flatMap(({ content, thought = "", files = [] }) =>
    [content, thought, ...files.flatMap(({ name, text }) => [name, text])]);
  return [titleOf(chat), ...texts].some((text) => text.toLowerCase().includes(wanted));
}

/** Every chat, the newest first. */
export function loadChats() {
  const chats = storedKeys(CHAT).map((name) => parsed(name)).filter((chat) => isChat(chat));
  return chats.sort((a, b) => b.created - a.created);
}

/** A chat as it is kept; null where it is not. */
export function loadChat(id) {
  const chat = parsed(CHAT + id);
  return isChat(chat) ? chat : null;
}

/** The id of the chat that is kept under a name of the storage, if one is. */
export function idUnder(name) {
  return name?.startsWith(CHAT) ? name.slice(CHAT.length) : null;
}

function isChat(value) {
  return value !== null && typeof value.id === "string" && Array.isArray(value.messages);
}

/**
 * Keep a chat; where there is no room, the oldest ones go. One that has no room even alone takes
 * none away, and lasts until the page is left.
 *
 * @returns whether it is kept
 */
export function saveChat(chat) {
  const text = JSON.stringify(chat);
  const others = loadChats().filter((other) => other.id !== chat.id);
  for (const old of others.splice(MAX_CHATS - 1)) forgetChat(old.id);
  const gone = [];
  while (!stored(chat.id, text)) {
    const oldest = others.pop();
    if (oldest === undefined) {
      for (const other of gone) stored(other.id, JSON.stringify(other));
      return false;
    }
    localStorage.removeItem(CHAT + oldest.id);
    gone.push(oldest);
  }
  for (const { id } of gone) forgetMedia(id);
  return true;
}

function stored(id, text) {
  try {
    localStorage.setItem(CHAT + id, text);
    return true;
  } catch {
    return false;
  }
}

export function forgetChat(id) {
  try {
    localStorage.removeItem(CHAT + id);
  } catch {
    // storage may be forbidden, and then nothing is there
  }
  forgetMedia(id);
}

export function forgetAll() {
  for (const name of storedKeys("blazr.")) localStorage.removeItem(name);
  forgetMedia();
}

export function loadSettings() {
  return { ...DEFAULTS, ...parsed(SETTINGS) };
}

export function saveSettings(settings) {
  try {
    localStorage.setItem(SETTINGS, JSON.stringify(settings));
  } catch {
    // they last until the page is left
  }
}

function storedKeys(prefix) {
  try {
    return Object.keys(localStorage).filter((name) => name.startsWith(prefix));
  } catch {
    return [];
  }
}

function parsed(name) {
  try {
    return JSON.parse(localStorage.getItem(name));
  } catch {
    return null;
  }
}

/**
 * The request for a chat as it stands.
 *
 * @param goesOn whether its last message is written on
 * @param approved ids of calls that the server may run now
 * @param takes whether the model takes a kind of media
 */
export function requestBody(messages, settings, { goesOn = false, approved = [], takes = () => false } = {}) {
  const body = { model: settings.model || "default", stream: true,
    stream_options: { include_usage: true }, truncation: "auto" };
  for (const name of Object.keys(NUMBERS)) {
    if (Number.isFinite(settings[name])) body[name] = settings[name];
  }
  const stop = settings.stop.split("\n").filter(Boolean);
  if (stop.length) body.stop = stop;
  if (settings.tools.trim()) body.tools = JSON.parse(settings.tools);
  if (settings.agent) body.agent = settings.agent === "on";
  if (approved.length) body.approved_tool_calls = approved;
  if (settings.thinking) {
    body.chat_template_kwargs = { enable_thinking: settings.thinking === "on" };
  }
  if (goesOn) {
    Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
    // what it thought before is not part of the message, so that it would think where it writes
    if (messages.at(-1).thought) body.chat_template_kwargs = { enable_thinking: false };
  }
  const system = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  const said = messages.filter(isSaid);
  const parts = mediaParts(said, takes);
  const called = new Set(said.flatMap(({ calls = [] }) => calls.map(({ id }) => id)));
  body.messages = [...system, ...said.flatMap((message) => asSent(message, parts, called))];
  return body;
}

/** The request for a picture of what a chat's last question says. */
export function pictureBody(messages, settings) {
  const asked = messages.findLast(({ role }) => role === "user");
  const body = { model: settings.model, prompt: withFiles(asked), response_format: "b64_json" };
  if (Number.isFinite(settings.seed)) body.seed = settings.seed;
  return body;
}

/** What stands in a request for pictures and sounds: the newest that there is room for. */
function mediaParts(messages, takes) {
  const parts = new Map();
  let room = MAX_SENT;
  for (const item of messages.flatMap(({ media = [] }) => media).toReversed()) {
    const part = takes(item.kind) ? partOf(item) : null;
    room -= part ? JSON.stringify(part).length : 0;
    parts.set(item, part && room >= 0 ? part : { type: "text", text: `(a ${item.kind})\n\n` });
  }
  return parts;
}

/** A message for the server, after what came of calls in earlier messages that it has run. */
function asSent(message, parts, called) {
  if (message.role === "tool") {
    return [{ role: "tool", tool_call_id: message.callId, content: message.content }];
  }
  const sent = { role: message.role, content: contentOf(message, parts) };
  const steps = (message.steps ?? []).filter(({ output }) => output !== undefined);
  const results = steps.filter(({ id }) => called.has(id))
    .map(({ id, output }) => ({ role: "tool", tool_call_id: id, content: output }));
  const ran = steps.filter(({ id }) => !called.has(id))
    .map(({ id, name, arguments: given, output }) => ({ id, name, arguments: given, output }));
  if (ran.length) sent.mcp_calls = ran;
  if (message.thought) sent.reasoning_content = message.thought;
  if (message.calls?.length) {
    sent.tool_calls = message.calls.map(({ id, name, arguments: given }) =>
      ({ id, type: "function", function: { name, arguments: given } }));
  }
  return [...results, sent];
}

function contentOf(message, parts) {
  const text = withFiles(message);
  const { media = [] } = message;
  if (!media.length) return text;
  // what the model has made is told of in words: templates have a place for media in questions alone
  if (message.role === "assistant") return text || `(a ${media[0].kind})`;
  return [...media.map((item) => parts.get(item)), ...(text ? [{ type: "text", text }] : [])];
}
