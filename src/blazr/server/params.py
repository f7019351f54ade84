"""What the dialects' translations to a request have in common: fields, messages, refusals."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from secrets import randbits
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Protocol,
    TypedDict,
    cast,
    get_args,
    get_type_hints,
)

import msgspec

from blazr.core.errors import RequestError, too_many
from blazr.engine.sampling_params import (
    MAX_BAD_WORDS,
    MAX_STOP_CHARACTERS,
    MAX_STOP_STRINGS,
    SAMPLERS,
    SamplingParams,
)
from blazr.llm.generation import Prompt, Truncation
from blazr.server.media import NamesMedia
from blazr.server.schema import Schema, any_given, of_type, schema_hint
from blazr.text.images import (
    Image,
    Sound,
    decode_base64,
    join_parts,
    read_data_url,
    read_video_url,
)
from blazr.text.messages import Message, function_call
from blazr.text.tool_calls.json_scan import NAME

MAX_REPLIES = 256
MAX_PROMPTS = 128
MAX_TOOLS = 128
MAX_TOOL_NAME = 128  # characters; OpenAI takes 64, Anthropic 128
MAX_VARIABLES = 256  # for a chat template
MAX_VARIABLE_NAME = 256
MAX_MESSAGES = 4096
MAX_BIAS = 100
LAST_N = 64  # tokens that penalties look back: llama.cpp's and Ollama's default
TEXT = {"type": "text"}  # the response format that holds a reply to nothing


_Stop = Annotated[str, schema_hint(minLength=1, maxLength=MAX_STOP_CHARACTERS)]
Stops = Annotated[list[_Stop], schema_hint(maxItems=MAX_STOP_STRINGS)]
Stop = _Stop | Stops
Texts = Annotated[list[_Stop], schema_hint(maxItems=MAX_BAD_WORDS)]
MostTokens = Annotated[int, schema_hint(anyOf=[{"const": -1}, {"minimum": 1}])]  # of a prompt
EmptyList = Annotated[list[str], schema_hint(maxItems=0)]  # where others have images
_JSON_SCHEMA = {"anyOf": [{"type": ["object", "string"]}, {"const": True}]}
_WITH_SCHEMA = {"properties": {"schema": _JSON_SCHEMA}, "required": ["schema"]}
_OBJECT = {"type": {"const": "json_object"}, "schema": _JSON_SCHEMA, "value": _JSON_SCHEMA}
_NESTED = {"type": {"const": "json_schema"}, "json_schema": {"type": "object", **_WITH_SCHEMA}}
_FLAT = {"type": {"const": "json_schema"}, "schema": _JSON_SCHEMA, "json_schema": False}
_TGI_JSON = {"type": {"const": "json"}, "value": _JSON_SCHEMA}
_TGI_SCHEMA = {"type": {"const": "json_schema"}, "value": {"type": "object", **_WITH_SCHEMA}}
_TGI_REGEX = {"type": {"const": "regex"}, "value": {"type": "string"}}
ResponseFormat = Annotated[
    dict[str, Any],
    schema_hint(
        anyOf=[
            of_type("text"),
            {"properties": _OBJECT, "required": ["type"]},
            {"properties": _NESTED, "required": ["type", "json_schema"]},
            {"properties": _FLAT, "required": ["type", "schema"]},
            {"properties": _TGI_JSON, "required": ["type", "value"]},
            {"properties": _TGI_SCHEMA, "required": ["type", "value"]},
            {"properties": _TGI_REGEX, "required": ["type", "value"]},
        ]
    ),
]
TokenId = Annotated[int, schema_hint(minimum=0)]
TokenIds = Annotated[list[TokenId], schema_hint(minItems=1)]
# One prompt or many, as text or token ids; a list of integers is one prompt.
Prompts = str | Annotated[list[str | TokenId | TokenIds], schema_hint(minItems=1)]
MediaSeed = Annotated[int, msgspec.Meta(ge=0, le=2**62)]  # of an image or a sound
Bias = Annotated[float, schema_hint(minimum=-MAX_BIAS, maximum=MAX_BIAS)]
_Scalar = str | int | float | bool | None
_TAKEN = ("messages", "tools", "add_generation_prompt")  # what a chat template is given anyway
_VariableName = Annotated[
    str, msgspec.Meta(max_length=MAX_VARIABLE_NAME), schema_hint(**{"not": {"enum": _TAKEN}})
]
TemplateVariables = Annotated[dict[_VariableName, _Scalar], msgspec.Meta(max_length=MAX_VARIABLES)]
_NAMED: Schema = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
}
_NESTED_TOOL = {"properties": {"custom": _NAMED}, "required": ["custom"]}
_FLAT_TOOL = {"properties": {"name": {"type": "string"}, "custom": False}, "required": ["name"]}
_CUSTOM = {"anyOf": [_NESTED_TOOL, _FLAT_TOOL]}
_FUNCTION = {"type": {"enum": ["function", None]}}
CUSTOM_TOOL: Schema = of_type("custom", **_CUSTOM)
# A tool, and a call of one, as OpenAI describes them.
Tool = Annotated[dict[str, Any], schema_hint(anyOf=[{"properties": _FUNCTION}, CUSTOM_TOOL])]
ToolCall = Annotated[
    dict[str, Any],
    schema_hint(
        anyOf=[
            {"properties": {"function": _NAMED}, "required": ["function"]},
            CUSTOM_TOOL,
        ]
    ),
]

# What others call kinds of grammar that have other names here.
_GRAMMARS = {"json": "json_schema", "ebnf": "grammar"}


_CHATS = "ask /v1/completions or /v1/chat/completions, which have it"
_SAMPLE = "sample with temperature, top_k, top_p and min_p"
# Fields by which other servers' answers change, and that are nothing here unless a body has them:
# what to do instead, the fields, and what asks for nothing besides what is false; where that is
# True, what is false asks for something.
_REFUSALS: Sequence[tuple[str, str, object]] = (
    (_CHATS, "json_schema grammar regex ebnf structured_outputs seed stop ignore_eos echo", 0),
    (_CHATS, "guided_json guided_regex guided_choice guided_grammar prompt_logprobs logprobs", 0),
    (_CHATS, "logit_bias top_k min_p min_tokens presence_penalty frequency_penalty", 0),
    (_CHATS, "response_format", TEXT),
    (_CHATS, "n n_cmpl best_of repetition_penalty repeat_penalty", 1),
    (_CHATS, "stop_token_ids include_stop_str_in_output n_probs top_logprobs", 0),
    (_CHATS, "skip_special_tokens", True),
    (_SAMPLE, "mirostat mirostat_mode dry_multiplier xtc_probability dynatemp_range top_a", 0),
    (_SAMPLE, "smoothing_factor no_repeat_ngram_size epsilon_cutoff eta_cutoff", 0),
    (_SAMPLE, "typical_p typ_p tfs_z", 1),
    (_SAMPLE, "top_n_sigma", -1),
    ("send the endpoint's own field", "max_tokens max_completion_tokens max_output_tokens", -1),
    ("send the endpoint's own field", "max_new_tokens n_predict num_predict", -1),
    ("send logit_bias or a grammar", "allowed_token_ids bad_words grammar_lazy n_indent", 0),
    ("send n and best_of", "use_beam_search", 0),
    ("send a prompt that fits", "truncate_prompt_tokens", 0),
    (_CHATS, "repeat_last_n samplers", 0),
    (_SAMPLE, "min_keep", 0),
    (_SAMPLE, "adaptive_target", -1),
    ("send the prompt itself", "prompt_template", 0),
    ("send the prompt to /tokenize", "return_token_ids return_tokens_as_token_ids", 0),
    ("send top_logprobs or n_probs", "logprob_token_ids post_sampling_probs top_n_tokens", 0),
    ("ask /v1/completions for logprobs", "return_logprob", 0),
    ("ask /v1/embeddings for their mean", "return_hidden_states", 0),
    ("send stop, and include_stop_str_in_output", "stop_regex no_stop_trim", 0),
    ("send max_tokens", "repetition_detection t_max_predict_ms", 0),
    ("send stop", "stop_sequences", 0),
    ("send min_tokens", "min_new_tokens", 0),
    ("send seed", "sampling_seed", 0),
    ("leave it out: the answer comes whole", "stream", 0),
    ("leave the field reasoning unread", "include_reasoning separate_reasoning", 1),
    ("leave that to the chat template", "add_special_tokens", 0),
    ("put them into messages", "documents context", 0),
    ("send previous_response_id", "conversation", 0),
    ("send tools, and call them yourself", "functions mcp_servers web_search_options", 0),
    ("send tool_choice", "function_call", "none"),
    ("use the model's own", "template", 0),
    ("send text", "prompt_embeds images", 0),
    ("ask for text", "audio modalities", ["text"]),
    ("send the adapter's name as model", "adapter adapters lora lora_path", 0),
    ('send "truncation": "auto" to /v1/responses', "context_management", 0),
)
_INSIDE = ("options", "sampling_params", "parameters")  # objects in which a body has more fields
_REFUSED = {
    name: (instead, nothing) for instead, names, nothing in _REFUSALS for name in names.split()
}
_foreign = msgspec.json.Decoder(
    msgspec.defstruct("_Foreign", [(name, Any, None) for name in (*_INSIDE, *_REFUSED)])
)


def refuse_foreign(raw: bytes, body: msgspec.Struct) -> None:
    """Refuse fields that other servers have and whose effect would be missed in the answer.

    Args:
        raw: The body as JSON.
        body: What we understand of it.

    Raises:
        RequestError: There is one, and it asks for something.
    """
    given: dict[str, Any] = msgspec.structs.asdict(_foreign.decode(raw))
    own = {*body.__struct_fields__}
    for name in _INSIDE:
        raw_inner = given.pop(name)
        inner = getattr(body, name, None)
        if inner is not None:
            own |= {*inner.__struct_fields__}
            given |= {name: value for name, value in raw_inner.items() if name in _REFUSED}
    for name, value in given.items():
        instead, nothing = _REFUSED[name]
        asks = value is not None if nothing is True else value
        if name not in own and asks and value != nothing:
            hint = _advice(name, body) or instead
            raise RequestError(f"this endpoint has no {name}.", param=name, hint=hint)


def _advice(name: str, body: msgspec.Struct) -> str:
    """Where a body has what a field of another dialect asks for; empty where it has it nowhere."""
    names = [name]
    for inside, others in ALIASES.items():
        if name in {inside, *others}:
            names += [inside, *others]
    hints = get_type_hints(type(body))
    kinds = {"": type(body)} | {f"{x}.": next(iter(get_args(hints.get(x))), None) for x in _INSIDE}
    for prefix, kind in kinds.items():
        known = getattr(kind, "__struct_fields__", ())
        found = next((each for each in names if each in known), None)
        if found is not None:
            return f"send {prefix}{found}"
    return ""


_KEEPING = "truncate_prompt_tokens"  # by which a text that is too long is cut; vLLM's name
# What dialects call fields that have one name inside.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "max_tokens": (
        "max_completion_tokens",
        "max_output_tokens",
        "max_new_tokens",
        "n_predict",
        "num_predict",
    ),
    "min_tokens": ("min_new_tokens",),
    "repetition_penalty": ("repeat_penalty",),
    "typical_p": ("typ_p",),
    "seed": ("sampling_seed",),
    "stop": ("stop_sequences",),
    "logprobs": ("top_logprobs", "n_probs", "top_n_tokens"),
    "input": ("content", "inputs", "prompt", "texts"),
    "prompt": ("input", "inputs", "messages"),
    "messages": ("input", "prompt"),
    "suffix": ("input_suffix",),
    "dimensions": ("output_dimension",),
}


def name_as_sent(error: RequestError, body: object) -> None:
    """Let an error name the fields that the client knows, where these have other names inside.

    Args:
        error: What was wrong; changed in place.
        body: The request's.
    """
    name = error.param
    if name is None:
        return
    inner = [getattr(body, each, None) for each in _INSIDE]
    if _KEEPING in (error.hint or ""):
        own = getattr(body, "__struct_fields__", ())
        if "truncate" in own:
            error.hint = "truncate can keep what fits"
        elif _KEEPING not in own:
            error.hint = "send a shorter text"
    if name == "grammar":
        error.param = next(
            (found for each in (*inner, body) for found in _grammar_fields(each)), name
        )
        return
    sent = {
        field: value
        for field in (name, *ALIASES.get(name, ()))
        for each in (body, *inner)
        if (value := getattr(each, field, None)) is not None
    }
    # of several it is the one whose value the error tells of: not every body reads the same first
    meant = (field for field, value in sent.items() if str(value)[:100] == error.found)
    field = next(meant, next(iter(sent), name))
    rename_field(error, field)


def rename_field(error: RequestError, field: str) -> None:
    """Let an error that names a field name another, in its message, too."""
    name = error.param
    if name is None or field == name:
        return
    error.param = field
    if field != "messages":  # "the prompt" of a chat is what the template makes of it
        error.message = re.sub(rf"\b{name}\b", field, error.message)
        error.args = (error.render(),)


def _grammar_fields(body: object) -> Iterator[str]:
    """The fields by which a body, or a part of it, says what a reply must follow."""
    for name in (*_GRAMMAR_FIELDS, "structured_outputs"):
        if _asks(getattr(body, name, None)):
            yield name
    if (getattr(body, "response_format", None) or TEXT) != TEXT:
        yield "response_format"
    if getattr(getattr(body, "text", None), "format", None):
        yield "text"
    if getattr(body, "tools", None):  # a custom tool has a grammar
        yield "tools"


# Fields that bodies have under the names of SamplingParams; the others differ in form.
_SAME_NAMES = {each.name for each in fields(SamplingParams)} - {
    *("grammar", "logprobs", "logits_processors", "samplers"),
}
# Where llama.cpp, SGLang and older vLLM have a grammar.
_GRAMMAR_FIELDS = (
    "json_schema",
    "grammar",
    "regex",
    "ebnf",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)


def sampling_params(body: msgspec.Struct, **more: object) -> SamplingParams:
    """Sampling parameters from what a body gave; what it left out or null takes the defaults.

    Args:
        body: The request, or the part of it that says how to sample.
        more: Values that go before those of the body's fields.

    Raises:
        RequestError: A value is out of range, or asks for what there is not.
    """
    values = {name: getattr(body, name, None) for name in _SAME_NAMES}
    if values["repetition_penalty"] is None:
        values["repetition_penalty"] = getattr(body, "repeat_penalty", None)
    if values["typical_p"] is None:
        values["typical_p"] = getattr(body, "typ_p", None)
    values["include_stop"] = getattr(body, "include_stop_str_in_output", None)
    values["grammar"] = one_grammar(body)
    values |= sampler_order(getattr(body, "samplers", None))
    return SamplingParams.of(**(values | more))


_NEUTRAL: Mapping[str, Mapping[str, object]] = {
    "penalties": {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "temperature": {"temperature": 1.0},
    "top_k": {"top_k": 0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
}
# Samplers that come before these whatever the order, and what switches them off; the last one is
# llama.cpp's alone, and does nothing unless a field asks for it, which is refused.
_TYPICAL = {"typical_p": 1.0}
_FIXED: Mapping[str, Mapping[str, object]] = {
    "dry": {"dry_multiplier": 0.0},
    "top_n_sigma": {"top_n_sigma": -1.0},
    "typ_p": _TYPICAL,
    "typical_p": _TYPICAL,
    "xtc": {"xtc_probability": 0.0},
    "adaptive_p": {},
}
_LETTERS = {
    "e": "penalties",
    "k": "top_k",
    "p": "top_p",
    "m": "min_p",
    "t": "temperature",
    "d": "dry",
    "s": "top_n_sigma",
    "y": "typ_p",
    "x": "xtc",
}
_Sampler = Annotated[str, schema_hint(enum=[*SAMPLERS, *_LETTERS, *_FIXED])]
Samplers = list[_Sampler] | Annotated[str, schema_hint(pattern=f"^[{''.join(_LETTERS)}]*$")]


def sampler_order(given: list[str] | str | None) -> dict[str, object]:
    """Sampling parameters for samplers as llama.cpp has them: only those named, in their order.

    Args:
        given: Their names, or their letters in one word; None is the usual order of all.

    Raises:
        RequestError: There is no such sampler, or it comes twice.
    """
    if given is None:
        return {}
    is_word = isinstance(given, str)
    names = [_LETTERS.get(each, each) for each in given] if is_word else given
    named = [name for name in names if name not in _FIXED]
    wrong = [name for name in named if name not in SAMPLERS]
    if wrong or len(set(named)) < len(named):
        raise RequestError(
            "samplers are not understood.",
            param="samplers",
            found=", ".join(wrong or named)[:100],
            expected="some of " + ", ".join(SAMPLERS) + ", each once",
        )
    missing = [name for name in SAMPLERS if name not in named]
    values: dict[str, object] = {"samplers": (*named, *missing)}
    for name in missing:
        values |= _NEUTRAL[name]
    wanted = [_FIXED[name] for name in names if name in _FIXED]
    for off in _FIXED.values():
        if off not in wanted:  # names of one sampler have equal values
            values |= off
    return values


TruncationSide = Literal["left", "right"]


class TruncatingBody(msgspec.Struct, kw_only=True):
    """A request that says what becomes of a prompt that is too long, as vLLM spells it."""

    truncate_prompt_tokens: MostTokens | None = None
    truncation_side: TruncationSide | None = None


class _Truncating(Protocol):
    truncate_prompt_tokens: int | None
    truncation_side: TruncationSide | None


def prompt_truncation(body: _Truncating) -> Truncation | None:
    """What a body says of a prompt that is too long; -1 keeps what fits.

    Raises:
        RequestError: Nothing would be kept.
    """
    return Truncation.of_tokens(body.truncate_prompt_tokens, body.truncation_side)


class SamplerFields(msgspec.Struct, kw_only=True):
    """The samplers that OpenAI's, llama.cpp's, SGLang's and Ollama's APIs call alike."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


