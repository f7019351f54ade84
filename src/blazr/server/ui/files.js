// What goes with a message: text files, pictures and sounds.

import { el, iconButton } from "./dom.js";
import { mediaView, readPicture, readSound } from "./media.js";

const MAX_BYTES = 262_144; // of the files of one message together

/** What a file is sent as: a picture, a sound, or text. */
export function kindOf({ type }) {
  if (type.startsWith("image/") && type !== "image/svg+xml") return "picture";
  return type.startsWith("audio/") ? "sound" : "text";
}

/** What is to go with the next message, shown above it. */
export class Attachments {
  constructor(root, onProblem) {
    this.root = root;
    this.onProblem = onProblem;
    this.files = [];
    this.media = [];
  }

  get isEmpty() {
    return this.files.length + this.media.length === 0;
  }

  /** Add what was chosen, dropped or pasted; says why where a file is refused. */
  async add(file) {
    const kind = kindOf(file);
    if (kind === "text") {
      const text = await this.read(file);
      if (text !== null) this.files.push({ name: file.name || "text", text });
    } else {
      try {
        this.media.push(await (kind === "picture" ? readPicture(file) : readSound(file)));
      } catch (error) {
        this.onProblem(error.message);
      }
    }
    this.show();
  }

  async read(file) {
    const size = this.files.reduce((sum, { text }) => sum + text.length, file.size);
    if (size > MAX_BYTES) {
      this.onProblem(`${file.name} is too long: files may have ${MAX_BYTES / 1024} KiB together.`);
      return null;
    }
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      if (!text.includes("\0")) return text;
    } catch {
      // not in UTF-8, or it could not be read
    }
    this.onProblem(`${file.name} is no text file in UTF-8.`);
    return null;
  }

  /** Hand them over; none are left. */
  take() {
    const { files, media } = this;
    this.files = [];
    this.media = [];
    this.show();
    return { ...(files.length && { files }), ...(media.length && { media }) };
  }

  show() {
    const remove = (list, item) => () => {
      this[list] = this[list].filter((other) => other !== item);
      this.show();
    };
    this.root.replaceChildren(
      ...this.files.map((file) => chip(file, remove("files", file))),
      ...this.media.map((item) =>
        mediaView(item, iconButton("close", `Remove ${item.name}`, remove("media", item)))));
    this.root.hidden = this.isEmpty;
  }
}

/** A file by its name; with a button where it can be removed. */
export function chip({ name, text }, onRemove) {
  const remove = onRemove && iconButton("close", `Remove ${name}`, onRemove);
  return el("li", { className: "chip", title: `${text.length} characters` }, el("span", {}, name), remove);
}

/** A message as the model reads it: its files, each in a block of code, and its text. */
export function withFiles({ content, files = [] }) {
  const blocks = files.map(({ name, text }) => `${name}\n${fenced(text)}`);
  return [...blocks, content].filter(Boolean).join("\n\n");
}

/** A block of code around a text, whatever the text holds. */
export function fenced(text, language = "") {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).slice(0, 10_000).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${text.replace(/\n$/, "")}\n${fence}`;
}
