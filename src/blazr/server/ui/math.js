// LaTeX as MathML elements. The library (temml.js, MIT: temml.LICENSE.txt) comes when the first
// formula does, and only its tree is used: what becomes an element or an attribute is decided here.

import { el } from "./dom.js";

const MATHML = "http://www.w3.org/1998/Math/MathML";
const MAX_LENGTH = 10_000; // a longer formula stays text
const MAX_NODES = 20_000;
const MAX_SIZE = [30, 300]; // of lengths in a formula, em and pt, so that nothing leaves the message
const ELEMENTS = new Set(
  ("math menclose merror mfrac mi mmultiscripts mn mo mover mpadded mphantom mprescripts mroot mrow " +
    "ms mspace msqrt mstyle msub msubsup msup mtable mtd mtext mtr munder munderover none").split(" "));
// no id, no href, no src: a formula neither names parts of the page nor leads anywhere
const ATTRIBUTES = new Set(
  ("accent accentunder columnalign columnlines columnspacing columnspan depth display displaystyle fence " +
    "form height largeop linebreak linethickness lspace mathbackground mathcolor mathsize mathvariant " +
    "maxsize minsize movablelimits notation rowlines rowspacing rspace scriptlevel separator stretchy " +
    "symmetric voffset width").split(" "));

let temml = null;
let loading = null;

/** Load the library; whatever is shown after that is shown at once. */
export function loadMath() {
  loading ??= import("./temml.js").then((loaded) => (temml = loaded.default));
  return loading;
}

/** A formula as an element; its source, where it is wrong or until the library is there. */
export function formula(latex, source, isDisplay) {
  const root = el("span", { className: isDisplay ? "math display" : "math" }, source);
  if (isDisplay) root.tabIndex = 0; // long formulas scroll, so the keyboard must reach them
  if (latex.length > MAX_LENGTH) return root;
  const show = () => {
    const math = built(latex, isDisplay);
    if (math !== null) root.replaceChildren(math);
  };
  if (temml === null) loadMath().then(show, () => {});
  else show();
  return root;
}

function built(latex, isDisplay) {
  try {
    const tree = temml.__renderToMathMLTree(latex,
      { displayMode: isDisplay, throwOnError: true, trust: false, maxSize: MAX_SIZE });
    return nodeOf(tree, { nodes: MAX_NODES });
  } catch {
    return null; // no formula, or nested deeper than the stack
  }
}

function nodeOf(part, budget) {
  budget.nodes -= 1;
  if (budget.nodes < 0) throw new RangeError("The formula has too many parts.");
  if (part.text !== undefined) return document.createTextNode(part.text);
  if (part.type === undefined) return grouped(part, budget);
  if (!ELEMENTS.has(part.type)) throw new TypeError(`${part.type} is not an element of a formula.`);
  const node = document.createElementNS(MATHML, part.type);
  for (const [name, value] of Object.entries(part.attributes)) {
    if (name === "style") node.style.cssText = value;
    else if (ATTRIBUTES.has(name)) node.setAttribute(name, value);
  }
  const classes = part.classes.filter(Boolean).join(" ");
  if (classes) node.setAttribute("class", classes);
  Object.assign(node.style, part.style);
  for (const child of part.children) node.append(nodeOf(child, budget));
  return node;
}

/** What the library groups in fragments and spans, as a row or several. */
function grouped(part, budget) {
  const node = part.attributes === undefined ? document.createDocumentFragment()
    : document.createElementNS(MATHML, "mrow");
  if (part.classes?.length) node.setAttribute("class", part.classes.filter(Boolean).join(" "));
  for (const child of part.children ?? []) node.append(nodeOf(child, budget));
  return node;
}