class OllamaSamplerFields(SamplerFields, kw_only=True):
    """The samplers that llama.cpp's and Ollama's APIs call alike."""

    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    typical_p: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    seed: int | None = None


class LlamaCppSamplerFields(OllamaSamplerFields, kw_only=True):
    """The samplers as llama.cpp calls them, which OpenAI's endpoints take too."""

    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: Texts | None = None
    samplers: Samplers | None = None
    ignore_eos: bool | None = None


class VllmSamplerFields(LlamaCppSamplerFields, kw_only=True):
    """What vLLM's API has besides, which OpenAI's endpoints and llama.cpp's take."""

    repetition_penalty: float | None = None
    bad_words: Texts | None = None
    allowed_token_ids: list[int] | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    speculate: bool | None = None


def grammar_of(
    form: Mapping[str, object] | None, *, param: str = "response_format"
) -> dict[str, object] | None:
    """What the reply must follow, from a response format as OpenAI spells it; None is any text.

    Raises:
        RequestError: There is no such format.
    """
    kind = "text" if form is None else form.get("type")
    if form is None or kind == "text":
        return None
    if kind == "json_object":  # llama.cpp's server takes a schema with it, and TGI a "value"
        name = next((name for name in ("schema", "value") if name in form), None)
        return {"json_object": True} if name is None else _of_schema(form[name], param)
    value = form.get("value")  # what TGI's kinds have, of which huggingface_hub's docs tell
    inner = form.get("json_schema", form if value is None else value)  # the newer API has it flat
    if kind == "json_schema" and isinstance(inner, Mapping) and "schema" in inner:
        return _of_schema(inner["schema"], param)
    if kind == "json" and value is not None:
        return _of_schema(value, param)
    if kind == "regex" and isinstance(value, str):
        return {"regex": value}
    raise RequestError(
        f"{param} is of no known kind, or lacks its schema.",
        param=param,
        found=repr(kind)[:50],
        expected="'text', 'json_object' or 'json_schema'; 'json' or 'regex' with a value",
    )


