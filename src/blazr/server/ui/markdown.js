// Markdown as elements. Text becomes text nodes and links only http, https and mailto, so that
// nothing a model writes can run or load anything.

import { copyText, el, icon } from "./dom.js";
import { highlight } from "./highlight.js";

const MAX_DEPTH = 12;
const FENCE = /^( {0,3})(`{3,}|~{3,})[ \t]*([^`\s]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*)$/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)/;
const DELIMITERS = /^ *\|?(?: *:?-+:? *\|)+ *(?::?-+:? *)?$/;
const TASK = /^\[([ xX])\] /;

/** The whole text as elements. */
export function renderMarkdown(text) {
  const fragment = document.createDocumentFragment();
  for (const block of blocksOf(text)) fragment.append(block.build());
  return fragment;
}

/** Shows a text that grows: only blocks that changed are built again. */
export class LiveMarkdown {
  constructor(root) {
    this.root = root;
    this.shown = [];
  }

  update(text) {
    const blocks = blocksOf(text);
    let same = 0;
    while (same < blocks.length && this.shown[same] === blocks[same].source) same += 1;
    while (this.root.childNodes.length > same) this.root.lastChild.remove();
    for (const block of blocks.slice(same)) this.root.append(block.build());
    this.shown = blocks.map((block) => block.source);
  }
}

function blocksOf(text, depth = 0) {
  const lines = text.replace(/\r\n?/g, "\n").replace(/\t/g, "    ").split("\n");
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const [end, build] = blockAt(lines, at, depth);
    blocks.push({ source: lines.slice(at, end).join("\n"), build });
    at = end;
  }
  return blocks;
}

function blockAt(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return codeAt(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) {
    const title = heading[2].trimEnd().replace(/(^|[^#]) #+$/, "$1");
    return [at + 1, () => el(`h${heading[1].length}`, {}, ...inline(title))];
  }
  if (RULE.test(line)) return [at + 1, () => el("hr")];
  if (depth < MAX_DEPTH && QUOTE.test(line)) return quoteAt(lines, at, depth);
  if (depth < MAX_DEPTH && ITEM.test(line)) return listAt(lines, at, depth);
  if (isTable(lines, at)) return tableAt(lines, at);
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !opens(lines, end, depth)) end += 1;
  const text = lines.slice(at, end).map((each) => each.trimStart()).join("\n").trimEnd();
  return [end, () => el("p", {}, ...inline(text))];
}

/** Whether a line ends the paragraph before it. */
function opens(lines, at, depth) {
  const line = lines[at];
  const starts = [FENCE, HEADING, RULE, ...(depth < MAX_DEPTH ? [QUOTE] : [])];
  if (starts.some((each) => each.test(line)) || isTable(lines, at)) return true;
  const item = depth < MAX_DEPTH && ITEM.exec(line);
  return Boolean(item && item[3] && (!/^\d/.test(item[2]) || parseInt(item[2], 10) === 1));
}

function codeAt(lines, at, fence) {
  const [, indent, ticks, language] = fence;
  const inside = [];
  let end = at + 1;
  for (; end < lines.length; end += 1) {
    const close = lines[end].trim();
    if (close.length >= ticks.length && close === ticks[0].repeat(close.length)) break;
    inside.push(lines[end].startsWith(indent) ? lines[end].slice(indent.length) : lines[end]);
  }
  return [Math.min(end + 1, lines.length), () => codeBlock(inside.join("\n"), language)];
}

/** A block of code with its language and a button to copy it. */
export function codeBlock(code, language) {
  const copy = el("button", { type: "button", className: "ghost", title: "Copy the code",
    "aria-label": "Copy the code", onclick: () => copyText(code, copy) }, icon("copy"));
  const bar = el("div", { className: "code-bar" }, el("span", {}, language || "code"), copy);
  const inner = el("code", {}, ...highlight(code, language || ""));
  // long lines scroll, so the keyboard must reach it
  return el("div", { className: "code" }, bar, el("pre", { tabIndex: 0 }, inner));
}

function quoteAt(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, "")).join("\n");
  return [end, () => el("blockquote", {}, ...builtBlocks(inner, depth + 1))];
}

function listAt(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  const ordered = /^\d/.test(first[2]);
  const mark = first[2].at(-1);
  const items = [];
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    const fits = item && item[1].length <= first[1].length + 1 && item[2].at(-1) === mark;
    if (!fits || RULE.test(lines[end])) break;
    const [next, text] = itemAt(lines, end, item);
    items.push(text);
    end = next;
  }
  if (end === at) return [at + 1, () => el("p", {}, ...inline(lines[at]))];
  const start = ordered ? parseInt(first[2], 10) : 1;
  return [end, () => {
    const list = el(ordered ? "ol" : "ul", start === 1 ? {} : { start });
    list.append(...items.map((text) => listItem(text, depth)));
    return list;
  }];
}

