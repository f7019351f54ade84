"""LLM and AsyncLLM: two faces of one core, with the same answers."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from blazr import LLM, AsyncLLM, Message, SamplingParams
from blazr.core.errors import (
    ContextLengthError,
    EngineError,
    RequestError,
    TemplateLimitError,
)
from blazr.engine.async_engine import AsyncEngine
from blazr.llm import async_llm, language_model, workers
from blazr.llm import llm as llm_module
from blazr.llm.async_llm import MAX_INLINE_LENGTH
from blazr.llm.generation import GenerationRequest
from blazr.llm.missing_tokenizer import MissingTokenizer
from blazr.llm.results import fold
from blazr.llm.text_engine import TextEngine
from blazr.text.chat_template import ChatTemplate
from blazr.text.events import Event, Finished, PromptDone, TextDelta
from blazr.text.grammars import compiler
from tests.support.scripted import SCRIPT, ScriptedEngine, scripted_core, wait_until

ENDLESS = SamplingParams(max_tokens=10**9, ignore_eos=True)


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM.of(scripted_core(max_unfinished=8)) as opened:
        yield opened


def engine_of(llm: LLM | AsyncLLM) -> ScriptedEngine:
    engine = llm.core.engine
    assert isinstance(engine, ScriptedEngine)
    return engine


def test_one_prompt(llm: LLM) -> None:
    (completion,) = llm.generate("hello", SamplingParams(logprobs=1))
    assert completion.text == SCRIPT
    assert completion.token_ids == tuple(llm.tokenizer.encode(SCRIPT))
    assert completion.finish_reason == "stop"
    assert completion.logprobs is not None
    assert [each.token_id for each in completion.logprobs] == list(completion.token_ids)
    usage = completion.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (1, 10, 2)


def test_many_prompts_in_order_beyond_what_the_queue_holds(llm: LLM) -> None:
    completions = llm.generate([[i] for i in range(1, 41)], SamplingParams(n=2, max_tokens=2))
    assert len(completions) == 40
    assert [each.index for one in completions for each in one.outputs] == list(range(80))
    assert [one.prompt_token_ids for one in completions] == [(i,) for i in range(1, 41)]
    assert [request.prompt_ids for request in engine_of(llm).submitted] == [
        (i,) for i in range(1, 41)
    ]
    assert {each.text for each in completions} == {" one two"}


@pytest.mark.parametrize("prompts", [[], [[]]])
def test_empty_things(llm: LLM, prompts: list) -> None:
    if prompts:
        with pytest.raises(RequestError):
            llm.generate(prompts)
    else:
        assert llm.generate(prompts) == []


def test_stream_begins_ends_and_folds(llm: LLM) -> None:
    events = list(llm.stream([1, 2, 3]))
    assert isinstance(events[0], PromptDone)
    assert isinstance(events[-1], Finished)
    assert fold(events) == llm.generate([1, 2, 3])


def test_a_stream_left_early_is_aborted(llm: LLM) -> None:
    for event in llm.stream("hello", ENDLESS):
        if not isinstance(event, PromptDone):
            break
    wait_until(lambda: engine_of(llm).num_running == 0)


@pytest.mark.parametrize("is_closed", [True, False])
def test_closing_or_deleting_frees_the_model_without_a_garbage_collection(is_closed: bool) -> None:
    llm = LLM()
    llm.generate("hello", SamplingParams(max_tokens=1))
    assert llm.core.bundle is not None
    model = llm.core.bundle.weights.module
    held = [weakref.ref(model), weakref.ref(model.embed_tokens.weight)]
    gc.collect()
    gc.disable()
    try:
        del model
        if is_closed:
            llm.close()  # and the name stays, as after a `with` block
            assert [each() for each in held] == [None, None]
        else:
            del llm
            wait_until(lambda: held[0]() is held[1]() is None)
    finally:
        gc.enable()


def test_loading_that_is_interrupted_leaves_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = set(threading.enumerate())
    for owner in (AsyncEngine, TextEngine):
        with monkeypatch.context() as patch:
            patch.setattr(owner, "warm_up", interrupt)
            with pytest.raises(KeyboardInterrupt):
                LLM(warm_up=True)
        assert set(threading.enumerate()) <= before


def test_an_interrupt_ends_replies_though_its_traceback_is_kept(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(events: Iterator[Event]) -> None:
        next(events)
        raise KeyboardInterrupt

    monkeypatch.setattr(llm_module, "fold", interrupt)
    with pytest.raises(KeyboardInterrupt) as kept:
        llm.generate("hello", ENDLESS)
    wait_until(lambda: engine_of(llm).num_running == 0)
    assert kept.tb is not None  # as notebooks keep it


def test_a_stream_never_begun_costs_nothing(llm: LLM) -> None:
    llm.stream("hello", ENDLESS)
    assert engine_of(llm).submitted == []


def test_stop_strings_end_one_choice_and_then_the_request(llm: LLM) -> None:
    params = SamplingParams(max_tokens=10**9, ignore_eos=True, stop=(" three",), n=2)
    (completion,) = llm.generate("hello", params)
    assert [each.text for each in completion.outputs] == [" one two"] * 2
    assert [each.stop for each in completion.outputs] == [" three"] * 2
    wait_until(lambda: engine_of(llm).num_running == 0)
    assert engine_of(llm).aborted


def test_chat(llm: LLM) -> None:
    said = [Message(role="system", content="be kind"), {"role": "user", "content": "hello"}]
    assert llm.chat(said).text == SCRIPT
    prompt = engine_of(llm).submitted[-1].prompt_ids
    text = llm.tokenizer.decode(prompt, skip_special=False)
    assert text == "<|system|>\nbe kind\n<|user|>\nhello\n<|assistant|>\n"
    with pytest.raises(RequestError):
        llm.chat([{"content": "who?"}])
    with pytest.raises(RequestError):
        llm.chat([])


@pytest.mark.parametrize(
    ("ask", "param"),
    [
        *(
            (lambda llm, given=given: llm.chat(given), "messages")
            for given in ("hi", None, 5, {"role": "user", "content": "hi"})
        ),
        (lambda llm: llm.chat(Message(role="user", content="hi")), "messages"),
        *(
            (lambda llm, given=given: llm.chat([], tools=given), "tools")
            for given in ("f", 5, [print], {"type": "function"})
        ),
        (lambda llm: llm.score(5, "a"), "text_1"),
        (lambda llm: llm.score("a", ["b", 5]), "text_2"),
        (lambda llm: list(llm.stream(5)), "prompts"),
        *(
            (lambda llm, given=given: llm.logits(given), "token_ids")
            for given in ("a", None, [0.5])
        ),
        (lambda llm: llm.tokenizer.encode(b"a"), None),
    ],
)
def test_what_is_of_another_type_is_refused_by_name(
    llm: LLM, ask: Callable[[LLM], object], param: str | None
) -> None:
    with pytest.raises(RequestError, match=r"(?s)found.*expected") as caught:
        ask(llm)
    assert caught.value.param == param


def test_a_message_may_have_parts_as_a_dictionary_may(llm: LLM) -> None:
    parts: Any = [{"type": "text", "text": "hello"}]
    llm.chat([Message(role="user", content=parts)])
    llm.chat([Message(role="user", content="hello")])
    first, second = (request.prompt_ids for request in engine_of(llm).submitted)
    assert first == second
    for content in (5, b"hello", ["hello"]):
        with pytest.raises(RequestError, match="message"):
            llm.chat([Message(role="user", content=content)])


def test_it_says_what_it_is(llm: LLM) -> None:
    assert repr(llm) == f"<LLM {llm.core.info.name!r} on {llm.core.info.device}>"


def test_no_two_ways_to_ask() -> None:
    for given in ({}, {"prompt": "a", "messages": []}):
        with pytest.raises(RequestError):
            GenerationRequest(**given)


BUSY = (
    "{% if messages[0].content == 'go' %}{% for i in range(99999) %}"
    + "{% set x = i %}" * 200
    + "{% endfor %}{% endif %}"
)


async def num_turns(llm: AsyncLLM) -> int:
    """How often the event loop turned while a chat was refused."""
    count = 0

    async def turn() -> None:
        nonlocal count
        while True:
            await asyncio.sleep(0)
            count += 1

    turning = asyncio.create_task(turn())
    await asyncio.sleep(0)
    before = count
    with pytest.raises(TemplateLimitError):
        await llm.chat([{"role": "user", "content": "go"}])
    turning.cancel()
    return count - before


def test_a_template_that_takes_long_does_not_hold_the_event_loop() -> None:
    async def main() -> int:
        async with AsyncLLM.of(scripted_core()) as llm:
            llm.core.template = ChatTemplate(BUSY, name="busy")
            return await num_turns(llm)

    assert asyncio.run(main()) > 10


@pytest.mark.parametrize("length", [1, 2 * MAX_INLINE_LENGTH])
def test_chats_that_take_long_take_turns(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    for name in ("INLINE_RENDER_S", "CONCURRENT_RENDER_S"):
        monkeypatch.setattr(async_llm, name, -1.0)

    async def main() -> tuple[str, str]:
        chat = [{"role": "user", "content": "a" * length}]
        async with AsyncLLM.of(scripted_core()) as llm:
            async with busy(workers._for_long_texts):
                first = asyncio.create_task(llm.chat(chat))
                finished, _ = await asyncio.wait({first}, timeout=0.2)
                assert not finished
            return (await first).text, (await llm.chat(chat)).text

    assert set(asyncio.run(main())) == {SCRIPT}


@asynccontextmanager
async def busy(pool: ThreadPoolExecutor) -> AsyncIterator[None]:
    """A pool whose one thread works until the block ends."""
    end = threading.Event()
    working = asyncio.get_running_loop().run_in_executor(pool, end.wait)
    try:
        yield
    finally:
        end.set()
        await working


def test_long_texts_leave_threads_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who leave before their turn cost nothing."""
    lengths = []
    monkeypatch.setattr(workers, "MAX_CONCURRENT_LENGTH", 2000)

    async def main() -> None:
        async with AsyncLLM.of(scripted_core()) as llm:
            encode = llm.core.encode_prompt

            def counting(request: GenerationRequest) -> list[int]:
                lengths.append(request.length)
                return encode(request)

            monkeypatch.setattr(llm.core, "encode_prompt", counting)
            async with busy(workers._for_long_texts):
                long = [asyncio.create_task(llm.generate("a" * 3000)) for _ in range(99)]
                await llm.generate("a" * 1500)
                for each in long:
                    each.cancel()
                await asyncio.wait(long)

    asyncio.run(main())
    assert lengths == [1500]