def _of_schema(schema: object, param: str) -> dict[str, object]:
    if isinstance(schema, Mapping | str) or schema is True:
        return {"json_schema": schema}
    raise RequestError("the schema is no schema.", param=param, expected="an object, or true")


def _asks(value: object) -> bool:
    """Whether a field in which a grammar may be has one; there are empty schemas and choices."""
    return value is not None and value is not False and value != ""


def one_grammar(body: msgspec.Struct) -> dict[str, object] | None:
    """What the reply must follow, in whichever field a body says it; None is any text.

    Raises:
        RequestError: There is more than one, or no such format.
    """
    outputs: Mapping[str, object] = getattr(body, "structured_outputs", None) or {}
    given = {f"structured_outputs.{name}": value for name, value in outputs.items()}
    given |= {name: getattr(body, name, None) for name in _GRAMMAR_FIELDS}
    found: dict[str, tuple[str, object]] = {}
    for field, value in given.items():
        if not _asks(value):
            continue
        name = field.rpartition(".")[2].removeprefix("guided_")
        name = _GRAMMARS.get(name, name)
        if name == "grammar":
            name = "gbnf" if isinstance(value, str) and "::=" in value else "lark"
        found[field] = name, value
    asked = grammar_of(getattr(body, "response_format", None))
    if len(found) > 1 or (found and asked):
        names = ", ".join(found) + (", response_format" if asked else "")
        raise RequestError(
            "give one grammar.", param=next(iter(found)).partition(".")[0], found=names[:100]
        )
    return dict(found.values()) or asked


