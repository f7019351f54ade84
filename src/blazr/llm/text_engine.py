"""The core of the Python API: a tokenizer and a chat template joined to an engine."""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from blazr.core.errors import (
    CheckpointError,
    ContextLengthError,
    EngineError,
    RequestError,
    too_many,
)
from blazr.engine.constraint import Constraint
from blazr.engine.request import Request
from blazr.llm.adapters import Adapters
from blazr.llm.bundle import ModelBundle, ModelInfo
from blazr.llm.generation import GenerationRequest
from blazr.llm.infill import encode_infill
from blazr.llm.reply_tokens import ReplyTokenCache
from blazr.pipelines.media import MediaPrompt
from blazr.text.chat_template import ChatPrompt, ChatTemplate
from blazr.text.grammars.compiler import GrammarCompiler
from blazr.text.images import NOUNS
from blazr.text.messages import SYSTEM_ROLES, Message
from blazr.text.reasoning import thinking_budget
from blazr.text.stream import ReplyFormat
from blazr.text.thinking_budget import ThinkingBudget
from blazr.text.tokenizer import Tokenizer
from blazr.text.tool_calls.custom import as_function
from blazr.text.tool_calls.format import tool_specs

if TYPE_CHECKING:
    from blazr.engine.async_engine import AsyncEngine
    from blazr.pipelines.media import MediaEncoder, MediaTokens

MAX_IMAGES = 32  # of one request
# An image counts as so many characters where parts of a chat are compared by their length.
CHARACTERS_PER_IMAGE = 1000
# No vocabulary packs more characters than this into a token on average, so a text longer than
# this many times the context cannot fit, and is refused before time is spent on tokenizing it.
CHARACTERS_PER_TOKEN = 8
# A rendered chat has marks of up to 20 characters besides, each of them one token.
RENDERED_CHARACTERS_PER_TOKEN = 2 * CHARACTERS_PER_TOKEN
# The end of a prompt in which to look for the beginning of thinking, tokens.
_TAIL = 32
# Tokens that new weights are tried with.
_TRIED = 16
# The format of a reply that is text and nothing else.
PLAIN = ReplyFormat()


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that the engine can run, and how its reply is read.

    Args:
        request: For the engine.
        reply_format: What there may be in the reply besides text.
        num_dropped_messages: Messages that did not fit, the oldest of the chat.
        remember: Called at the end of each reply with its token ids, and with ``stop``, the string
            that ended it or None.
        num_scored: See `GenerationRequest`.
    """

    request: Request
    reply_format: ReplyFormat
    num_dropped_messages: int = 0
    remember: Callable[..., None] | None = None
    num_scored: int | None = None


def _first_turn(messages: Sequence[Message]) -> int:
    """The first message that is not the system's."""
    conversation = (i for i, each in enumerate(messages) if each.role not in SYSTEM_ROLES)
    return next(conversation, len(messages))


def _images(messages: Sequence[Message], num_dropped: int) -> list[bytes]:
    """The images of a chat, but for those of its oldest messages."""
    first = _first_turn(messages)
    kept = [*messages[:first], *messages[first + num_dropped :]]
    return [image.data for each in kept for image in each.images]


def _turn_starts(messages: Sequence[Message], first: int, *, step: int) -> list[int]:
    """Where a chat may begin when its oldest turns go: at messages of the user.

    Not at each, but where another ``step`` characters have gone, and at the last. Otherwise every
    new turn would move the beginning of a long chat, and all of it would be computed again.
    """
    starts = []
    num_characters = 0
    last_step = 0
    turns = [i for i in range(first, len(messages)) if messages[i].role == "user"]
    for index in range(first, len(messages)):
        if index > first and messages[index].role == "user":
            steps = num_characters // step
            if steps > last_step or index == turns[-1]:
                starts.append(index)
            last_step = steps
        num_characters += len(messages[index].content or "")
        num_characters += CHARACTERS_PER_IMAGE * len(messages[index].images)
    return starts


