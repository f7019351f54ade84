// How one message looks. Views hold no state of their own but what is folded.

import { copyText, el, icon, iconButton } from "./dom.js";
import { chip } from "./files.js";
import { highlight } from "./highlight.js";
import { LiveMarkdown } from "./markdown.js";
import { mediaView } from "./media.js";
import { costs, duration } from "./reply.js";

/** What the person asked, with the buttons for it. */
export function userView(message, { onEdit, onVersion }) {
  const copy = iconButton("copy", "Copy the message", () => copyText(message.content, copy));
  const edit = iconButton("edit", "Edit and send again", () => onEdit(view), { className: "ghost edit" });
  const files = message.files?.length ? el("ul", { className: "chips", "aria-label": "Files" },
    message.files.map((file) => chip(file))) : null;
  const media = message.media?.length ? mediaList(message) : null;
  const text = message.content ? el("div", { className: "said" }, message.content) : null;
  const view = el("article", { className: "message user", "aria-label": "You" }, files, media, text,
    el("div", { className: "actions" }, versionsView(message, onVersion), edit, copy));
  return view;
}

function mediaList({ media }) {
  return el("ul", { className: "media-list", "aria-label": "Pictures and sounds" }, media.map((item) => mediaView(item)));
}

/** Which version of a message is shown, with buttons to the others; null where there is one. */
function versionsView({ fork }, onVersion) {
  if (!fork) return null;
  const count = fork.others.length + 1;
  const to = (name, label, at) => iconButton(name, label, () => onVersion(at), { disabled: at < 0 || at === count });
  return el("span", { className: "versions", role: "group", "aria-label": "Versions" },
    to("left", "Previous version", fork.at - 1), el("span", {}, `${fork.at + 1}/${count}`),
    to("right", "Next version", fork.at + 1));
}

/** A message being edited: Enter sends, Escape gives up. */
export function editorView(message, { onSave, onCancel }) {
  const area = el("textarea", { value: message.content, rows: 3, "aria-label": "Edit the message" });
  const save = () => (area.value.trim() || message.files?.length || message.media?.length) && onSave(area.value);
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      save();
    } else if (event.key === "Escape") {
      event.stopPropagation();
      onCancel();
    }
  });
  const form = el("form", { className: "message user editor", onsubmit: (event) => {
    event.preventDefault();
    save();
  } }, area, el("div", { className: "row end" },
    el("button", { type: "button", onclick: onCancel }, "Cancel"),
    el("button", { type: "submit", className: "primary" }, "Send")));
  return { form, area };
}

/** What the model answers; `update` follows the message as it grows. */
export class ReplyView {
  constructor(message, { onRetry, onContinue, onVersion, onResults, onSpeak, isOwnTool = () => true, results = new Map(), isLast }) {
    this.message = message;
    this.isOwnTool = isOwnTool;
    this.results = results;
    this.onResults = onResults;
    this.isLast = isLast;
    this.thought = el("div", { className: "markdown" });
    this.thoughtLabel = el("span", {}, "Thinking");
    this.thinking = el("details", { className: "thinking", hidden: true },
      el("summary", {}, icon("thought"), this.thoughtLabel), this.thought);
    this.steps = el("div", { className: "calls steps" });
    this.text = el("div", { className: "markdown reply" });
    this.media = el("div");
    this.calls = el("div", { className: "calls" });
    this.notice = el("div", { className: "notice", role: "alert", hidden: true });
    this.stats = el("ul", { className: "stats", "aria-label": "What the reply cost" });
    const copy = iconButton("copy", "Copy the reply", () => copyText(message.content, copy));
    const retry = iconButton("retry", "Try again (Alt+R)", onRetry);
    const speak = onSpeak && message.content
      ? iconButton("speak", "Read aloud", () => onSpeak(this.text.innerText)) : null;
    this.goOn = el("button", { type: "button", className: "continue", onclick: onContinue, hidden: true },
      "Continue");
    this.actions = el("div", { className: "actions" }, versionsView(message, onVersion), retry, copy,
      speak, this.goOn, this.stats);
    this.root = el("article", { className: "message assistant", "aria-label": message.model },
      this.thinking, this.steps, this.text, this.media, this.calls, this.notice, this.actions);
    this.liveText = new LiveMarkdown(this.text);
    this.liveThought = new LiveMarkdown(this.thought);
  }

