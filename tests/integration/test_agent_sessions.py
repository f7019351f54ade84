"""Sessions of coding agents: nothing they send is refused, and little of it is read twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from blazr.engine.async_engine import AsyncEngine
from blazr.engine.cache.manager import CacheManager, CacheShape
from blazr.engine.engine import Engine
from blazr.engine.pacing import Pacing
from blazr.engine.runner import StepResult
from blazr.engine.sampling.sampler import Sampled
from blazr.engine.scheduler import Scheduler, StepPlan
from blazr.llm.bundle import ModelInfo
from blazr.llm.text_engine import TextEngine
from blazr.text.chat_template import ChatTemplate
from blazr.text.reasoning import choose_reasoning
from blazr.text.stream import ReplyFormat
from blazr.text.tokenizers.choose import find_tokenizer, load_tokenizer
from blazr.text.tool_calls.choose import choose_tool_format
from tests.support.agent_bodies import NUM_TURNS, ClaudeCode, Codex
from tests.support.loopback import Loopback, serving

TEMPLATES = Path(__file__).resolve().parents[1] / "golden" / "templates"
VOCAB, CONTEXT = 100_331, 65_536
# Forms with thinking that later turns drop, without thinking, without tools of their own, and one
# that shows the tools before the user's last words, so that each of these moves them.
MOST_AGAIN = {
    "Qwen-Qwen3-0.6B": 0.1,
    "Qwen-Qwen2.5-7B-Instruct": 0.03,
    "ibm-granite-granite-3.3-2B-Instruct": 0.03,
    "GLM-4.6": 0.1,
    "deepseek-ai-DeepSeek-V3.1": 0.1,
    "microsoft-Phi-3.5-mini-instruct": 0.03,
    "Mistral-Small-3.2-24B-Instruct-2506": 0.075,
}
FORMS = [
    pytest.param(name, marks=[pytest.mark.slow] if number else [])
    for number, name in enumerate(MOST_AGAIN)
]


class Teller:
    """Executes plans by saying what it is told; the memory's decisions are those of a hybrid."""

    def __init__(self, end: int) -> None:
        self.script: list[int] = []
        self._end = end

    def execute(self, plan: StepPlan) -> StepResult:
        sampled = [self._next(row.sequence) for row in plan.rows if row.samples]
        return StepResult(sampled)

    def _next(self, sequence) -> Sampled:
        place = len(sequence.tokens) - sequence.num_prompt
        token = self.script[place] if place < len(self.script) else self._end
        return Sampled(token)


def hybrid_engine(teller: Teller) -> AsyncEngine:
    shape = CacheShape(
        grid=64,
        num_superpages=512,
        pages_per_superpage=4,
        states_per_superpage=2,
        max_running=4,
        max_blocks=CONTEXT // 64,
    )

    def build() -> Engine:
        scheduler = Scheduler(CacheManager(shape), token_budget=2048)
        return Engine(scheduler, teller.execute, vocab_size=VOCAB, max_seq_len=CONTEXT)

    return AsyncEngine(
        build,
        logits=lambda ids, rows: pytest.fail("nobody asks for logits"),
        replace=lambda model: None,
        pacing=Pacing(share=0.5, token_budget=2048),
        max_unfinished=8,
    )


@pytest.fixture(scope="module", params=FORMS)
def told(request) -> Iterator[tuple[Loopback, Teller]]:
    source = (TEMPLATES / f"{request.param}.jinja").read_text("utf-8")
    tokenizer = load_tokenizer(find_tokenizer(vocab="cl100k_base"))
    assert tokenizer is not None
    reply_format = ReplyFormat(
        reasoning=choose_reasoning(source, "any", tokenizer.special_ids),
        tool_format=choose_tool_format(source, "any"),
    )
    template = ChatTemplate(source, name=request.param, reply_format=reply_format)
    info = ModelInfo(
        name="hybrid", family="any", vocab_size=VOCAB, max_seq_len=CONTEXT, is_recurrent=True
    )
    teller = Teller(next(iter(tokenizer.eos_ids)))
    core = TextEngine(
        hybrid_engine(teller),
        info,
        tokenizer=tokenizer,
        template=template,
        reply_format=reply_format,
    )
    with serving(core) as running:
        yield running, teller


@pytest.mark.sample(2)
@pytest.mark.parametrize("agent", [Codex, ClaudeCode])
def test_a_session_of_thirty_turns(told, agent) -> None:
    running, teller = told
    session = agent()
    core = running.core
    has_thoughts = core.reply_format.reasoning and "<think>" in core.template.source
    num_read = num_again = known = 0
    for turn in range(NUM_TURNS):
        thoughts, said, call = session.reply(turn)
        text = said + (core.reply_format.tool_format.write([call]) if call else "")
        if has_thoughts:
            text = f"<think>\n{thoughts}\n</think>\n\n{text}"
        teller.script = core.tokenizer.encode(text)
        reply = running.client.post(session.path, json=session.body(), headers=session.headers)
        assert reply.status_code == 200, (turn, reply.text)
        lines = [line for line in reply.text.splitlines() if line.startswith("data: {")]
        events = [json.loads(line.removeprefix("data: ")) for line in lines]
        read, reused, written = session.take(events, turn)
        if turn:
            num_read += read
            num_again += max(known - reused, 0)
        known = read + written
    assert num_again < MOST_AGAIN[core.template.name] * num_read