class ToolFields(TypedDict):
    """Fields of a `GenerationRequest` that concern tools."""

    tools: Sequence[Mapping[str, object]] | None
    tool_choice: Literal["auto", "none", "required"]
    tool_name: str | None
    parallel_tool_calls: bool | None


def tool_name(tool: Mapping[str, object]) -> str | None:
    """The name of a tool in OpenAI's shapes, nested or flat; None where it has none."""
    inner = tool.get("function", tool.get("custom", tool))
    name = inner.get("name") if isinstance(inner, Mapping) else None
    return name if isinstance(name, str) else None


def tool_choice(
    tools: Sequence[Mapping[str, object]] | None,
    choice: str = "auto",
    *,
    name: str | None = None,
    parallel: bool | None = None,
) -> ToolFields:
    """What a request says of tools.

    Args:
        tools: Functions in OpenAI's shape.
        choice: ``"auto"``, ``"none"`` or ``"required"``.
        name: The function that must be called.
        parallel: Whether several may be called at once; None is not said.

    Raises:
        RequestError: There are too many tools, or one has no name, or none that can be called.
    """
    if tools and len(tools) > MAX_TOOLS:
        raise too_many(tools, MAX_TOOLS, "tools", param="tools")
    for tool in tools or ():
        found = tool_name(tool)
        if not found:
            raise RequestError(
                "a tool has no function with a name.",
                param="tools",
                expected='{"type": "function", "function": {"name": "..."}}',
            )
        if len(found) > MAX_TOOL_NAME:
            raise RequestError(
                "a tool's name is too long.",
                param="tools",
                found=f"{len(found)} characters",
                expected=f"at most {MAX_TOOL_NAME}",
            )
        if not NAME.fullmatch(found):
            raise RequestError(
                "a tool's name has characters by which no reply can call it.",
                param="tools",
                found=repr(found)[:100],
                expected="letters, digits, and any of _ - . : /",
            )
    return {
        "tools": tools or None,
        "tool_choice": "none" if choice == "none" else "auto" if choice == "auto" else "required",
        "tool_name": name,
        "parallel_tool_calls": parallel,
    }