def test_errors_come_before_anything_starts(llm: LLM) -> None:
    with pytest.raises(ContextLengthError):
        llm.generate("a" * 5000)
    with pytest.raises(RequestError):
        llm.generate([[1], [100331]])
    wait_until(lambda: engine_of(llm).num_running == 0)


def test_more_replies_than_a_queue_holds_and_a_closed_engine_are_told(llm: LLM) -> None:
    engine_of(llm).go.clear()
    for params in (SamplingParams(n=9), [SamplingParams(), SamplingParams(n=9)]):
        with pytest.raises(RequestError, match="queue"):
            llm.generate(["a", "b"], params)
    llm.core.engine.broken = "it died"
    with pytest.raises(EngineError):
        llm.generate("a")
    engine_of(llm).go.set()


def test_callers_wait_for_room_in_the_queue(llm: LLM) -> None:
    engine_of(llm).go.clear()
    with ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(llm.generate, [1], SamplingParams(n=2)) for _ in range(20)]
        wait_until(lambda: len(engine_of(llm).submitted) == 4)
        engine_of(llm).go.set()
        assert [each.result()[0].text for each in asked] == [SCRIPT] * 20


def test_tasks_wait_for_room_in_the_queue_and_may_leave_it() -> None:
    async def main() -> list[str]:
        async with AsyncLLM.of(scripted_core(max_unfinished=8)) as llm:
            engine_of(llm).go.clear()
            asked = [asyncio.create_task(llm.generate([1])) for _ in range(40)]
            await asyncio.sleep(0.1)
            assert len(engine_of(llm).submitted) == 8
            asked.pop().cancel()
            engine_of(llm).go.set()
            return [each[0].text for each in await asyncio.gather(*asked)]

    assert asyncio.run(main()) == [SCRIPT] * 39


