// One reply: what its stream has said so far, and what it cost.

import { chat, pictures } from "./api.js";
import { madePicture } from "./media.js";

/** An assistant's message into which `stream` writes. */
export function newReply(model) {
  return { role: "assistant", model, content: "", thought: "", calls: [] };
}

/**
 * Stream the answer to a request into a message, after what it says already.
 *
 * @param message what `newReply` made
 * @param onChange called after each chunk
 */
export async function stream(message, body, { signal, onChange }) {
  const numSteps = message.steps?.length ?? 0;
  const watch = { began: performance.now(), first: 0, last: 0, deltas: 0, numSteps };
  const before = message.stats?.tokens ?? 0;
  message.stats = {};
  delete message.finish;
  delete message.error;
  try {
    for await (const chunk of chat(body, signal)) {
      take(message, chunk, watch);
      onChange();
    }
  } finally {
    settle(message, watch);
    if (before) message.stats.tokens = before + (message.stats.tokens ?? 0);
  }
}

/** Make a picture and put it into a message. */
export async function paint(message, body, { signal }) {
  const began = performance.now();
  message.stats = {};
  delete message.error;
  delete message.finish;
  const made = await pictures(body, signal);
  message.media = await Promise.all(made.map((file) => madePicture(file, body.prompt)));
  message.stats.pictureMs = performance.now() - began;
}

function take(message, chunk, watch) {
  if (chunk.reuse !== undefined) {
    message.stats.reuse = chunk.reuse;
    message.stats.dropped = chunk.dropped;
  }
  if (chunk.usage) takeUsage(message.stats, chunk.usage);
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const { content, reasoning_content: thought, tool_calls: calls = [], mcp_calls: steps = [] } = choice.delta;
  if (content || thought || calls.length) {
    watch.last = performance.now();
    watch.first ||= watch.last;
    watch.deltas += 1;
  }
  if (thought) message.thought += thought;
  if (message.thought && content && !message.stats.thoughtMs) {
    message.stats.thoughtMs = performance.now() - watch.first;
  }
  if (content) message.content += content;
  for (const call of calls) takeCall(message.calls, call);
  for (const step of steps) takeStep(message, step, watch.numSteps);
  if (choice.finish_reason) message.finish = choice.finish_reason;
}

function takeCall(calls, { index, id, function: part }) {
  calls[index] ??= { id: id ?? "", name: "", arguments: "" };
  if (part?.name) calls[index].name = part.name;
  calls[index].arguments += part?.arguments ?? "";
}

/** A call that the server runs itself; it is told of when it begins, and when it ends. */
function takeStep(message, { index, id, server_label: server, name, arguments: given, status, output }, before) {
  message.steps ??= [];
  message.steps[before + index] = { id, server, name, arguments: given, status, output: output ?? undefined };
}

function takeUsage(stats, usage) {
  stats.prompt = usage.prompt_tokens;
  stats.tokens = usage.completion_tokens;
  stats.cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
}

function settle(message, watch) {
  const { stats } = message;
  if (!watch.first) return;
  stats.firstMs = watch.first - watch.began;
  const seconds = (watch.last - watch.first) / 1000;
  // A stopped reply has no usage; its deltas are about one token each.
  const tokens = stats.tokens ?? watch.deltas;
  stats.isGuess = stats.tokens === undefined;
  stats.tokens = tokens;
  // what came in one piece has no speed
  if (tokens > 1 && seconds > 0.02) stats.speed = (tokens - 1) / seconds;
}

const REASONS = {
  whole: "all that could be reused was",
  partial: "an earlier prompt begins like this one",
  unknown: "nothing in memory begins like this",
  "no-state": "no state of the recurrent layers was kept at that place",
  short: "the prompt is too short to be kept",
  off: "reuse is turned off",
};

/** What a reply cost, as short texts with an explanation each. */
export function costs(stats) {
  const found = [];
  if (stats?.tokens !== undefined) {
    const count = `${stats.isGuess ? "≈ " : ""}${stats.tokens}`;
    found.push([`${count} ${stats.tokens === 1 ? "token" : "tokens"}`, "generated"]);
  }
  if (stats?.pictureMs) found.push([`made in ${duration(stats.pictureMs)}`, "time to make the picture"]);
  if (stats?.speed) found.push([`${stats.speed.toFixed(1)} tokens/s`, "after the first token"]);
  if (stats?.firstMs) found.push([`first after ${duration(stats.firstMs)}`, "time to first token"]);
  if (stats?.prompt !== undefined) {
    const why = REASONS[stats.reuse] ?? "prompt tokens not computed again";
    found.push([`cache ${stats.cached} of ${stats.prompt}`, `Prompt tokens reused: ${why}.`]);
  }
  if (stats?.dropped) {
    const what = stats.dropped === 1 ? "message" : "messages";
    const why = "The chat is longer than the model's context. Its oldest turns were not sent.";
    found.push([`${stats.dropped} oldest ${what} left out`, why]);
  }
  return found;
}

/** Milliseconds for people. */
export function duration(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}
