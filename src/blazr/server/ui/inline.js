// What stands inside a block: emphasis, code, links, formulas. Two passes, each linear in the text's
// length: the first finds tokens and which marks belong together, the second builds.

import { el } from "./dom.js";
import { formula } from "./math.js";

const MAX_DEPTH = 12; // of elements in each other; deeper marks stay text
const MAX_PARENS = 32; // open at once in an address
const MAX_URL = 2048;
const ESCAPED = /[!-/:-@[-`{-~]/;
const PLAIN_URL = /https?:\/\/[^\s<>"'`]+/iy;
const ANGLE_URL = /<((?:https?:\/\/|mailto:)[^\s<>]+)>/iy;
const SAFE_URL = /^(?:https?:\/\/|mailto:)/i;
const WORDY = /[\p{L}\p{N}]/u;
const SPECIAL = /[\\\n`![\]<hH*_~$]/;
const TAGS = { "**": "strong", __: "strong", "*": "em", _: "em", "~~": "del" };

/** A text as a fragment of nodes. */
export function inline(text) {
  return build(new Scanner(text).tokens());
}

class Scanner {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.found = []; // tokens: { text }, { node }, or marks with what they open and close
    this.marks = []; // runs of * _ ~ that may still open or close something
    this.brackets = []; // [ and ![ that may still begin a link
    this.numInactive = 0; // so many of those are around a link already
    this.gone = new Set(); // marks that do not come any more
    this.ticks = null;
  }

  tokens() {
    const { text } = this;
    while (this.at < text.length) {
      const start = this.at;
      while (this.at < text.length && !SPECIAL.test(text[this.at])) this.at += 1;
      if (this.at > start) this.say(text.slice(start, this.at));
      if (this.at < text.length) this.special(text[this.at]);
    }
    pair(this.marks);
    return this.found;
  }

  say(text) {
    this.found.push({ text });
  }

  take(length) {
    this.say(this.text.slice(this.at, this.at + length));
    this.at += length;
  }

  add(node, end) {
    this.found.push({ node });
    this.at = end;
  }

  special(character) {
    if (character === "\\") this.backslash();
    else if (character === "\n") this.add(el("br"), this.at + 1);
    else if (character === "`") this.code();
    else if (character === "$") this.dollar();
    else if (character === "[") this.bracket(1);
    else if (character === "!") this.text[this.at + 1] === "[" ? this.bracket(2) : this.take(1);
    else if (character === "]") this.closeBracket();
    else if (character === "<") this.angle();
    else if (character === "h" || character === "H") this.plainUrl();
    else this.mark();
  }

  backslash() {
    const next = this.text[this.at + 1] ?? "";
    if (next === "\n") return this.add(el("br"), this.at + 2);
    const close = { "(": "\\)", "[": "\\]" }[next];
    if (close && this.math(2, close)) return undefined;
    if (!ESCAPED.test(next)) return this.take(1);
    this.at += 1;
    return this.take(1);
  }

  /** Where a mark comes next, or -1; one that never comes again is not looked for again. */
  next(mark, from) {
    if (this.gone.has(mark)) return -1;
    const place = this.text.indexOf(mark, from);
    if (place < 0) this.gone.add(mark);
    return place;
  }

  math(length, close) {
    const start = this.at + length;
    const end = this.next(close, start);
    if (end < 0 || !this.text.slice(start, end).trim()) return false;
    const source = this.text.slice(this.at, end + close.length);
    const isDisplay = close !== "\\)" && close !== "$";
    this.add(formula(this.text.slice(start, end), source, isDisplay), end + close.length);
    return true;
  }

  dollar() {
    const { text, at } = this;
    if (text[at + 1] === "$") return this.math(2, "$$") || this.take(runLength(text, at));
    let end = at + 1;
    while (end < text.length && !"$\n`".includes(text[end])) end += text[end] === "\\" ? 2 : 1;
    if (text[end] === "$" && isFormula(text, at, end)) {
      const source = text.slice(at, end + 1);
      return this.add(formula(source.slice(1, -1), source, false), end + 1);
    }
    return this.take(1);
  }

  code() {
    const { text, at } = this;
    const length = runLength(text, at);
    const end = this.closingTicks(at, length);
    if (end === undefined) return this.take(length);
    let code = text.slice(at + length, end).replace(/\n/g, " ");
    if (code.startsWith(" ") && code.endsWith(" ") && code.trim()) code = code.slice(1, -1);
    return this.add(el("code", {}, code), end + length);
  }

  /** Where the next run of so many backticks is. */
  closingTicks(at, length) {
    if (this.ticks === null) {
      this.ticks = new Map(); // places by length, the last one first
      for (const { 0: run, index } of [...this.text.matchAll(/`+/g)].reverse()) {
        if (!this.ticks.has(run.length)) this.ticks.set(run.length, []);
        this.ticks.get(run.length).push(index);
      }
    }
    const places = this.ticks.get(length) ?? [];
    while (places.at(-1) <= at) places.pop();
    return places.at(-1);
  }

  bracket(length) {
    this.brackets.push({ token: this.found.length, marks: this.marks.length, isImage: length === 2 });
    this.take(length);
  }

  closeBracket() {
    const open = this.brackets.pop();
    const isActive = open?.isImage || this.brackets.length >= this.numInactive;
    this.numInactive = Math.min(this.numInactive, this.brackets.length);
    const target = open && isActive ? this.target(this.at + 1) : null;
    if (target === null) return this.take(1);
    pair(this.marks.splice(open.marks));
    // a link holds no other one, but a picture may be its text
    if (!open.isImage) this.numInactive = this.brackets.length;
    if (open.token === this.found.length - 1) this.say(target.url);
    this.found[open.token] = { text: "", opens: [{ target: target.url, mark: "" }], closes: [] };
    this.found.push({ text: "", opens: [], closes: [""] });
    this.at = target.end;
    return undefined;
  }

  /** An address in parentheses and where it ends; null where there is none. */
  target(at) {
    const { text } = this;
    if (text[at] !== "(") return null;
    let level = 0;
    for (let end = at; end < text.length && level <= MAX_PARENS; end += 1) {
      if (text[end] === "\\") end += 1;
      else if (text[end] === "(") level += 1;
      else if (text[end] === ")" && (level -= 1) === 0) {
        const [url] = text.slice(at + 1, end).trim().split(/\s/, 1);
        return { url: url.replace(/^<(.*)>$/, "$1"), end: end + 1 };
      }
    }
    return null;
  }

  angle() {
    const url = matchAt(ANGLE_URL, this.text, this.at)?.[1];
    if (!url || url.length > MAX_URL) return this.take(1);
    return this.add(link(url, [url]), this.at + url.length + 2);
  }

  plainUrl() {
    const { text, at } = this;
    const isWithin = at > 0 && WORDY.test(text[at - 1]);
    const found = isWithin || !/^https?:/i.test(text.slice(at, at + 6)) ? null : matchAt(PLAIN_URL, text, at);
    if (!found) return this.take(1);
    let end = Math.min(found[0].length, MAX_URL);
    while (".,;:!?*_~".includes(found[0][end - 1])) end -= 1;
    if (found[0][end - 1] === ")" && !found[0].slice(0, end).includes("(")) end -= 1;
    const url = found[0].slice(0, end);
    return this.add(link(url, [url]), at + end);
  }

  mark() {
    const { text, at } = this;
    const run = runLength(text, at);
    const character = text[at];
    const isMark = run <= 3 && (character !== "~" || run === 2);
    if (!isMark) return this.take(run); // long runs mean nothing
    const [before, after] = [text[at - 1] ?? " ", text[at + run] ?? " "];
    const isWord = (each) => character === "_" && WORDY.test(each);
    const mark = { character, run, text: character.repeat(run), opens: [], closes: [],
      canOpen: /\S/.test(after) && !isWord(before), canClose: /\S/.test(before) && !isWord(after) };
    this.found.push(mark);
    this.marks.push(mark);
    this.at += run;
    return undefined;
  }
}

function runLength(text, at) {
  let end = at;
  while (text[end] === text[at]) end += 1;
  return end - at;
}

function matchAt(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

/** Whether what stands between two dollars is a formula, and not two prices. */
function isFormula(text, open, close) {
  const inside = text.slice(open + 1, close);
  if (!/^\S/.test(inside) || /\s$/.test(inside)) return false;
  if (WORDY.test(text[open - 1] ?? "") || /[\p{L}\p{N}{$]/u.test(text[close + 1] ?? "")) return false;
  return !(/^[\d.,]+/.test(inside) && /\s\p{L}{2}|\s[-–—(]|[-–—]$/u.test(inside) && !/[\\^_={}]/.test(inside));
}

/**
 * Find which runs of marks belong together: each that may close takes the nearest before it that
 * may open and is as long; three are both kinds at once.
 *
 * For each kind of closing run it is remembered how far back there is none to open it, so that no
 * run is looked at more than once for each kind.
 */
function pair(marks) {
  const open = []; // those that may still be opened
  const searched = new Map();
  for (const mark of marks) {
    while (mark.canClose && mark.run > 0) {
      const kind = mark.character + mark.run;
      const bottom = searched.get(kind) ?? 0;
      let place = open.length - 1;
      while (place >= bottom && !fits(open[place], mark)) place -= 1;
      if (place < bottom) {
        searched.set(kind, open.length);
        break;
      }
      const opener = open[place];
      const length = Math.min(opener.run, mark.run) === 3 ? 1 : Math.min(opener.run, mark.run);
      const sign = mark.character.repeat(length);
      opener.opens.unshift({ tag: TAGS[sign], mark: sign });
      mark.closes.push(sign);
      for (const each of [opener, mark]) {
        each.run -= length;
        each.text = each.text.slice(length);
      }
      open.length = opener.run > 0 ? place + 1 : place; // what is between them stays text
      for (const [each, least] of searched) searched.set(each, Math.min(least, open.length));
    }
    if (mark.canOpen && mark.run > 0) open.push(mark);
  }
}

function fits(opener, closer) {
  return opener.character === closer.character &&
    (opener.run === closer.run || opener.run === 3 || closer.run === 3);
}

/** Tokens as nodes. */
function build(tokens) {
  const root = document.createDocumentFragment();
  const path = [root]; // null for what is too deep to be an element
  let [inner, numLinks, plain] = [root, 0, ""];
  const flush = () => {
    if (plain) inner.append(plain);
    plain = "";
  };
  const innermost = () => path.findLast((each) => each !== null);
  for (const token of tokens) {
    for (const sign of token.closes ?? []) {
      const ended = path.pop();
      if (ended === null) {
        plain += sign;
        continue;
      }
      flush();
      numLinks -= ended.tagName === "A" ? 1 : 0;
      inner = innermost();
    }
    plain += token.text ?? "";
    if (token.node) {
      flush();
      inner.append(token.node);
    }
    for (const { tag, target, mark } of token.opens ?? []) {
      if (path.length > MAX_DEPTH) {
        path.push(null);
        plain += mark;
        continue;
      }
      flush();
      const element = tag ? el(tag) : link(target, [], numLinks > 0);
      numLinks += element.tagName === "A" ? 1 : 0;
      inner.append(element);
      path.push(element);
      inner = element;
    }
  }
  flush();
  return root;
}

/** A link out of the page; only its text, where the address is of no safe kind or in a link. */
function link(target, children, isWithin = false) {
  let url = null;
  if (SAFE_URL.test(target) && !isWithin) {
    try {
      url = new URL(target);
    } catch {
      // no address at all
    }
  }
  if (url === null) return el("span", { className: "no-link", title: target }, children);
  return el("a", { href: url.href, target: "_blank", rel: "noopener noreferrer nofollow" }, children);
}