def test_tasks_wait_while_too_many_grammars_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "MAX_PENDING", 1)
    params = SamplingParams(grammar={"regex": "a"})

    async def main() -> list[str]:
        async with AsyncLLM.of(scripted_core()) as llm:
            asked = [llm.generate([1], params) for _ in range(5)]
            return [each[0].text for each in await asyncio.gather(*asked)]

    assert asyncio.run(main()) == [SCRIPT] * 5


def test_a_model_that_nobody_uses_any_more_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_model, "load_text_engine", lambda _: scripted_core())
    llm = LLM()
    engine = engine_of(llm)
    stream = llm.stream([1], ENDLESS)
    next(stream)
    del llm
    gc.collect()
    assert isinstance(next(stream), TextDelta)
    assert not engine._closed
    del stream
    wait_until(lambda: engine._closed)


def test_python_ends_when_a_model_that_nobody_uses_any_more_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_close = threading.Event()
    closed: list[bool] = []

    def load(_: object) -> TextEngine:
        core = scripted_core()
        monkeypatch.setattr(core, "close", lambda: closed.append(may_close.wait(5)))
        return core

    monkeypatch.setattr(language_model, "load_text_engine", load)
    llm = LLM()
    del llm
    gc.collect()
    threading.Timer(0.1, may_close.set).start()
    language_model._CLOSER.wait()
    assert closed == [True]


