// OpenAI's client for Node.

import assert from "node:assert/strict";
import {
  KEY, MAX_TOKENS, MESSAGES, MODEL, QUESTION, TEXTS, WEATHER_SCHEMA, WEATHER_TOOL,
  areVectors, collect, isStreamOf, isText, isUsage, isWeather, run, use,
} from "./checks.mjs";

const { OpenAI } = use("openai");
const ASKED = { model: MODEL, messages: MESSAGES, temperature: 0, max_tokens: MAX_TOKENS };
const client = (url) => new OpenAI({ baseURL: `${url}/v1`, apiKey: KEY, maxRetries: 0 });

await run({
  async chat(url) {
    const reply = await client(url).chat.completions.create(ASKED);
    isText(reply.choices[0].message.content);
    isUsage(reply.usage.prompt_tokens, reply.usage.completion_tokens);
  },
  async stream(url) {
    const whole = await client(url).chat.completions.create(ASKED);
    const parts = await collect(
      await client(url).chat.completions.create({
        ...ASKED, stream: true, stream_options: { include_usage: true },
      }),
    );
    const pieces = parts.flatMap((part) => part.choices.map((choice) => choice.delta.content));
    isStreamOf(pieces, whole.choices[0].message.content);
    isUsage(parts.at(-1).usage.prompt_tokens, parts.at(-1).usage.completion_tokens);
  },
  async tools(url) {
    const asked = { ...ASKED, max_tokens: 100, tools: [WEATHER_TOOL], tool_choice: "required" };
    const whole = await client(url).chat.completions.create(asked);
    const [call] = whole.choices[0].message.tool_calls;
    assert.equal(call.function.name, "weather");
    isWeather(call.function.arguments);
    const streamed = await client(url).chat.completions.stream(asked).finalChatCompletion();
    const [same] = streamed.choices[0].message.tool_calls;
    assert.equal(same.function.arguments, call.function.arguments);
  },
  async json(url) {
    const reply = await client(url).chat.completions.create({
      ...ASKED,
      max_tokens: 100,
      response_format: {
        type: "json_schema",
        json_schema: { name: "weather", schema: WEATHER_SCHEMA, strict: true },
      },
    });
    isWeather(reply.choices[0].message.content);
  },
  async responses(url) {
    const asked = { model: MODEL, input: QUESTION, temperature: 0, max_output_tokens: MAX_TOKENS };
    const whole = await client(url).responses.create(asked);
    isText(whole.output_text);
    const events = await collect(await client(url).responses.create({ ...asked, stream: true }));
    const deltas = events.filter((event) => event.type === "response.output_text.delta");
    isStreamOf(deltas.map((event) => event.delta), whole.output_text);
  },
  async embeddings(url) {
    const reply = await client(url).embeddings.create({ model: MODEL, input: TEXTS });
    areVectors(reply.data.map((row) => row.embedding));
  },
  async models(url) {
    const ids = (await collect(client(url).models.list())).map((model) => model.id);
    assert.ok(ids.includes(MODEL));
  },
});
