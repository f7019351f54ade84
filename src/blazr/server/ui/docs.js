// The viewer of the API: what the document says, and a form to try each endpoint.

import { key, request } from "./api.js";
import { el } from "./dom.js";
import { highlight } from "./highlight.js";

const at = (id) => document.getElementById(id);
const refName = (ref) => ref.split("/").pop();

function show(document_) {
  const { paths, components, info, tags } = document_;
  at("version").textContent = info.version;
  const groups = new Map(tags.map(({ name }) => [name, []]));
  for (const [path, operations] of Object.entries(paths)) {
    for (const [method, operation] of Object.entries(operations)) {
      groups.get(operation.tags[0]).push(operationView(method, path, operation, components.schemas));
    }
  }
  const sections = [...groups].map(([tag, views]) => el("section", {}, el("h2", {}, tag), ...views));
  const schemas = Object.entries(components.schemas).map(([name, schema]) => schemaView(name, schema));
  at("main").replaceChildren(...sections,
    el("section", {}, el("h2", {}, "Schemas"), ...schemas));
  followHash();
}

function operationView(method, path, operation, schemas) {
  const head = el("summary", {}, el("span", { className: `method ${method}` }, method.toUpperCase()),
    el("code", {}, path), el("span", {}, operation.summary));
  const view = el("details", { className: "operation" }, head);
  // what is never opened costs nothing
  view.addEventListener("toggle", () => {
    view.append(el("div", { className: "inside" }, ...insideOf(method, path, operation, schemas)));
  }, { once: true });
  view.dataset.text = `${method} ${path} ${operation.summary}`.toLowerCase();
  return view;
}

function insideOf(method, path, operation, schemas) {
  const { parameters = [], requestBody, responses } = operation;
  const [[media, body] = []] = Object.entries(requestBody?.content ?? {});
  const parts = [];
  if (parameters.length) {
    parts.push(el("h3", {}, "Parameters"), el("table", {}, ...parameters.map((each) =>
      row(each.name, typeOf(each.schema), each.required, each.description))));
  }
  if (body) parts.push(el("h3", {}, "Body ", el("span", { className: "media" }, media)), ...fields(body.schema, schemas));
  parts.push(el("h3", {}, "Answers"), el("table", {}, ...Object.entries(responses).flatMap(answerRows)));
  const bodyInput = body && (media === "application/json" ? jsonInput(body) : formInput(body, schemas));
  parts.push(el("h3", {}, "Try it"), tryForm(method, path, parameters, bodyInput));
  return parts;
}

function answerRows([status, { description, content = {} }]) {
  const rows = Object.entries(content).map(([media, { schema, itemSchema }]) => {
    const type = itemSchema ? ["stream of ", ...typeOf(eventOf(itemSchema))] : typeOf(schema);
    return row(status, type, false, el("span", { className: "media" }, media, " ", description ?? ""));
  });
  return rows.length ? rows : [row(status, [], false, description)];
}

/** What a line of a stream holds, or the data of a server-sent event. */
function eventOf(itemSchema) {
  const data = itemSchema.properties?.data;
  if (!data) return itemSchema;
  return [data, ...(data.anyOf ?? [])].find((each) => each.contentSchema).contentSchema;
}

function schemaView(name, schema) {
  const title = el("summary", {}, el("code", {}, name), el("span", {}, schema.description ?? ""));
  const view = el("details", { className: "schema", id: `schema-${name}` }, title,
    el("div", { className: "inside" }, ...fields(schema, {})));
  view.dataset.text = name.toLowerCase();
  return view;
}

/** A schema's fields as a table; where it has none, its type. */
function fields(schema, schemas) {
  const whole = resolved(schema, schemas);
  if (!whole.properties) return [el("p", {}, ...typeOf(whole))];
  const required = new Set(whole.required ?? []);
  const rows = Object.entries(whole.properties).map(([name, each]) =>
    row(name, typeOf(each), required.has(name), each.description));
  return [el("table", {}, ...rows)];
}

function resolved(schema, schemas) {
  return schema.$ref ? schemas[refName(schema.$ref)] ?? schema : schema;
}

function row(name, type, isRequired, about) {
  return el("tr", {}, el("td", { className: isRequired ? "required" : "" }, el("code", {}, name)),
    el("td", { className: "type" }, ...type), el("td", {}, about ?? ""));
}

/** A type in words, with links to schemas. */
function typeOf(schema) {
  if (schema.$ref) {
    const name = refName(schema.$ref);
    return [el("a", { href: `#schema-${name}` }, name)];
  }
  if (schema.format === "binary") return ["file"];
  if (schema.enum) return [schema.enum.map((value) => JSON.stringify(value)).join(" | ")];
  if (schema.const !== undefined) return [JSON.stringify(schema.const)];
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices) return choices.flatMap((each, place) => [place ? " | " : "", ...typeOf(each)]);
  if (schema.type === "array") return ["list of ", ...typeOf(schema.items ?? {})];
  if (schema.type === "object" && typeof schema.additionalProperties === "object") {
    return ["map of ", ...typeOf(schema.additionalProperties)];
  }
  const type = [schema.type ?? "any"].flat().join(" | ");
  return [type + boundsOf(schema)];
}

