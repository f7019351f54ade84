// Markdown as elements. Text becomes text nodes and links only http, https and mailto, so that
// nothing a model writes can run or load anything. Time is linear in the text's length, whatever it says.

import { copyText, el, icon } from "./dom.js";
import { highlight } from "./highlight.js";
import { inline } from "./inline.js";
import { formula } from "./math.js";

const MAX_DEPTH = 12;
const FENCE = /^( {0,3})(`{3,}|~{3,})/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*)$/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)/;
const DELIMITERS = /^\|?(?: *:?-+:? *\|)+(?: *:?-+:?)?$/; // of a line without space at its ends
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
  const fence = fenceOf(line);
  if (fence) return codeAt(lines, at, fence);
  const math = mathAt(lines, at);
  if (math) return math;
  const heading = HEADING.exec(line);
  if (heading) {
    const title = heading[2].trimEnd().replace(/(^|[^#]) #+$/, "$1");
    return [at + 1, () => el(`h${heading[1].length}`, {}, inline(title))];
  }
  if (RULE.test(line)) return [at + 1, () => el("hr")];
  if (depth < MAX_DEPTH && QUOTE.test(line)) return quoteAt(lines, at, depth);
  if (depth < MAX_DEPTH && ITEM.test(line)) return listAt(lines, at, depth);
  if (isTable(lines, at)) return tableAt(lines, at);
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !opens(lines, end, depth)) end += 1;
  const text = lines.slice(at, end).map((each) => each.trimStart()).join("\n").trimEnd();
  return [end, () => el("p", {}, inline(text))];
}

/** Whether a line ends the paragraph before it. */
function opens(lines, at, depth) {
  const line = lines[at];
  const starts = [HEADING, RULE, ...(depth < MAX_DEPTH ? [QUOTE] : [])];
  if (starts.some((each) => each.test(line)) || fenceOf(line) || isTable(lines, at)) return true;
  if (mathAt(lines, at)) return true;
  const item = depth < MAX_DEPTH && ITEM.exec(line);
  return Boolean(item && item[3] && (!/^\d/.test(item[2]) || parseInt(item[2], 10) === 1));
}

/** The indent, the ticks and the language of a line that begins a block of code. */
function fenceOf(line) {
  const fence = FENCE.exec(line);
  if (!fence) return null;
  const rest = line.slice(fence[0].length);
  return rest.includes("`") ? null : [fence[1], fence[2], rest.trim().split(/\s/, 1)[0]];
}

/** A formula that has its lines for itself; null where there is none. */
function mathAt(lines, at) {
  const first = lines[at].trimStart();
  const close = first.startsWith("$$") ? "$$" : first.startsWith("\\[") ? "\\]" : null;
  // lines up to here were searched, and hold no formula that ends like this
  const searched = (lines.searched ??= {});
  if (close === null || at < (searched[close] ?? 0)) return null;
  let end = at;
  let place = first.indexOf(close, 2);
  while (place < 0 && lines[end + 1]?.trim()) place = lines[(end += 1)].indexOf(close);
  const rest = (end === at ? first : lines[end]).slice(place + 2).trim();
  if (place < 0 || (rest && !/^[.,;:]$/.test(rest))) {
    searched[close] = end;
    return null; // there is no end, or text goes on: it is part of a paragraph
  }
  const source = [first, ...lines.slice(at + 1, end + 1)].join("\n");
  const latex = source.slice(2, source.lastIndexOf(close)) + rest;
  return [end + 1, () => el("p", {}, formula(latex, source, true))];
}

function codeAt(lines, at, fence) {
  const [indent, ticks, language] = fence;
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
  const inner = el("code", {}, highlight(code, language || ""));
  // long lines scroll, so the keyboard must reach it
  return el("div", { className: "code" }, bar, el("pre", { tabIndex: 0 }, inner));
}

function quoteAt(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, "")).join("\n");
  return [end, () => el("blockquote", {}, builtBlocks(inner, depth + 1))];
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
  if (end === at) return [at + 1, () => el("p", {}, inline(lines[at]))];
  const start = ordered ? parseInt(first[2], 10) : 1;
  return [end, () => {
    const list = el(ordered ? "ol" : "ul", start === 1 ? {} : { start });
    for (const text of items) list.append(listItem(text, depth));
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
  if (blocks[0]?.tagName === "P") blocks.splice(0, 1, [...blocks[0].childNodes]);
  if (!task) return el("li", {}, blocks.flat());
  const box = el("input", { type: "checkbox", disabled: true, checked: task[1] !== " " });
  return el("li", { className: "task" }, box, " ", blocks.flat());
}

function builtBlocks(text, depth) {
  return blocksOf(text, depth).map((block) => block.build());
}

function isTable(lines, at) {
  const next = lines[at + 1];
  return next !== undefined && lines[at].includes("|") && DELIMITERS.test(next.trim());
}

function tableAt(lines, at) {
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) end += 1;
  const sides = cellsOf(lines[at + 1]).map((cell) => {
    const [left, right] = [cell.startsWith(":"), cell.endsWith(":")];
    return left && right ? "center" : right ? "right" : "";
  });
  const row = (line, tag) =>
    el("tr", {}, cellsOf(line).slice(0, sides.length).map((cell, column) =>
      el(tag, { className: sides[column] }, inline(cell))));
  return [end, () => {
    const head = el("thead", {}, row(lines[at], "th"));
    const body = el("tbody", {}, lines.slice(at + 2, end).map((line) => row(line, "td")));
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
