// Colours for code: comments, strings, numbers and words that most languages share.

const WORDS = new Set(
  ("and as assert async await bool break case catch class const continue def default defer del do " +
    "elif else enum except export extends extern false False final finally float fn for from func " +
    "function global go if impl implements import in int interface is lambda let match mod module " +
    "mut new nil None nonlocal not null or package pass private protected pub public raise return " +
    "select self static str string struct super switch this throw trait true True try type typedef " +
    "undefined unsafe use using var void where while with yield").split(" "),
);
const SQL = new Set(
  ("select from where insert into update delete create table join left right inner outer on group " +
    "by order having limit as and or not null values set distinct union").split(" "),
);
const STRING = "\"(?:\\\\.|[^\"\\\\\\n])*\"?|'(?:\\\\.|[^'\\\\\\n])*'?|`(?:\\\\.|[^`\\\\])*`?";
const NUMBER = "\\b\\d[\\w.]*";
const WORD = "[A-Za-z_$][\\w$]*";
const COMMENTS = {
  hash: "#[^\\n]*",
  slash: "\\/\\/[^\\n]*|\\/\\*[\\s\\S]*?(?:\\*\\/|$)",
  dash: "--[^\\n]*",
};
const HASH = new Set(
  "python py bash sh shell zsh ruby rb yaml yml toml r perl make makefile dockerfile".split(" "));
const DASH = new Set("sql lua haskell hs".split(" "));
const PLAIN = new Set(["", "text", "txt", "plain", "console", "output", "markdown", "md"]);

const MAX_LENGTH = 50_000; // longer code stays plain, so that it cannot slow the page

/** Code as spans and texts. */
export function highlight(code, language) {
  const name = language.toLowerCase();
  if (PLAIN.has(name) || code.length > MAX_LENGTH) return [code];
  const comment = HASH.has(name) ? "hash" : DASH.has(name) ? "dash" : "slash";
  const pattern = new RegExp(`(${COMMENTS[comment]})|(${STRING})|(${NUMBER})|(${WORD})`, "g");
  const nodes = [];
  let end = 0;
  for (const found of code.matchAll(pattern)) {
    const kind = kindOf(found, name);
    if (kind === null) continue;
    nodes.push(code.slice(end, found.index), span(kind, found[0]));
    end = found.index + found[0].length;
  }
  nodes.push(code.slice(end));
  return nodes;
}

function kindOf(found, language) {
  if (found[1]) return "comment";
  if (found[2]) return "string";
  if (found[3]) return "number";
  if (language === "sql") return SQL.has(found[4].toLowerCase()) ? "word" : null;
  return WORDS.has(found[4]) ? "word" : null;
}

function span(kind, text) {
  const element = document.createElement("span");
  element.className = `hl-${kind}`;
  element.textContent = text;
  return element;
}
