"""Small networks of every layer mix in memory, and an engine over them without thread or clock."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from blazr.engine.cache.arena import ItemClass
from blazr.engine.cache.manager import CacheManager, CacheShape
from blazr.engine.cache.storage import plan_layout
from blazr.engine.engine import Engine
from blazr.engine.outputs import FinishReason
from blazr.engine.request import Request
from blazr.engine.runner import ModelRunner
from blazr.engine.sampling_params import SamplingParams
from blazr.engine.scheduler import Scheduler
from blazr.models.causal_lm import CausalLM
from blazr.models.config import ModelConfig
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import FeedForwardConfig, MixerConfig
from blazr.nn.layers.cache_spec import GRID
from blazr.nn.layers.decoder_layer import LayerConfig
from blazr.nn.layers.mamba1 import Mamba1Config
from blazr.nn.layers.mamba2 import Mamba2Config
from blazr.nn.layers.mamba3 import Mamba3Config
from blazr.nn.layers.mla import DeepseekMlaConfig, MlaConfig
from blazr.nn.layers.mlp import MlpConfig
from blazr.nn.layers.moe import MoeConfig
from blazr.nn.layers.norm import NormConfig
from blazr.nn.layers.rope import RopeConfig, RopeScaling
from blazr.nn.ops.moe import ExpertGroups

HIDDEN, VOCAB, CONTEXT = 24, 53, 1024
NAN_BYTE = 0xFF

MIXER_EXAMPLES: dict[str, MixerConfig] = {
    "gqa": AttentionConfig(
        hidden_size=HIDDEN, num_heads=4, num_kv_heads=2, head_dim=6, rope=RopeConfig(6)
    ),
    "gqa_window": AttentionConfig(
        hidden_size=HIDDEN,
        num_heads=3,
        num_kv_heads=1,
        head_dim=8,
        rope=RopeConfig(8, 500.0),
        qkv_bias=True,
        qk_norm=True,
        sliding_window=37,
    ),
    "gqa_capped": AttentionConfig(
        hidden_size=HIDDEN,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        rope=RopeConfig(5, interleaved=True),
        qk_norm=True,
        qk_norm_all_heads=True,
        norm_unit_offset=True,
        o_bias=True,
        sliding_window=70,
        attention_multiplier=0.5,
        attn_logit_softcap=2.0,
    ),
    "gqa_sinks": AttentionConfig(
        hidden_size=HIDDEN,
        num_heads=6,
        num_kv_heads=3,
        head_dim=4,
        rope=RopeConfig(4, 1000.0, RopeScaling(kind="yarn", factor=4.0, original_max_seq_len=32)),
        sliding_window=41,
        sinks=True,
    ),
    "gqa_nope": AttentionConfig(
        hidden_size=HIDDEN, num_heads=3, num_kv_heads=3, head_dim=6, rope=None, fused_qkv=True
    ),
    "gqa_long": AttentionConfig(
        hidden_size=HIDDEN,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        rope=RopeConfig(
            4,
            scaling=RopeScaling(
                kind="longrope",
                original_max_seq_len=100,
                factors=(1.0, 1.5),
                long_factors=(2.0, 7.0),
            ),
        ),
    ),
    "gqa_dynamic": AttentionConfig(
        hidden_size=HIDDEN,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        rope=RopeConfig(
            4, scaling=RopeScaling(kind="dynamic", factor=3.0, original_max_seq_len=90)
        ),
    ),
    "mla_deepseek": DeepseekMlaConfig(
        hidden_size=HIDDEN,
        num_heads=3,
        head_dim=8,
        rope_dim=4,
        kv_latent=10,
        q_latent=14,
        rope=RopeConfig(4, interleaved=True),
        v_head_dim=6,
        bias=True,
        attention_multiplier=0.4,
    ),
    "mla_deepseek_lite": DeepseekMlaConfig(
        hidden_size=HIDDEN,
        num_heads=2,
        head_dim=6,
        rope_dim=4,
        kv_latent=9,
        q_latent=None,
        rope=RopeConfig(4),
        v_head_dim=7,
        attention_multiplier=0.3,
    ),
    "mla": MlaConfig(
        hidden_size=HIDDEN,
        num_heads=3,
        head_dim=8,
        rope_dim=4,
        kv_latent=10,
        q_latent=14,
        rope=RopeConfig(4),
    ),
    "mamba2": Mamba2Config(hidden_size=HIDDEN, num_heads=6, head_dim=8, state_size=5, num_groups=2),
    "mamba2_wide": Mamba2Config(hidden_size=HIDDEN, num_heads=4, head_dim=64, state_size=128),
    "mamba2_odd": Mamba2Config(
        hidden_size=HIDDEN, num_heads=5, head_dim=7, state_size=19, conv_kernel=3
    ),
    "mamba3": Mamba3Config(hidden_size=HIDDEN, num_heads=6, head_dim=8, state_size=4),
    "mamba3_mimo": Mamba3Config(
        hidden_size=HIDDEN,
        num_heads=4,
        head_dim=8,
        state_size=5,
        num_groups=2,
        use_conv=True,
        complex_rope=False,
        mimo_rank=2,
        conv_kernel=3,
    ),
    "mamba1": Mamba1Config(hidden_size=HIDDEN, inner_size=32, state_size=4, dt_rank=3),
    "mamba1_oxidizr": Mamba1Config(
        hidden_size=HIDDEN, inner_size=48, state_size=16, dt_rank=48, variant="oxidizr"
    ),
}

FEED_FORWARD_EXAMPLES: dict[str, FeedForwardConfig] = {
    "mlp": MlpConfig(hidden_size=HIDDEN, intermediate_size=36),
    "gelu": MlpConfig(
        hidden_size=HIDDEN,
        intermediate_size=36,
        activation="gelu_tanh",
        bias=True,
        fused_gate_up=True,
    ),
    "plain": MlpConfig(hidden_size=HIDDEN, intermediate_size=36, gated=False),
    "clamped": MoeConfig(
        hidden_size=HIDDEN,
        intermediate_size=20,
        num_experts=5,
        experts_per_token=2,
        fused_gate_up="interleaved",
        router_bias=True,
        expert_bias=True,
        swiglu_limit=7.0,
        swiglu_alpha=1.702,
    ),
    "grouped": MoeConfig(
        hidden_size=HIDDEN,
        intermediate_size=20,
        num_experts=6,
        experts_per_token=2,
        shared_expert=True,
        shared_intermediate_size=14,
        shared_expert_gate=True,
        scoring="sigmoid",
        routed_scaling_factor=1.5,
        groups=ExpertGroups(3, 2, judged_by=2),
        correction_bias=True,
    ),
    "moe": MoeConfig(
        hidden_size=HIDDEN,
        intermediate_size=20,
        num_experts=5,
        experts_per_token=2,
        shared_expert=True,
    ),
}

MIXES: dict[str, tuple[str, ...]] = {
    "pure mamba1": ("mamba1", "mamba1"),
    "pure mamba2": ("mamba2", "mamba2"),
    "pure mamba3": ("mamba3", "mamba3_mimo"),
    "mla and experts": ("mla+moe", "mla+moe"),
    "mla and mlp": ("mla+mlp", "mla+mlp"),
    "gqa and mlp": ("gqa+mlp", "gqa_window+mlp"),
    "caps, sinks and odd experts": ("gqa_capped+gelu", "gqa_sinks+clamped", "gqa_nope+plain"),
    "deepseek": ("mla_deepseek_lite+mlp", "mla_deepseek+grouped"),
    "hybrid": ("mamba2", "mla+moe", "mamba2", "gqa+mlp"),
    "hybrid of all": ("mamba1", "gqa+moe", "mamba3_mimo", "mla+mlp", "mamba2", "mamba3"),
}
# Long sequences are rotated otherwise from their first token on: they share prefixes with few.
LENGTH_MIXES: dict[str, tuple[str, ...]] = {
    "turned by length": ("gqa_long+mlp", "gqa_dynamic+mlp"),
}


def build_network(mix: Sequence[str], *, seed: int = 0, std: float = 0.35) -> CausalLM:
    """A network of these layers (``mixer`` or ``mixer+feed_forward``) with random weights."""
    torch.manual_seed(seed)
    rms, layer = NormConfig(HIDDEN, 1e-5), NormConfig(HIDDEN, 1e-6, "layer")
    layers = []
    for kind in mix:
        mixer, _, feed = kind.partition("+")
        layers.append(
            LayerConfig(
                mixer=MIXER_EXAMPLES[mixer],
                mixer_norm=layer if mixer in {"mamba2", "mamba3"} else rms,
                feed_forward=FEED_FORWARD_EXAMPLES[feed] if feed else None,
                feed_forward_norm=rms if feed else None,
            )
        )
    config = ModelConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        max_seq_len=CONTEXT,
        layers=tuple(layers),
        final_norm=rms,
    )
    model = CausalLM(config)
    for name, parameter in model.named_parameters():
        spread = 1.0 if "embed" in name or name.endswith("norm.weight") else std
        torch.nn.init.normal_(parameter, 0.0, spread)
    return model.eval().requires_grad_(requires_grad=False)


class Lab:
    """An engine in the open: every step is asked for, every row of logits is kept.

    Memory that nobody owns is filled with NaN, so that reading it cannot go unnoticed.

    Args:
        model: The network.
        max_running: Sequences at once.
        tokens: Room for this many tokens, and a few recurrent states.
        budget: Tokens per step.
        prefix_cache: Whether prefixes are reused.
    """

    def __init__(
        self,
        model: CausalLM,
        *,
        max_running: int = 16,
        tokens: int = 16 * CONTEXT,
        budget: int = 256,
        prefix_cache: bool = True,
    ) -> None:
        specs = [layer.mixer.cache_spec(torch.float32) for layer in model.config.layers]
        layout = plan_layout(specs)
        pages, states = layout.pages_per_superpage, layout.states_per_superpage
        superpages = 2 + (-(-tokens // GRID // pages) if pages else 0)
        superpages += -(-(2 * max_running + 9) // states) if states else 0
        shape = CacheShape(
            grid=GRID,
            num_superpages=superpages,
            pages_per_superpage=pages,
            states_per_superpage=states,
            max_running=max_running,
            max_blocks=CONTEXT // GRID,
        )
        self.memory = CacheManager(shape, prefix_cache=prefix_cache)
        self.runner = ModelRunner(model, layout, shape)
        self.scheduler = Scheduler(self.memory, token_budget=budget)
        self.engine = Engine(
            self.scheduler,
            lambda plan: self.runner.execute(plan, self.memory),
            vocab_size=VOCAB,
            max_seq_len=CONTEXT,
            length_class=model.config.length_class,
        )
        self.logits: dict[tuple[int, int], list[Tensor]] = {}
        self.tokens: dict[tuple[int, int], list[int]] = {}
        self.reasons: dict[tuple[int, int], FinishReason] = {}
        self.errors: dict[tuple[int, int], str | None] = {}
        self.cached: dict[int, int] = {}
        self._ids = 0
        self._poison()
        self._record()

    def ask(self, prompt: Sequence[int], *, max_tokens: int = 12, **params: object) -> int:
        """Queue a greedy request and return its id."""
        self._ids += 1
        sampling = SamplingParams(**{"temperature": 0, "max_tokens": max_tokens, **params})  # type: ignore[arg-type]
        request = Request(prompt_ids=tuple(prompt), params=sampling)
        self.engine.add(request, request_id=self._ids, now=0.0, seed=7)
        return self._ids

    def step(self, prefill_budget: int | None = None) -> None:
        """One step of the engine."""
        self.take(self.engine.step(0.0, prefill_budget))

    def run(self) -> None:
        """Steps until nothing is left to do."""
        while self.engine.has_work():
            self.step()

    def take(self, outputs: Sequence[object]) -> None:
        """Collect outputs."""
        for output in outputs:
            key = (output.request_id, output.index)
            self.tokens.setdefault(key, []).extend(output.token_ids)
            self.cached[output.request_id] = output.num_cached_tokens
            if output.finish_reason is not None:
                self.reasons[key] = output.finish_reason
                self.errors[key] = output.error

    def answer(self, request_id: int, index: int = 0) -> tuple[list[int], Tensor]:
        """Tokens and the logits they were chosen from, (tokens, V)."""
        key = (request_id, index)
        assert self.errors[key] is None, self.errors[key]
        return self.tokens[key], torch.stack(self.logits[key])

    def _poison(self) -> None:
        storage, arena, memory = self.runner.storage, self.memory.arena, self.memory
        release, release_all = arena.release, memory.release
        shape = memory.shape
        storage.clear_pages(range(shape.num_superpages * shape.pages_per_superpage), NAN_BYTE)
        storage.clear_states(range(shape.num_superpages * shape.states_per_superpage), NAN_BYTE)
        storage.clear_states([0])

        def poisoning_release(cls: ItemClass, item: int) -> bool:
            is_free = release(cls, item)
            if is_free:
                clear = storage.clear_pages if cls is ItemClass.PAGE else storage.clear_states
                clear([item], NAN_BYTE)
            return is_free

        def poisoning_release_all(sequence, *, publish=True):
            run_slot = sequence.run_slot
            release_all(sequence, publish=publish)
            for cache in storage.layers:
                for tensor in cache.live.values():
                    if run_slot is not None:
                        tensor[run_slot] = float("nan")

        arena.release = poisoning_release  # type: ignore[method-assign]
        memory.release = poisoning_release_all  # type: ignore[method-assign]

    def _record(self) -> None:
        sample = self.runner.sampler.sample

        def recording_sample(logits, sequences):
            for row, sequence in zip(logits, sequences, strict=True):
                key = (sequence.request_id, sequence.index)
                self.logits.setdefault(key, []).append(row.clone())
            return sample(logits, sequences)

        self.runner.sampler.sample = recording_sample  # type: ignore[method-assign]