class TextEngine:
    """Text in, events out. Thread-safe; of past requests it knows only what ids replies had.

    Args:
        engine: What continues token ids.
        info: About the model.
        tokenizer: Text to ids and back.
        template: Chats to ids; None where the model has no vocabulary.
        reply_format: How the model writes its thinking and its calls of tools.
        bundle: The model it was started from; None where none can be started again.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        info: ModelInfo,
        *,
        tokenizer: Tokenizer,
        template: ChatTemplate | None = None,
        reply_format: ReplyFormat = PLAIN,
        bundle: ModelBundle | None = None,
    ) -> None:
        self.bundle = bundle
        self.engine = engine
        self.info = info
        self.tokenizer = tokenizer
        self.template = template
        self.reply_format = reply_format
        self.reply_cache = ReplyTokenCache()
        self.adapters = Adapters(engine, lambda: self.bundle)
        self.grammars = GrammarCompiler(
            tokenizer, vocab_size=info.vocab_size, special_ids=self._all_stop_ids
        )

    @property
    def takes(self) -> frozenset[str]:
        """What messages may have besides text: kinds of `blazr.text.images.Image`."""
        return frozenset() if self._media_encoder is None else self._media_encoder.kinds

    @property
    def reads_images(self) -> bool:
        """Whether messages may have images."""
        return "image" in self.takes

    @property
    def reads_audio(self) -> bool:
        """Whether messages may have sounds."""
        return "audio" in self.takes

    @property
    def _media_encoder(self) -> MediaEncoder | None:
        """What reads images or sounds for the model."""
        return None if self.bundle is None else self.bundle.media_encoder

    def prepare(self, request: GenerationRequest) -> PreparedRequest:
        """Translate a request to token ids, and compile its grammar.

        Takes time for long texts and new grammars; changes nothing that others see.

        Raises:
            ContextLengthError: The text cannot fit the model's context.
            RequestError: The text is not valid, or the chat cannot be rendered.
            TemplateLimitError: The chat template takes too much time or memory.
            GrammarError: The grammar is wrong, too complex, or cannot be enforced.
        """
        reply_format = _choose_reply_format(self.reply_format, request)
        chat: ChatPrompt | None = None
        num_dropped = 0
        if request.messages is not None:
            chat, ids, num_dropped = self._encode_fitting(request)
            has_turn_marks = not (request.params.ignore_eos or request.params.grammar is not None)
            if self.template is not None and has_turn_marks:
                turn_marks = self.template.stop_texts(self.tokenizer)
                reply_format = replace(reply_format, turn_marks=turn_marks)
        else:
            ids = self.encode_prompt(request)
        whole = len(ids)
        ids = self._cut(request, ids)
        if len(ids) < whole:
            chat = None  # what is left of it is no beginning of the next turn
        anchors = request.cache_anchors
        if chat is not None:
            anchors += chat.anchor_tokens(ids)
        written = ids  # where an image is one mark
        prompt, anchors = self._with_images(request, num_dropped, ids, anchors)
        ids = prompt.token_ids
        adapter = None if request.adapter is None else self.adapters.find(request.adapter)
        params = request.params
        salt = request.cache_salt
        breakers: frozenset[int] = frozenset()
        if params.dry_multiplier:
            breakers = _containing(self.tokenizer, params.dry_sequence_breakers)
        prepared = Request(
            prompt_ids=tuple(ids),
            embeddings=prompt.embeddings,
            is_bidirectional=bool(
                prompt.embeddings
                and self._media_encoder
                and self._media_encoder.has_bidirectional_prompts
            ),
            inputs=prompt.inputs,
            params=params.with_defaults(self.info.sampling),
            stop_ids=self._stop_ids(request, reply_format),
            priority=request.priority,
            cache_salt=salt if adapter is None else adapter.adapter.salt(salt),
            client=request.client,
            timeout_s=request.timeout_s,
            dry_breakers=breakers,
            bad_words=_spellings(self.tokenizer, params.bad_words),
            adapter=None if adapter is None else adapter.adapter,
            constraint=self._constraint(request, reply_format, ids),
            anchors=anchors,
            pooling=request.pooling,
        )
        remember = None
        if chat is not None and request.pooling is None:
            remember = partial(self.reply_cache.add, chat, request.cache_salt, written)
        return PreparedRequest(
            prepared, reply_format, num_dropped, remember, num_scored=request.num_scored
        )

    def _cut(self, request: GenerationRequest, ids: list[int]) -> list[int]:
        """A prompt's token ids without those that go because it is too long."""
        truncation = request.truncation
        if truncation is None or not request.cuts_tokens:
            return ids
        most = self._room(request) if truncation.most is None else truncation.most
        end = self._vector_end(request)
        text, most = ids[: len(ids) - len(end)], max(most - len(end), 0)
        kept = text[max(len(text) - most, 0) :] if truncation.drops == "left" else text[:most]
        return [*kept, *end]

    def _stop_ids(self, request: GenerationRequest, reply_format: ReplyFormat) -> frozenset[int]:
        """The ids that end the reply to a request: of a chat, those of its turns and calls, too."""
        ids = self._end_ids if request.messages is None else self._all_stop_ids()
        if reply_format.tool_format is not None:
            special_ids = self.tokenizer.special_ids
            names = reply_format.tool_format.stop_names
            ids |= {special_ids[name] for name in names if name in special_ids}
        return frozenset(i for i in ids if i < self.info.vocab_size)

    def warm_up(self) -> None:
        """Prepare a chat, which reads and compiles what every chat needs and keeps it."""
        if self.template is not None:
            message = Message(role="user", content="Hello")
            # a template or a context may be too peculiar; the first chat says how
            with contextlib.suppress(RequestError):
                self.prepare(GenerationRequest(messages=[message]))

    def encode_prompt(self, request: GenerationRequest) -> list[int]:
        """The token ids of a prompt. Special tokens spelled in it are plain text."""
        prompt = request.prompt
        if not isinstance(prompt, str):
            return list(prompt or ())
        truncation = request.truncation
        longest = CHARACTERS_PER_TOKEN * self.info.max_seq_len
        # what is longer than any prompt would be cut off all the same
        if truncation is not None and len(prompt) > longest and not self.info.is_unbounded:
            prompt = prompt[-longest:] if truncation.drops == "left" else prompt[:longest]
        self._check_length(len(prompt) + len(request.suffix or ""), "prompt")
        if request.suffix is not None:
            return encode_infill(self.tokenizer, prompt, request.suffix, self.info.vocab_size)
        ids = self.tokenizer.encode(prompt)
        bos_id = self.tokenizer.bos_id
        if request.add_special_tokens and self.info.adds_bos and bos_id is not None:
            ids = [bos_id, *ids]
        return [*ids, *self._vector_end(request)]

    def _vector_end(self, request: GenerationRequest) -> Sequence[int]:
        """What stands behind a text that becomes a vector: the end-of-text token, or nothing."""
        is_text = request.pooling is not None and isinstance(request.prompt, str)
        wanted = is_text and self.info.ends_vectors and request.add_special_tokens
        return self.tokenizer.eos_ids[:1] if wanted else ()

    def encode_chat(self, request: GenerationRequest) -> list[int]:
        """The token ids of a chat, as the template renders it and replies in it were written."""
        ids = self.reply_cache.encode(self.render_chat(request), request.cache_salt)
        return self._with_images(request, 0, ids, ())[0].token_ids

    def render_chat(self, request: GenerationRequest) -> ChatPrompt:
        """A chat as the template renders it.

        Raises:
            RequestError: It has no messages, or some that the model or its template cannot take.
        """
        messages: Sequence[Message] = request.messages or ()
        if self.template is None:
            raise RequestError(
                "this model has no vocabulary, so it cannot chat.",
                param="messages",
                hint="name one with --vocab, or send token ids to /v1/completions",
            )
        if not messages:
            raise RequestError("messages may not be empty.", param="messages")
        self._check_images(messages)
        self.template.check_roles(messages)
        if not request.cuts_tokens:
            self._check_length(sum(map(_num_characters, messages)), "messages")
        continues = request.continue_final_message
        prompt = self.template.prompt(
            messages[:-1] if continues else messages,
            self.tokenizer,
            tools=None
            if request.tool_choice == "none"
            else [*map(as_function, request.tools or ())],
            add_generation_prompt=request.add_generation_prompt or continues,
            variables=request.template_variables,
            looks_ahead=self.info.is_recurrent,
        )
        return prompt.followed_by(messages[-1].content or "") if continues else prompt

    def _check_images(self, messages: Sequence[Message]) -> None:
        kinds = {image.kind for each in messages for image in each.images} - self.takes
        if kinds:
            only = " and ".join(["text", *(f"{each} files" for each in sorted(self.takes))])
            found = NOUNS[min(kinds)]
            raise RequestError(f"this model reads only {only}.", param="messages", found=found)

    def _encode_fitting(self, request: GenerationRequest) -> tuple[ChatPrompt, list[int], int]:
        """A chat and its token ids; where the oldest messages may go, as many as fit.

        The last value is how many messages went.
        """
        messages = request.messages or ()
        truncation = request.truncation

        def encode(start: int) -> tuple[ChatPrompt, list[int]]:
            kept = replace(request, messages=[*messages[:first], *messages[start:]])
            prompt = self.render_chat(kept)
            if not request.cuts_tokens:
                self._check_length(len(prompt.text), "messages", RENDERED_CHARACTERS_PER_TOKEN)
            return prompt, self.reply_cache.encode(prompt, request.cache_salt)

        def fits(start: int) -> bool:
            if len(_images(messages, start - first)) > MAX_IMAGES:
                return False
            seen = self._encode_media(request, start - first)
            try:
                for_images = sum(len(each.token_ids) - 1 for each in seen)
                return len(encode(start)[1]) + for_images <= room
            except ContextLengthError:
                return False

        self._check_images(messages)
        first = _first_turn(messages)
        room = self._room(request)
        if truncation is None or truncation.drops != "messages" or fits(first):
            return *encode(first), 0
        starts = _turn_starts(messages, first, step=room)
        place = bisect_left(starts[:-1], 1, key=fits)
        if not starts or not fits(starts[place]):
            return *encode(first), 0  # the last turn alone is too long
        return *encode(starts[place]), starts[place] - first

    def _encode_media(self, request: GenerationRequest, num_dropped: int) -> list[MediaTokens]:
        """What stands for the images of a chat, but for the oldest messages."""
        images = _images(request.messages or (), num_dropped)
        if not images:
            return []
        assert self._media_encoder is not None  # else they were refused
        if request.cuts_tokens:
            raise RequestError(
                "a prompt with images cannot be cut to a number of tokens.",
                param="truncate_prompt_tokens",
                hint='truncation="auto" leaves out the oldest turns',
            )
        if len(images) > MAX_IMAGES:
            raise too_many(images, MAX_IMAGES, "images", param="messages")
        return self._media_encoder.encode(images)

    def _with_images(
        self,
        request: GenerationRequest,
        num_dropped: int,
        ids: list[int],
        anchors: tuple[int, ...],
    ) -> tuple[MediaPrompt, tuple[int, ...]]:
        """A prompt with images in the place of their marks, and where its anchors are then."""
        images = self._encode_media(request, num_dropped)
        if not images:
            return MediaPrompt(ids), anchors
        assert self._media_encoder is not None
        found = self._media_encoder.insert(ids, images)
        longer = [len(image.token_ids) - 1 for image in images]
        moved = tuple(
            anchor
            + sum(more for place, more in zip(found.places, longer, strict=True) if place < anchor)
            for anchor in anchors
        )
        return found, moved

    def _room(self, request: GenerationRequest) -> int:
        """Tokens that a prompt may have beside its reply; half the context at least."""
        context = self.info.max_seq_len
        if self.info.is_unbounded:
            return 2**31
        half = max(context // 2, 1)
        most = request.params.max_tokens
        return context - (half if most is None else min(most, half))

    def check_weights(self, bundle: ModelBundle) -> None:
        """Compute some tokens with the weights of the same model in another checkpoint.

        Raises:
            CheckpointError: Their scores hold NaN or infinity, as every reply's would.
        """
        step = -(-self.info.vocab_size // _TRIED)
        ids = range(0, self.info.vocab_size, step)
        scores = self.engine.logits(ids, model=bundle.weights.module)
        if not scores.amax(-1).isfinite().all():
            raise CheckpointError(
                "the network with these weights computes no numbers.",
                found="NaN or infinity among the scores of tokens",
                hint="the training may have diverged: take an earlier checkpoint",
            )

    def replace_weights(self, bundle: ModelBundle) -> None:
        """Go on with the weights of the same model in another checkpoint."""
        self.engine.replace_model(bundle.weights.module)
        self.bundle = bundle

    def check(self) -> None:
        """Raise where the engine does not work any more.

        Raises:
            EngineError: With its reason.
        """
        health = self.engine.health()
        if health.is_lost:
            raise EngineError("the engine does not answer.", found=health.reason)

    def close(self) -> None:
        """Stop the engine and drop the model. What still runs ends with an error."""
        self.engine.close()
        self.grammars.close()
        bundle, self.bundle = self.bundle, None
        if bundle is not None and bundle.processes is not None:
            bundle.processes.close()

    def _constraint(
        self, request: GenerationRequest, reply_format: ReplyFormat, ids: Sequence[int]
    ) -> Constraint | None:
        """What the reply must follow: a grammar, a bound on its thinking, or both."""
        grammar = _choose_grammar(reply_format, request)
        thinking = reply_format.reasoning
        if thinking is None:
            return None if grammar is None else self.grammars.compile(grammar)
        source = "" if self.template is None else self.template.source
        tail = self.tokenizer.decode(ids[-_TAIL:], skip_special=False)
        budget = thinking_budget(source, request.template_variables, most=request.thinking_budget)
        has_begun = thinking.has_begun(tail)
        is_over = thinking.has_ended(tail)
        # a grammar leaves room for thinking where the model is known to think
        may_begin = not is_over and budget != 0 and thinking.begin.strip() in source
        calls_tool = request.tool_choice == "required"
        constraint = None
        if grammar is not None:
            constraint = self.grammars.compile(
                grammar,
                after=thinking.end + thinking.link if has_begun or may_begin else None,
                begin=None if has_begun else thinking.begin.strip(),
                header="" if calls_tool or request.continue_final_message else thinking.header,
            )
        if budget is None or is_over or (constraint is not None and not (has_begun or may_begin)):
            return constraint
        return ThinkingBudget(
            thinking,
            self.tokenizer,
            vocab_size=self.info.vocab_size,
            budget=budget,
            is_inside=has_begun,
            inner=constraint,
            with_header=not calls_tool,
        )

    @property
    def _end_ids(self) -> frozenset[int]:
        """The ids that end any text."""
        return self.info.stop_ids | frozenset(self.tokenizer.eos_ids)

    def _all_stop_ids(self) -> frozenset[int]:
        """Every id that ends a reply of some kind; no grammar may take one for text."""
        ids = self._end_ids
        if self.template is not None:
            ids |= frozenset(self.template.stop_ids(self.tokenizer))
        return ids

    def _check_length(
        self, num_characters: int, param: str, per_token: int = CHARACTERS_PER_TOKEN
    ) -> None:
        context = self.info.max_seq_len
        if not self.info.is_unbounded and num_characters > per_token * context:
            raise ContextLengthError(
                f"the {param} cannot fit the model's context of {context} tokens.",
                num_tokens=num_characters // per_token,
                limit=context,
                param=param,
                found=f"{num_characters} characters",
                expected=f"at most {per_token * context} characters",
            )


def _num_characters(message: Message) -> int:
    """Of its content and of the arguments of its calls, which are read before they are rendered."""
    number = len(message.content or "")
    calls = (message.extra or {}).get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        arguments = function.get("arguments") if isinstance(function, Mapping) else None
        number += len(arguments) if isinstance(arguments, str) else 0
    return number


def _choose_reply_format(own: ReplyFormat, request: GenerationRequest) -> ReplyFormat:
    """What there may be in the reply to a request besides text.

    Args:
        own: What the model writes when it chats.
        request: What is asked.
    """
    if request.messages is None:
        return PLAIN
    has_tools = request.tools and request.tool_choice != "none"
    tools = tool_specs(request.tools or ()) if has_tools else []
    tool_format = own.tool_format if tools else None
    return ReplyFormat(
        reasoning=own.reasoning,
        tool_format=tool_format,
        tools=tools,
        has_one_call=request.parallel_tool_calls is False,
    )


def _choose_grammar(
    reply_format: ReplyFormat, request: GenerationRequest
) -> Mapping[str, object] | None:
    """What the reply must follow: the grammar asked for, or calls where they are required.

    Calls that may be made are held to a grammar where a custom tool's input has one. A response
    format is that of the text, and where a call is required there is none.

    Raises:
        RequestError: There is no such tool, or a grammar is asked for besides that is no format.
    """
    asked = request.params.grammar
    is_format = asked is None or not {"json_object", "json_schema"}.isdisjoint(asked)
    tool_format = reply_format.tool_format
    if request.tool_choice != "required":
        if asked is not None or tool_format is None:
            return asked
        grammar = tool_format.input_grammar(reply_format.tools)
        return None if grammar is None else {"tool_call": grammar}
    name = request.tool_name
    tools = [tool for tool in reply_format.tools if name is None or tool.name == name]
    if not is_format or tool_format is None or not tools:
        raise RequestError(
            "a tool must be called, which is not possible here.",
            param="tool_choice",
            found="no such tool" if is_format else "a grammar too",
            expected="one of the tools, and no grammar besides",
        )
    # who must call goes on calling for want of anything else to say, unless it is to be so
    parallel = request.parallel_tool_calls is True and name is None
    return {"tool_call": tool_format.grammar(tools, parallel=parallel)}


def _spellings(tokenizer: Tokenizer, texts: Iterable[str]) -> tuple[tuple[int, ...], ...]:
    """The ids of texts, at the beginning of a line and within it, where they differ.

    Within a line a word begins with a space, and is another token.
    """
    found = {
        tuple(tokenizer.encode(each)) for text in texts for each in (text, f" {text.lstrip()}")
    }
    return tuple(sorted(ids for ids in found if ids))


@lru_cache(maxsize=64)
def _containing(tokenizer: Tokenizer, texts: tuple[str, ...]) -> frozenset[int]:
    """The ids of all tokens that any of these texts is part of."""
    parts = [text.encode() for text in texts]
    found = set()
    for token_id in range(tokenizer.size):
        data = tokenizer.token_bytes(token_id)
        if any(part in data for part in parts):
            found.add(token_id)
    return frozenset(found)
