// Vercel's AI SDK, with its providers for OpenAI and for what is compatible with it.

import assert from "node:assert/strict";
import {
  KEY, MAX_TOKENS, MODEL, QUESTION, TEXTS, WEATHER_SCHEMA,
  areVectors, collect, isStreamOf, isText, isUsage, isWeather, run, use,
} from "./checks.mjs";

const { embedMany, generateText, jsonSchema, Output, streamText, tool } = use("ai");
const { createOpenAI } = use("@ai-sdk/openai");
const { createOpenAICompatible } = use("@ai-sdk/openai-compatible");

const compatible = (url) =>
  createOpenAICompatible({
    name: "blazr", baseURL: `${url}/v1`, apiKey: KEY, supportsStructuredOutputs: true,
  });
const models = (url) => [
  compatible(url).chatModel(MODEL),
  createOpenAI({ baseURL: `${url}/v1`, apiKey: KEY }).responses(MODEL),
];
const ask = (model) => ({
  model, prompt: QUESTION, temperature: 0, maxOutputTokens: MAX_TOKENS, maxRetries: 0,
});

await run({
  async chat(url) {
    for (const model of models(url)) {
      const reply = await generateText(ask(model));
      isText(reply.text);
      isUsage(reply.usage.inputTokens, reply.usage.outputTokens);
      const asked = { role: "user", content: QUESTION };
      const messages = [asked, ...reply.response.messages, asked];
      isText((await generateText({ ...ask(model), prompt: undefined, messages })).text);
    }
  },
  async stream(url) {
    for (const model of models(url)) {
      const whole = await generateText(ask(model));
      isStreamOf(await collect(streamText(ask(model)).textStream), whole.text);
    }
  },
  async tools(url) {
    const weather = tool({ description: "weather", inputSchema: jsonSchema(WEATHER_SCHEMA) });
    for (const model of models(url)) {
      const reply = await generateText({
        ...ask(model), maxOutputTokens: 100, tools: { weather }, toolChoice: "required",
      });
      assert.deepEqual(reply.toolCalls.map((call) => call.toolName), ["weather"]);
      isWeather(reply.toolCalls[0].input);
    }
  },
  async json(url) {
    for (const model of models(url)) {
      const reply = await generateText({
        ...ask(model),
        maxOutputTokens: 100,
        output: Output.object({ schema: jsonSchema(WEATHER_SCHEMA) }),
      });
      isWeather(reply.output);
    }
  },
  async embeddings(url) {
    const model = compatible(url).textEmbeddingModel(MODEL);
    areVectors((await embedMany({ model, values: TEXTS })).embeddings);
  },
});
