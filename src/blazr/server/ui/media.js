// Pictures and sounds: made small enough to send, kept in this browser beside the chats, shown.
//
// A message has `media`, a list of `{ id, kind, name }`. The files are in memory here, and in
// IndexedDB under the chat's id, since they would fill localStorage: at most `MAX_KEPT` bytes, the
// oldest go first. Of one that is gone the name is left.

import { el } from "./dom.js";
import { newId } from "./ids.js";

const MAX_FILE = 67_108_864; // bytes of a file that is opened
const MAX_SIDE = 1536; // pixels of a picture that is sent
const MAX_AS_IS = 524_288; // bytes of a picture that is sent as it is
export const MAX_SECONDS = 120; // of a sound
const RATE = 16_000; // of the sounds that are sent, in Hz
const MAX_KEPT = 134_217_728;
const AS_IS = ["image/png", "image/jpeg", "image/webp"];
const FILES = "files";

const held = new Map(); // id → { blob, url, data }

// Reading

/** A picture to send: as it is where it is small, else drawn again as a JPEG of at most `MAX_SIDE`. */
export async function readPicture(file) {
  checkSize(file);
  const name = file.name || "picture";
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`${name} is no picture that this browser can open.`);
  }
  const scale = Math.min(1, MAX_SIDE / Math.max(bitmap.width, bitmap.height));
  const isAsItIs = scale === 1 && file.size <= MAX_AS_IS && AS_IS.includes(file.type);
  const blob = isAsItIs ? file : await drawn(bitmap, scale);
  bitmap.close();
  return hold("picture", name, blob);
}

function drawn(bitmap, scale) {
  const canvas = el("canvas", { width: Math.max(1, Math.round(bitmap.width * scale)),
    height: Math.max(1, Math.round(bitmap.height * scale)) });
  const context = canvas.getContext("2d");
  context.fillStyle = "white"; // a JPEG has no transparency
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.9));
}

/** A sound to send: whatever this browser can open, as a WAV file of one channel at `RATE`. */
export async function readSound(file) {
  checkSize(file);
  const name = file.name || "recording";
  let sound;
  try {
    const context = new OfflineAudioContext(1, 1, RATE);
    sound = await context.decodeAudioData(await file.arrayBuffer());
  } catch {
    throw new Error(`${name} is no sound that this browser can open.`);
  }
  if (sound.duration > MAX_SECONDS) throw new Error(`${name} is longer than ${MAX_SECONDS / 60} minutes.`);
  return hold("sound", name, wav(sound));
}

function wav(sound) {
  const channels = Array.from({ length: sound.numberOfChannels }, (_, place) => sound.getChannelData(place));
  const file = new DataView(new ArrayBuffer(44 + 2 * sound.length));
  const write = (at, text) => [...text].forEach((letter, place) => file.setUint8(at + place, letter.charCodeAt(0)));
  const [isPcm, numChannels, bytes, bits] = [1, 1, 2, 16];
  write(0, "RIFF");
  file.setUint32(4, 36 + 2 * sound.length, true);
  write(8, "WAVEfmt ");
  file.setUint32(16, 16, true);
  file.setUint16(20, isPcm, true);
  file.setUint16(22, numChannels, true);
  file.setUint32(24, RATE, true);
  file.setUint32(28, RATE * bytes, true);
  file.setUint16(32, bytes, true);
  file.setUint16(34, bits, true);
  write(36, "data");
  file.setUint32(40, 2 * sound.length, true);
  for (let place = 0; place < sound.length; place += 1) {
    const mean = channels.reduce((sum, samples) => sum + samples[place], 0) / channels.length;
    file.setInt16(44 + 2 * place, Math.round(32767 * Math.max(-1, Math.min(1, mean))), true);
  }
  return new Blob([file], { type: "audio/wav" });
}

function checkSize({ name, size }) {
  if (size > MAX_FILE) throw new Error(`${name} is larger than ${MAX_FILE / 1_048_576} MiB.`);
}

/** A picture that the server has made. */
export function madePicture(base64, name) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  return hold("picture", name, new Blob([bytes], { type: "image/png" }));
}

async function hold(kind, name, blob, id = newId()) {
  held.set(id, { blob, url: URL.createObjectURL(blob), data: await dataUrl(blob) });
  return { id, kind, name };
}

function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

// Sending

/** A part of a message for the server, or null where the file is gone. */
export function partOf({ id, kind }) {
  const data = held.get(id)?.data;
  if (data === undefined) return null;
  if (kind === "picture") return { type: "image_url", image_url: { url: data } };
  return { type: "input_audio", input_audio: { data: data.slice(data.indexOf(",") + 1), format: "wav" } };
}

/** The file itself. */
export function blobOf({ id }) {
  return held.get(id)?.blob;
}

// Showing

/** A picture, a sound with its controls, or the name of what is gone; with a button where it can be removed. */
export function mediaView({ id, kind, name }, remove) {
  const url = held.get(id)?.url;
  const what = kind === "picture" ? "picture" : "sound";
  if (url === undefined) {
    return el("li", { className: "chip", title: `This ${what} is not kept any more` }, el("span", {}, name), remove);
  }
  const shown = kind === "picture" ? el("img", { src: url, alt: name, title: name })
    : el("audio", { src: url, controls: true, "aria-label": name });
  return el("li", { className: `media ${what}` }, shown, remove);
}

// Keeping

/** Keep what a chat has, for after a reload. What finds no room lasts until the page is left. */
export async function keepMedia(chatId, media) {
  try {
    const files = (await open()).transaction(FILES, "readwrite").objectStore(FILES);
    for (const item of media) files.put({ blob: blobOf(item), kept: Date.now() }, `${chatId}/${item.id}`);
    await trim(files);
  } catch {
    // the browser forbids to keep files, or has no room
  }
}

/** Read what a chat's messages have and is not in memory; says whether anything was found. */
export async function loadMedia(chat) {
  const missing = chat.messages.flatMap(({ media = [] }) => media).filter(({ id }) => !held.has(id));
  if (!missing.length) return false;
  try {
    const files = (await open()).transaction(FILES).objectStore(FILES);
    const found = await Promise.all(missing.map(({ id }) => ended(files.get(`${chat.id}/${id}`))));
    await Promise.all(missing.map(({ id, kind, name }, place) => found[place] && hold(kind, name, found[place].blob, id)));
    return found.some(Boolean);
  } catch {
    return false;
  }
}

/** Forget the files of a chat, or of all of them. */
export async function forgetMedia(chatId = null) {
  try {
    const files = (await open()).transaction(FILES, "readwrite").objectStore(FILES);
    if (chatId === null) files.clear();
    else files.delete(IDBKeyRange.bound(`${chatId}/`, `${chatId}/\uffff`));
  } catch {
    // nothing is kept
  }
}

async function trim(files) {
  const [keys, all] = await Promise.all([ended(files.getAllKeys()), ended(files.getAll())]);
  const newest = all.map(({ blob, kept }, place) => ({ key: keys[place], size: blob.size, kept }))
    .sort((a, b) => b.kept - a.kept);
  let room = MAX_KEPT;
  for (const { key, size } of newest) {
    room -= size;
    if (room < 0) files.delete(key);
  }
}

let opened = null;

function open() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open("blazr", 1);
    request.onupgradeneeded = () => request.result.createObjectStore(FILES);
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  return opened;
}

function ended(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