def check_num_replies(num_prompts: int, n: int = 1, *, param: str = "n") -> None:
    """Refuse more replies than one request may ask for.

    Raises:
        RequestError: Prompts times ``n`` is too many.
    """
    if num_prompts * n > MAX_REPLIES:
        raise RequestError(
            "the request asks for too much at once.",
            param=param,
            found=f"{num_prompts} prompts times {n}" if n > 1 else f"{num_prompts} prompts",
            expected=f"at most {MAX_REPLIES} in all",
        )


def to_prompts(given: Prompts, *, param: str = "prompt", most: int = MAX_PROMPTS) -> list[Prompt]:
    """One prompt or many, as text or token ids; a list of integers is one prompt.

    Raises:
        RequestError: Integers are mixed with others, or there are none or too many.
    """
    if isinstance(given, str):
        return [given]
    kinds = set(map(type, given))
    if kinds == {int}:
        return [cast("list[int]", given)]  # of millions of ids no copy is made
    if not kinds or int in kinds or len(given) > most:
        raise RequestError(
            f"{param} has the wrong shape.",
            param=param,
            found=f"a list of {len(given)}",
            expected=f"a string, a list of token ids, or a list of these, at most {most}",
        )
    return [each for each in given if not isinstance(each, int)]


class ImageUrl(NamesMedia):
    """An image within its URL, ``data:image/png;base64,...``; others need a flag."""

    media_fields: ClassVar = ("url",)
    url: str
    detail: str | None = None  # each model has one size


