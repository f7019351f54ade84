// Elements without markup: everything a model or a server says becomes text, never HTML.

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element. Properties named `on…` are listeners, those with a dash are attributes. Children may
 * be lists: what a message has many of is not passed as so many arguments.
 */
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

/** An icon of the page's sprite. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#i-${name}`);
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

/** A button with an icon and its name. */
export function iconButton(name, label, onclick, properties = {}) {
  return el("button", { type: "button", className: "ghost", title: label, "aria-label": label,
    onclick, ...properties }, icon(name));
}

/** Copies text; says so on the button for a moment. */
export async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // without a secure context there is no clipboard: the old way
    const area = el("textarea", { value: text, className: "off-screen" });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.classList.add("done");
  setTimeout(() => button.classList.remove("done"), 1200);
}

/** Text shortened to a length, on one line. */
export function shortened(text, length) {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > length ? `${line.slice(0, length - 1)}…` : line;
}
