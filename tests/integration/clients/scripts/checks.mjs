// What the scripts for Node share; the same as in checks.py.
// A script is run as `node SCRIPT URL REPORT`, with its packages in the folder NODE_PACKAGES.

import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

export const MODEL = "nano";
export const KEY = "none";
export const QUESTION = "Tell me a story about a dog.";
export const MESSAGES = [{ role: "user", content: QUESTION }];
export const MAX_TOKENS = 16;
export const TEXTS = ["a dog", "the sun is hot"];
export const WEATHER_SCHEMA = {
  type: "object",
  properties: {
    city: { type: "string", enum: ["Paris", "Rome"] },
    days: { type: "integer", minimum: 1, maximum: 9 },
  },
  required: ["city", "days"],
  additionalProperties: false,
};
export const WEATHER_TOOL = {
  type: "function",
  function: {
    name: "weather",
    description: "The weather of the next days.",
    parameters: WEATHER_SCHEMA,
  },
};

// Import a package from NODE_PACKAGES: Node itself looks beside the script only.
export function use(name) {
  const require = createRequire(pathToFileURL(`${process.env.NODE_PACKAGES}/index.js`));
  return require(name);
}

// Run the checks against the server, and write what became of each.
export async function run(checks) {
  const [url, report] = process.argv.slice(2);
  const outcomes = {};
  for (const [name, check] of Object.entries(checks)) {
    try {
      await check(url);
      outcomes[name] = null;
    } catch (error) {
      outcomes[name] = `${error.stack}`;
    }
    writeFileSync(report, JSON.stringify(outcomes));
  }
}

export async function collect(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return parts;
}

export function isText(text) {
  assert.match(text, /\p{L}/u);
}

export function isStreamOf(pieces, whole) {
  const texts = pieces.filter(Boolean);
  assert.ok(texts.length > 1, `${texts.length} pieces`);
  assert.equal(texts.join(""), whole);
}

export function isUsage(prompt, reply) {
  assert.ok(prompt > 1, `${prompt} tokens of a prompt`);
  assert.ok(reply >= 1 && reply <= MAX_TOKENS, `${reply} tokens of a reply`);
}

export function isWeather(value) {
  const { city, days, ...rest } = typeof value === "string" ? JSON.parse(value) : value;
  assert.ok(["Paris", "Rome"].includes(city), city);
  assert.ok(Number.isInteger(days) && days >= 1 && days <= 9, `${days}`);
  assert.deepEqual(rest, {});
}

export function areVectors(vectors) {
  assert.equal(vectors.length, TEXTS.length);
  assert.ok(vectors[0].length > 1);
  assert.equal(vectors[0].length, vectors[1].length);
  assert.notDeepEqual(vectors[0], vectors[1]);
}