class VideoUrl(msgspec.Struct):
    """Frames of a video, one a second, in a URL: ``data:video/jpeg;base64,<frame>,<frame>``."""

    url: str


class InputAudio(msgspec.Struct):
    """A sound file in base64."""

    data: str
    format: str | None = None  # the file says it itself


def _with_field(name: str, json_type: str | list[str]) -> Schema:
    """A part that has the field of its type."""
    properties = {"type": {"const": name}, name: {"type": json_type}}
    return {"properties": properties, "required": ["type", name]}


class ContentPart(NamesMedia):
    """One part of a message's content."""

    media_fields: ClassVar = ("image_url",)
    type: Annotated[
        str, schema_hint(enum=["text", "refusal", "image_url", "video_url", "input_audio"])
    ]
    text: str | None = None
    refusal: str | None = None  # what another server's model has said
    image_url: ImageUrl | str | None = None
    video_url: VideoUrl | None = None
    input_audio: InputAudio | None = None
    schema_extra: ClassVar[Schema] = {
        "anyOf": [
            of_type("text", **any_given("text")),
            _with_field("refusal", "string"),
            _with_field("image_url", ["string", "object"]),
            _with_field("video_url", "object"),
            _with_field("input_audio", "object"),
        ]
    }


class McpCallSent(msgspec.Struct, kw_only=True):
    """A call that this server has run before a reply went on, as the reply told of it."""

    id: str
    name: str
    arguments: str = "{}"
    output: str | None = None


