"""Fields that other servers have: which are refused, and which have another name here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_type_hints

import msgspec

from blazr.core.errors import RequestError
from blazr.server.response_format import TEXT, grammar_fields

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
    ("send top_logprobs or n_probs", "logprob_token_ids post_sampling_probs", 0),
    ("send top_logprobs or n_probs", "top_n_tokens top_logprobs_num", 0),
    ("ask /generate for top_logprobs_num", "token_ids_logprob", 0),
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
    "logprobs": ("top_logprobs", "n_probs", "top_n_tokens", "top_logprobs_num"),
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
            (found for each in (*inner, body) for found in grammar_fields(each)), name
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