def test_a_fork_does_not_wait_until_models_of_its_parent_are_closed() -> None:
    script = """
import os, sys, threading
from blazr.llm import language_model
may_close = threading.Event()
language_model._CLOSER.begin(may_close.wait)
fork = os.fork()
if fork:
    print(os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]))
    may_close.set()
else:
    language_model.EXIT_S = 60.0
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=50
    )
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_an_engine_that_dies_leaves_nobody_waiting_for_room(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm_module, "CHECK_S", 0.1)
    engine_of(llm).go.clear()
    with ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(llm.generate, [1]) for _ in range(20)]
        wait_until(lambda: len(engine_of(llm).submitted) == 8)
        llm.core.engine.broken = "it died"
        for each in asked:
            with pytest.raises(EngineError):
                each.result()
    engine_of(llm).go.set()


def test_a_failed_reply_carries_its_error(llm: LLM) -> None:
    engine_of(llm).fails_with = "not a number"
    (completion,) = llm.generate("a")
    assert (completion.finish_reason, completion.error) == ("error", "not a number")


@pytest.mark.parametrize("texts", ["a", ["a", "b"]])
def test_a_vector_that_failed_is_an_error(llm: LLM, texts: str | list[str]) -> None:
    engine_of(llm).fails_with = "not a number"
    for call in (llm.embed, partial(llm.score, "c")):
        with pytest.raises(EngineError, match="not a number"):
            call(texts)


def test_threads_do_not_disturb_each_other(llm: LLM) -> None:
    found: dict[int, list[str]] = {}

    def ask(number: int) -> None:
        params = SamplingParams(max_tokens=number)
        found[number] = [each.text for each in llm.generate(["a", "b"], params)]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    words = SCRIPT.split(" ")
    for number, texts in found.items():
        assert texts == [" ".join(words[: number + 1])] * 2


@pytest.mark.parametrize("face", [LLM, AsyncLLM])
@pytest.mark.parametrize("make", [pickle.dumps, copy.copy, copy.deepcopy])
def test_no_second_one_is_made_of_one(
    make: Callable[[object], object], face: type[LLM | AsyncLLM]
) -> None:
    opened = face.of(scripted_core())
    try:
        with pytest.raises(TypeError, match=rf"^{face.__name__} cannot .* in each process that"):
            make(opened)
    finally:
        opened.core.close()


def test_the_asynchronous_face_gives_the_same() -> None:
    async def ask() -> None:
        async with AsyncLLM.of(scripted_core()) as llm:
            with LLM.of(llm.core) as same:
                assert await llm.generate(["a", "b"]) == same.generate(["a", "b"])
                chat = [Message(role="user", content="hi")]
                assert await llm.chat(chat) == same.chat(chat)
                streamed = [event async for event in llm.stream("a")]
                assert streamed == list(same.stream("a"))

    asyncio.run(ask())


def test_event_loops_of_two_threads_do_not_mix() -> None:
    class Interrupted(AsyncLLM):
        """Another thread asks in the moment in which this one has made its notifier."""

        found: async_llm.Notifier | None = None

        @property
        def _notifier(self) -> async_llm.Notifier | None:
            return self.found

        @_notifier.setter
        def _notifier(self, notifier: async_llm.Notifier) -> None:
            is_first = self.found is None
            self.found = notifier
            if is_first:
                with ThreadPoolExecutor() as other:
                    other.submit(asyncio.run, self.generate("hello")).result()

    llm = Interrupted.of(scripted_core())
    (completion,) = asyncio.run(llm.generate("hello"))
    assert completion.text == SCRIPT
    asyncio.run(llm.close())


def test_cancelling_aborts() -> None:
    async def ask() -> None:
        async with AsyncLLM.of(scripted_core()) as llm:
            task = asyncio.create_task(llm.generate("a", ENDLESS))
            while not engine_of(llm).num_running:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert engine_of(llm).num_running == 0

    asyncio.run(ask())


@pytest.mark.parametrize(("adds_bos", "first"), [(True, True), (False, False)])
def test_bos_goes_before_text_where_the_family_has_one(adds_bos: bool, first: bool) -> None:
    core = scripted_core(adds_bos=adds_bos)
    core.tokenizer = WithBos(core.tokenizer)
    with LLM.of(core) as llm:
        llm.generate("hello")
        llm.generate([5, 6])
        text, ids = (request.prompt_ids for request in engine_of(llm).submitted)
    assert (text[0] == WithBos.bos_id) is first
    assert ids == (5, 6)


class WithBos:
    """cl100k_base, as if it had a token for the beginning of text."""

    bos_id = 100257

    def __init__(self, tokenizer: object) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> object:
        return getattr(self._tokenizer, name)


def test_declared_and_known_ends_stop_a_reply() -> None:
    with LLM.of(scripted_core(stop_ids=frozenset({7, 10**6}))) as llm:
        llm.generate("hello")
        stops = engine_of(llm).submitted[-1].stop_ids
    assert {7, *llm.tokenizer.eos_ids} <= stops
    assert 10**6 not in stops


def test_without_a_vocabulary_ids_work_and_text_is_refused() -> None:
    core = scripted_core()
    with LLM.of(TextEngine(core.engine, core.info, tokenizer=MissingTokenizer())) as llm:
        (completion,) = llm.generate([1, 2, 3])
        assert completion.text == ""
        assert len(completion.token_ids) == 10
        with pytest.raises(RequestError, match="--vocab"):
            llm.generate("hello")
        with pytest.raises(RequestError, match="cannot chat"):
            llm.chat([Message(role="user", content="hi")])
