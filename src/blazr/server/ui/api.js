// The server: requests with the key, errors as exceptions, streams as chunks.

const KEY = "blazr.key";

// Relative to the page, so that a prefix of a proxy stays.
const BASE = new URL("./", document.baseURI);

/** What the server answered instead of what was asked for; status 0 is no answer at all. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The key that requests carry. It is forgotten with the tab unless it is to be kept. */
export const key = {
  get() {
    return inMemory ?? stored(() => sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY)) ?? "";
  },
  set(value, isKept) {
    this.forget();
    inMemory = value;
    stored(() => (isKept ? localStorage : sessionStorage).setItem(KEY, value));
  },
  forget() {
    inMemory = null;
    stored(() => sessionStorage.removeItem(KEY));
    stored(() => localStorage.removeItem(KEY));
  },
};

let inMemory = null;

/** What a storage says; null where the browser forbids to have one. */
function stored(action) {
  try {
    return action();
  } catch {
    return null;
  }
}

/** Send a request; an answer that is no success is thrown. */
export async function request(path, { method = "GET", body, signal } = {}) {
  const headers = {};
  const isForm = body instanceof FormData; // the browser writes its type
  if (body !== undefined && !isForm) headers["Content-Type"] = "application/json";
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  const isAsItIs = isForm || typeof body === "string" || body === undefined;
  const sent = isAsItIs ? body : JSON.stringify(body);
  let response;
  try {
    response = await fetch(new URL(path, BASE), { method, headers, body: sent, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server cannot be reached.");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  let message = `The server answered ${response.status}.`;
  try {
    const { error } = await response.json();
    message = typeof error === "string" ? error : error.message;
  } catch {
    // not in the shape of an error
  }
  return new ApiError(response.status, message);
}

/** The models there are. */
export async function models() {
  return (await (await request("v1/models")).json()).data;
}

/** A streamed chat: its chunks, one after another. */
export async function* chat(body, signal) {
  const response = await request("v1/chat/completions", { method: "POST", body, signal });
  const reuse = response.headers.get("X-Blazr-Prefix-Cache") ?? "";
  const dropped = Number(response.headers.get("X-Blazr-Dropped-Messages") ?? 0);
  yield { reuse: reuse.split("; ")[1] ?? "", dropped };
  for await (const data of eventData(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(200, chunk.error.message);
    yield chunk;
  }
}

/** Pictures made of a text, each a file in base64. */
export async function pictures(body, signal) {
  const response = await request("v1/images/generations", { method: "POST", body, signal });
  return (await response.json()).data.map((each) => each.b64_json);
}

/** A text as a sound file. */
export async function speech(body) {
  return (await request("v1/audio/speech", { method: "POST", body })).blob();
}

/** What is said in a sound file. */
export async function transcript(model, file) {
  const form = new FormData();
  form.append("model", model);
  form.append("file", file, "sound.wav");
  return (await (await request("v1/audio/transcriptions", { method: "POST", body: form })).json()).text;
}

/** The data of server-sent events, whatever way the bytes are cut. */
async function* eventData(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "The connection broke.");
    }
    if (part.done) return;
    const lines = (rest + part.value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ")) yield line.slice(6);
    }
  }
}