class ChatMessage(msgspec.Struct):
    """One message."""

    role: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None  # as base64, where Ollama has them
    mcp_calls: list[McpCallSent] | None = None


class InputTokens(msgspec.Struct, kw_only=True):
    """How many tokens there are."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


def to_messages(messages: list[ChatMessage]) -> list[Message]:
    """Translate messages.

    Raises:
        RequestError: There are too many, or one has a part that is neither text nor an image.
    """
    if len(messages) > MAX_MESSAGES:
        raise too_many(messages, MAX_MESSAGES, "messages", param="messages")
    found: list[Message] = []
    for message in messages:
        extra = {
            name: getattr(message, name)
            for name in ("name", "tool_calls", "tool_call_id")
            if getattr(message, name) is not None
        }
        thought = message.reasoning_content or message.reasoning or message.thinking
        if thought:
            extra["reasoning_content"] = thought
        # templates know no developers
        role = "system" if message.role == "developer" else message.role
        content = message.refusal if message.content is None else message.content
        images = first_images(message.images)
        if isinstance(content, list):
            content, more = join_parts(map(_read_part, content))
            images += more
        found += _messages_of_calls(message.mcp_calls or ())
        found.append(Message(role=role, content=content, images=images, extra=extra or None))
    return found


def _messages_of_calls(calls: Sequence[McpCallSent]) -> Iterator[Message]:
    """Calls that were run before a reply went on, and what came of each."""
    if not calls:
        return
    made = [function_call(each.id, each.name, each.arguments) for each in calls]
    yield Message(role="assistant", content=None, extra={"tool_calls": made})
    for each in calls:
        extra = {"tool_call_id": each.id, "name": each.name}
        yield Message(role="tool", content=each.output or "", extra=extra)


def first_images(given: Sequence[str] | None, *, param: str = "messages") -> tuple[Image, ...]:
    """Images in base64 that stand before a message's text, as Ollama has them."""
    return tuple(Image(0, decode_base64(each, param=param)) for each in given or ())


def _read_part(part: ContentPart) -> str | bytes:
    if part.type == "text" and part.text is not None:
        return part.text
    if part.type == "refusal" and part.refusal is not None:
        return part.refusal
    if part.type == "image_url" and part.image_url is not None:
        given = part.image_url
        return read_data_url(given if isinstance(given, str) else given.url)
    if part.type == "video_url" and part.video_url is not None:
        return read_video_url(part.video_url.url)
    if part.type == "input_audio" and part.input_audio is not None:
        return Sound(decode_base64(part.input_audio.data, noun="a sound"))
    raise unreadable_part(
        "a part of a message",
        part.type,
        expected="'text', 'image_url', 'video_url' or 'input_audio'",
    )


def unreadable_part(
    what: str, kind: str, *, param: str = "messages", expected: str = "'text'"
) -> RequestError:
    """The error for a part of a message that is of another kind, or has nothing in it."""
    return RequestError(
        f"{what} is neither text nor an image, video or sound that can be read.",
        param=param,
        found=repr(kind[:50]),
        expected=expected,
    )


def seed_or_random(seed: int | None) -> int:
    """The seed that a body gave for an image or a sound, or one of 31 random bits."""
    return randbits(31) if seed is None else seed


def unix_time() -> int:
    """Seconds since 1970."""
    return int(datetime.now(UTC).timestamp())


def finite(logprob: float) -> float:
    """A log-probability that JSON can hold; OpenAI's floor stands for minus infinity."""
    return max(logprob, -9999.0)