  update(isRunning) {
    const { message } = this;
    this.root.classList.toggle("running", isRunning);
    this.root.setAttribute("aria-busy", String(isRunning));
    this.thinking.hidden = !message.thought;
    if (message.thought) {
      this.liveThought.update(message.thought);
      this.thoughtLabel.textContent = this.thoughtTitle(isRunning);
    }
    this.updateSteps(isRunning);
    this.liveText.update(message.content);
    if (message.media?.length && !this.media.firstChild) this.media.append(mediaList(message));
    this.updateCalls(isRunning);
    this.notice.textContent = message.error ?? NOTICES[message.finish] ?? "";
    this.notice.classList.toggle("error", Boolean(message.error));
    this.notice.hidden = isRunning || !this.notice.textContent;
    this.actions.hidden = isRunning;
    const isCut = message.error || message.finish === "length" || message.finish === "stopped";
    this.goOn.hidden = !(this.isLast && isCut && message.content && !message.calls.length);
    const shown = isRunning ? [] : costs(message.stats);
    this.stats.replaceChildren(...shown.map(([text, title]) => el("li", { title }, text)));
  }

  thoughtTitle(isRunning) {
    const ms = this.message.stats?.thoughtMs;
    if (ms > 100) return `Thought for ${duration(ms)}`;
    return isRunning ? "Thinking…" : "Thoughts";
  }

  /** The calls that the server ran; those that have changed are drawn anew, folded as they were. */
  updateSteps(isRunning) {
    for (const [place, step] of (this.message.steps ?? []).entries()) {
      const status = step.status === "in_progress" && !isRunning ? "stopped" : step.status;
      const shown = this.steps.children[place];
      if (shown?.dataset.status === status) continue;
      const view = stepView(step, status);
      view.open = shown?.open ?? false;
      if (shown) shown.replaceWith(view);
      else this.steps.append(view);
    }
  }

  updateCalls(isRunning) {
    const { calls } = this.message;
    if (!calls?.length) return;
    const open = calls.filter((call) => !this.results.has(call.id));
    const asks = this.isLast && !isRunning && open.length > 0;
    const fields = new Map(asks ? open.map((call) => [call, askFor(this.isOwnTool(call.name))]) : []);
    const cards = calls.map((call) => callCard(call, this.results.get(call.id), fields.get(call)));
    if (asks) cards.push(this.resultsButton(fields));
    this.calls.replaceChildren(...cards);
  }

  resultsButton(fields) {
    const send = () => {
      const answers = [...fields].map(([{ id }, { allow, area }]) =>
        ({ callId: id, isAllowed: allow?.checked, content: area.value || (allow ? REFUSED : "") }));
      this.onResults(
        answers.filter((each) => !each.isAllowed).map(({ callId, content }) => ({ callId, content })),
        answers.filter((each) => each.isAllowed).map(({ callId }) => callId));
    };
    return el("button", { type: "button", className: "primary", onclick: send }, "Send results");
  }
}

const NOTICES = {
  length: "Cut off: Max tokens in Settings, or the end of the model's context.",
  stopped: "Stopped.",
};

const REFUSED = "Error: the user has refused this call.";

const STATUSES = { in_progress: "runs…", completed: "done", failed: "failed", stopped: "stopped" };

/** A call that the server runs, folded: the tool, its server and how it goes. */
function stepView({ server, name, arguments: given, output }, status) {
  const summary = el("summary", {}, icon("tool"), el("strong", {}, name),
    el("span", {}, `${server} · ${STATUSES[status] ?? status}`));
  const result = output === undefined ? [] : [el("div", { className: "result-label" }, "Result"),
    el("pre", { className: "result", tabIndex: 0 }, output)];
  return el("details", { className: `call step ${status}`, "aria-label": `Call of ${name}`, "data-status": status },
    summary, el("pre", { tabIndex: 0 }, el("code", {}, ...highlight(pretty(given), "json"))), result);
}

/** Fields for the result of a call; one that is not of Settings may be a tool of the server. */
function askFor(isOwn) {
  const placeholder = isOwn ? "What the tool answers" : "Or what the tool answers; nothing refuses the call";
  return { allow: isOwn ? null : el("input", { type: "checkbox" }), area: el("textarea", { rows: 2, placeholder }) };
}

/** A call of a tool: its name, its arguments, what came of it or fields for that. */
function callCard(call, result, fields) {
  const code = el("pre", { tabIndex: 0 }, el("code", {}, ...highlight(pretty(call.arguments), "json")));
  const card = el("section", { className: "call", "aria-label": `Call of ${call.name}` },
    el("header", {}, icon("tool"), el("strong", {}, call.name), el("span", {}, "tool call")), code);
  if (result !== undefined) {
    card.append(el("div", { className: "result-label" }, "Result"),
      el("pre", { className: "result", tabIndex: 0 }, result));
  } else if (fields) {
    if (fields.allow) card.append(el("label", { className: "check" }, fields.allow, "Let the server run this call"));
    card.append(el("label", {}, "Result", fields.area));
  }
  return card;
}

/** JSON with indents; as it is while it is not whole. */
export function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