function boundsOf({ minimum, maximum, exclusiveMinimum }) {
  const isTold = (bound) => bound !== undefined && Math.abs(bound) < 2 ** 31 - 1; // the rest is no bound
  const low = minimum ?? exclusiveMinimum;
  if (isTold(low) && isTold(maximum)) return ` ${low} to ${maximum}`;
  return isTold(low) ? ` from ${low}` : "";
}

// Trying

function tryForm(method, path, parameters, body) {
  const inputs = parameters.map(({ name, in: place }) => [name, place, el("input",
    { value: place === "path" && name === "model" ? "default" : "", required: place === "path" })]);
  const keyInput = el("input", { type: "password", value: key.get(), autocomplete: "off" });
  const answer = el("pre", { className: "answer", tabIndex: 0, hidden: true });
  const send = async (event) => {
    event.preventDefault();
    if (keyInput.value !== key.get()) key.set(keyInput.value, false);
    const query = new URLSearchParams();
    let filled = path.slice(1);
    for (const [name, place, { value }] of inputs) {
      if (place === "path") filled = filled.replace(`{${name}}`, encodeURIComponent(value));
      else if (value) query.append(name, value);
    }
    const whole = query.size ? `${filled}?${query}` : filled;
    await tryOut(answer, whole, { method: method.toUpperCase(), body: body?.read() });
  };
  return el("form", { onsubmit: send }, inputs.map(([name, , input]) => el("label", {}, name, input)),
    body?.views ?? [], el("label", {}, "API key, where the server asks for one", keyInput),
    el("button", { type: "submit", className: "primary" }, "Send"), answer);
}

/** A body to write as JSON: what shows it, and what reads it. */
function jsonInput({ example }) {
  const area = el("textarea", { rows: 8, spellcheck: false, "aria-label": "Body",
    value: JSON.stringify(example, null, 2) });
  return { views: [area], read: () => area.value };
}

/** A body of a form's fields, files among them; those left empty are not sent. */
function formInput({ schema }, schemas) {
  const { properties, required = [] } = resolved(schema, schemas);
  const isFile = (each) => each.format === "binary" || (each.anyOf ?? []).some(isFile);
  const inputs = Object.entries(properties).map(([name, each]) => [name,
    el("input", { type: isFile(each) ? "file" : "text", required: required.includes(name) })]);
  const read = () => {
    const form = new FormData();
    for (const [name, { files, value }] of inputs) {
      if (value) form.append(name, files ? files[0] : value);
    }
    return form;
  };
  return { views: inputs.map(([name, input]) => el("label", {}, name, input)), read };
}

async function tryOut(answer, path, options) {
  answer.hidden = false;
  answer.replaceChildren("…");
  try {
    const response = await request(path, options);
    const type = response.headers.get("content-type") ?? "";
    if (type.startsWith("application/json")) {
      answer.replaceChildren(...highlight(JSON.stringify(await response.json(), null, 2), "json"));
      return;
    }
    if (!/^text\/|json/.test(type)) { // a sound or a picture
      answer.replaceChildren(`${type}, ${(await response.blob()).size} bytes`);
      return;
    }
    answer.replaceChildren();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      answer.append(part.value);
    }
  } catch (error) {
    answer.replaceChildren(`${error.status || ""} ${error.message}`.trim());
  }
}

// The page

function filter() {
  const words = at("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const view of document.querySelectorAll("details[data-text]")) {
    view.hidden = !words.every((word) => view.dataset.text.includes(word));
  }
  for (const section of document.querySelectorAll("section")) {
    section.hidden = !section.querySelector("details:not([hidden])");
  }
}

function followHash() {
  const target = location.hash.length > 1 ? at(decodeURIComponent(location.hash.slice(1))) : null;
  if (!target) return;
  target.open = true;
  target.scrollIntoView({ block: "center" });
}

async function load() {
  try {
    show(await (await request("openapi.json")).json());
  } catch (error) {
    if (error.status !== 401) {
      at("main").replaceChildren(el("p", { className: "notice error" }, error.message));
      return;
    }
    const input = el("input", { type: "password", autocomplete: "current-password" });
    const form = el("form", { onsubmit: (event) => {
      event.preventDefault();
      key.set(input.value, false);
      load();
    } }, el("label", {}, "This server asks for an API key", input),
    el("button", { type: "submit", className: "primary" }, "Use it"));
    at("main").replaceChildren(form);
    input.focus();
  }
}

at("filter").addEventListener("input", filter);
window.addEventListener("hashchange", followHash);
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.matches("input, textarea")) return;
  event.preventDefault();
  at("filter").focus();
});
load();