/** The text of one item, without its indent, and where it ends. */
function itemAt(lines, at, item) {
  const width = item[1].length + item[2].length + Math.min(Math.max(item[3].length, 1), 4);
  const inner = [lines[at].slice(width)];
  let end = at + 1;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    const indent = line.length - line.trimStart().length;
    if (!line.trim()) {
      const after = lines[end + 1] ?? "";
      const goesOn = after.trim() && after.length - after.trimStart().length >= 2;
      const nextItem = ITEM.exec(after);
      if (!goesOn && !(nextItem && nextItem[1].length === item[1].length)) break;
      inner.push("");
    } else if (indent > item[1].length + 1) {
      inner.push(line.slice(Math.min(indent, width)));
    } else if (ITEM.test(line) || inner.at(-1) === "" || opens(lines, end, 0)) {
      break;
    } else {
      inner.push(line.trimStart());
    }
  }
  while (inner.length > 1 && inner.at(-1) === "") inner.pop();
  return [end, inner.join("\n")];
}

function listItem(text, depth) {
  const task = TASK.exec(text);
  const blocks = builtBlocks(task ? text.slice(4) : text, depth + 1);
  // an item of one paragraph is tight
  if (blocks.length && blocks[0].tagName === "P") blocks.splice(0, 1, ...blocks[0].childNodes);
  if (!task) return el("li", {}, ...blocks);
  const box = el("input", { type: "checkbox", disabled: true, checked: task[1] !== " " });
  return el("li", { className: "task" }, box, " ", ...blocks);
}

function builtBlocks(text, depth) {
  return blocksOf(text, depth).map((block) => block.build());
}

function isTable(lines, at) {
  const next = lines[at + 1];
  return next !== undefined && lines[at].includes("|") && DELIMITERS.test(next);
}

function tableAt(lines, at) {
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) end += 1;
  const sides = cellsOf(lines[at + 1]).map((cell) => {
    const [left, right] = [cell.startsWith(":"), cell.endsWith(":")];
    return left && right ? "center" : right ? "right" : "";
  });
  const row = (line, tag) =>
    el("tr", {}, ...cellsOf(line).slice(0, sides.length).map((cell, column) =>
      el(tag, { className: sides[column] }, ...inline(cell))));
  return [end, () => {
    const head = el("thead", {}, row(lines[at], "th"));
    const body = el("tbody", {}, ...lines.slice(at + 2, end).map((line) => row(line, "td")));
    return el("div", { className: "table", tabIndex: 0 }, el("table", {}, head, body));
  }];
}

function cellsOf(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/([^\\])\|$/, "$1");
  const cells = [""];
  for (let at = 0; at < inner.length; at += 1) {
    if (inner[at] === "\\" && inner[at + 1] === "|") cells[cells.length - 1] += inner[(at += 1)];
    else if (inner[at] === "|") cells.push("");
    else cells[cells.length - 1] += inner[at];
  }
  return cells.map((cell) => cell.trim());
}

// Inside a block.

