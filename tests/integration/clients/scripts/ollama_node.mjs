// Ollama's client for Node.

import assert from "node:assert/strict";
import {
  MAX_TOKENS, MESSAGES, MODEL, QUESTION, TEXTS, WEATHER_SCHEMA,
  areVectors, collect, isStreamOf, isText, isUsage, isWeather, run, use,
} from "./checks.mjs";

const { Ollama } = use("ollama");
const options = { temperature: 0, num_predict: MAX_TOKENS };
const ASKED = { model: MODEL, messages: MESSAGES, options };
const client = (url) => new Ollama({ host: url });

await run({
  async chat(url) {
    const reply = await client(url).chat(ASKED);
    isText(reply.message.content);
    isUsage(reply.prompt_eval_count, reply.eval_count);
  },
  async stream(url) {
    const whole = await client(url).chat(ASKED);
    const parts = await collect(await client(url).chat({ ...ASKED, stream: true }));
    isStreamOf(parts.map((part) => part.message.content), whole.message.content);
    assert.ok(parts.at(-1).done);
  },
  async generate(url) {
    const asked = { model: MODEL, prompt: QUESTION, options };
    const whole = await client(url).generate(asked);
    const parts = await collect(await client(url).generate({ ...asked, stream: true }));
    isStreamOf(parts.map((part) => part.response), whole.response);
  },
  async json(url) {
    const reply = await client(url).chat({
      ...ASKED, format: WEATHER_SCHEMA, options: { ...options, num_predict: 100 },
    });
    isWeather(reply.message.content);
  },
  async embeddings(url) {
    areVectors((await client(url).embed({ model: MODEL, input: TEXTS })).embeddings);
  },
  async models(url) {
    const names = (await client(url).list()).models.map((model) => model.model);
    assert.ok(names.some((name) => name.replace(/:latest$/, "") === MODEL), `${names}`);
    assert.ok((await client(url).show({ model: MODEL })).model_info);
  },
});
