// Chats that leave this browser as files, and come into it.

import { el } from "./dom.js";
import { fenced, withFiles } from "./files.js";
import { newId } from "./ids.js";

const MAX_BYTES = 16_777_216;

/** Let the browser keep a text as a file. */
export function download(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** The version of a chat that is shown, for people. */
export function chatAsMarkdown(chat, title) {
  const parts = [`# ${title}`];
  for (const message of chat.messages) {
    if (message.role === "user") parts.push("## You", withFiles(message), namesOf(message));
    if (message.role === "tool") parts.push("### Result", fenced(message.content));
    if (message.role !== "assistant") continue;
    parts.push(`## ${message.model}`);
    if (message.thought) parts.push(message.thought.trim().replace(/^/gm, "> "));
    for (const { server, name, arguments: given, output } of message.steps ?? []) {
      parts.push(`### ${name} of ${server}`, fenced(given, "json"), fenced(output ?? ""));
    }
    parts.push(message.content, namesOf(message));
    for (const call of message.calls) parts.push(`### Call of ${call.name}`, fenced(call.arguments, "json"));
  }
  return `${parts.filter(Boolean).join("\n\n")}\n`;
}

/** What a message shows or plays, by name: the files stay in the browser. */
function namesOf({ media = [] }) {
  return media.map(({ kind, name }) => `(${kind}: ${name})`).join("\n");
}

/** A chat with all its versions, for `chatsFrom`. */
export function chatAsJson(chat) {
  return JSON.stringify({ format: "blazr-chat", version: 1, chats: [chat] }, null, 2);
}

/**
 * The chats of a file: of `chatAsJson`, or messages as in OpenAI's API.
 *
 * @throws Error where it holds none
 */
export async function chatsFrom(file) {
  if (file.size > MAX_BYTES) throw new Error(`${file.name} is larger than 16 MiB.`);
  let found;
  try {
    found = JSON.parse(await file.text());
  } catch {
    throw new Error(`${file.name} is not JSON.`);
  }
  const chats = Array.isArray(found?.chats) ? found.chats : [found];
  return chats.map((chat) => {
    if (!Array.isArray(chat?.messages) || !chat.messages.length) {
      throw new Error(`${file.name} holds no chat. Try a file from “Export as JSON”.`);
    }
    const title = typeof chat.title === "string" ? { title: chat.title } : {};
    const created = Number.isFinite(chat.created) ? chat.created : Date.now();
    return { id: newId(), created, ...title, messages: messagesFrom(chat.messages) };
  });
}

/** Messages made anew from what a file says, with nothing but what the page knows. */
function messagesFrom(messages) {
  return messages.filter(({ role }) => role !== "system").map((message) => {
    const { role, content, thought, calls, callId, model, files, media, finish, fork, steps } = message;
    const made = { role, content: textOf(content ?? "") };
    if (!["user", "assistant", "tool"].includes(role)) throw new Error("A message has an unknown role.");
    if (role === "assistant") {
      made.model = textOf(model ?? "model");
      made.thought = textOf(thought ?? message.reasoning_content ?? "");
      made.calls = (calls ?? (message.tool_calls ?? []).map((call) => ({ id: call.id, ...call.function })))
        .map(({ id, name, arguments: given }) =>
          ({ id: textOf(id), name: textOf(name), arguments: textOf(given) }));
      if (finish !== undefined) made.finish = textOf(finish);
      if (steps) made.steps = steps.map(stepFrom);
    }
    if (role === "tool") made.callId = textOf(callId ?? message.tool_call_id);
    if (files) made.files = files.map(({ name, text }) => ({ name: textOf(name), text: textOf(text) }));
    if (media) made.media = media.map(mediaFrom);
    if (fork) {
      const others = fork.others.map(messagesFrom).filter((tail) => tail.length);
      made.fork = { others, at: Math.max(0, Math.min(Math.trunc(fork.at) || 0, others.length)) };
    }
    return made;
  });
}

/** The name of a picture or a sound, which the file does not hold. */
function mediaFrom({ kind, name }) {
  return { id: newId(), kind: kind === "sound" ? "sound" : "picture", name: textOf(name) };
}

function stepFrom({ id, server, name, arguments: given, status, output }) {
  return { id: textOf(id), server: textOf(server), name: textOf(name), arguments: textOf(given),
    status: textOf(status), output: textOf(output ?? "") };
}

function textOf(value) {
  if (typeof value !== "string") throw new Error("A message of the chat is not text.");
  return value;
}