const ESCAPED = /[!-/:-@[-`{-~]/;
const PLAIN_URL = /^https?:\/\/[^\s<>"'`]+/i;
const SAFE_URL = /^(?:https?:\/\/|mailto:)/i;
const WORDY = /[\p{L}\p{N}]/u;

/** A line of text as nodes. */
export function inline(text, depth = 0) {
  const nodes = [];
  let plain = "";
  const flush = () => {
    if (plain) nodes.push(plain);
    plain = "";
  };
  for (let at = 0; at < text.length; ) {
    const found = depth < MAX_DEPTH ? specialAt(text, at, depth) : null;
    if (found === null) {
      plain += text[at];
      at += 1;
    } else if (typeof found.node === "string") {
      plain += found.node;
      at = found.end;
    } else {
      flush();
      nodes.push(found.node);
      at = found.end;
    }
  }
  flush();
  return nodes;
}

function specialAt(text, at, depth) {
  const character = text[at];
  if (character === "\\" && text[at + 1] === "\n") return { node: el("br"), end: at + 2 };
  if (character === "\\" && ESCAPED.test(text[at + 1] ?? "")) {
    return { node: text[at + 1], end: at + 2 };
  }
  if (character === "\n") return { node: el("br"), end: at + 1 };
  if (character === "`") return codeSpanAt(text, at);
  if (character === "!" && text[at + 1] === "[") return linkAt(text, at + 1, depth);
  if (character === "[") return linkAt(text, at, depth);
  if (character === "<") return angleAt(text, at);
  if (character === "h" || character === "H") return plainUrlAt(text, at);
  if (character === "*" || character === "_" || character === "~") {
    return emphasisAt(text, at, depth);
  }
  return null;
}

function runLength(text, at) {
  let end = at;
  while (text[end] === text[at]) end += 1;
  return end - at;
}

function codeSpanAt(text, at) {
  const ticks = runLength(text, at);
  for (let end = at + ticks; end < text.length; ) {
    end = text.indexOf("`", end);
    if (end < 0) break;
    const closing = runLength(text, end);
    if (closing === ticks) {
      let code = text.slice(at + ticks, end).replace(/\n/g, " ");
      if (/^ .*[^ ].* $/.test(code)) code = code.slice(1, -1);
      return { node: el("code", {}, code), end: end + ticks };
    }
    end += closing;
  }
  return { node: text.slice(at, at + ticks), end: at + ticks };
}

function linkAt(text, at, depth) {
  const close = closingAt(text, at, "[", "]");
  if (close < 0 || text[close + 1] !== "(") return null;
  const end = closingAt(text, close + 1, "(", ")");
  if (end < 0) return null;
  const target = text.slice(close + 2, end).trim().split(/\s/)[0].replace(/^<(.*)>$/, "$1");
  const label = text.slice(at + 1, close);
  return { node: link(target, inline(label || target, depth + 1)), end: end + 1 };
}

function closingAt(text, at, open, close) {
  let level = 0;
  for (let end = at; end < text.length && end - at < 4000; end += 1) {
    if (text[end] === "\\") end += 1;
    else if (text[end] === open) level += 1;
    else if (text[end] === close && (level -= 1) === 0) return end;
  }
  return -1;
}

function angleAt(text, at) {
  const end = text.indexOf(">", at);
  const target = end < 0 ? "" : text.slice(at + 1, end);
  if (!SAFE_URL.test(target) || /\s/.test(target)) return null;
  return { node: link(target, [target]), end: end + 1 };
}

function plainUrlAt(text, at) {
  if (at && WORDY.test(text[at - 1])) return null;
  const found = PLAIN_URL.exec(text.slice(at, at + 2048));
  if (!found) return null;
  let target = found[0].replace(/[.,;:!?*_~]+$/, "");
  if (target.endsWith(")") && !target.includes("(")) target = target.slice(0, -1);
  return { node: link(target, [target]), end: at + target.length };
}

/** A link out of the page; only its text, where the address is of no safe kind. */
function link(target, children) {
  let url = null;
  if (SAFE_URL.test(target)) {
    try {
      url = new URL(target);
    } catch {
      // no address at all
    }
  }
  if (url === null) return el("span", { className: "no-link", title: target }, ...children);
  return el("a", { href: url.href, target: "_blank", rel: "noopener noreferrer nofollow" },
    ...children);
}

const EMPHASIS = { "**": "strong", __: "strong", "*": "em", _: "em", "~~": "del" };

function emphasisAt(text, at, depth) {
  const run = runLength(text, at);
  const mark = text[at].repeat(run > 1 ? 2 : 1);
  const tag = EMPHASIS[mark];
  const before = text[at - 1] ?? " ";
  const isOpen = tag && run <= 3 && /\S/.test(text[at + run] ?? " ");
  const close = isOpen && !(mark[0] === "_" && WORDY.test(before)) ? closerOf(text, at, mark) : -1;
  // what opens nothing is passed as a whole, so that long runs cost no more than short ones
  if (close < 0) return { node: text.slice(at, at + run), end: at + run };
  const inner = inline(text.slice(at + mark.length, close), depth + 1);
  return { node: el(tag, {}, ...inner), end: close + mark.length };
}

function closerOf(text, at, mark) {
  for (let end = at + runLength(text, at); end < text.length && end - at < 8000; ) {
    if (text[end] === "\\") {
      end += 2;
    } else if (text[end] === "`") {
      end = codeSpanAt(text, end).end;
    } else if (text[end] === mark[0]) {
      const run = runLength(text, end);
      const after = text[end + run] ?? " ";
      const isClosing = run === mark.length || run === 3; // three are both kinds at once
      const fits = /\S/.test(text[end - 1]) && !(mark[0] === "_" && WORDY.test(after));
      if (isClosing && fits) return end + run - mark.length;
      end += run;
    } else {
      end += 1;
    }
  }
  return -1;
}
