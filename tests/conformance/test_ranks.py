"""A law of every mixer, feed-forward and weight: two ranks compute what one process does."""

from __future__ import annotations

import lzma
from contextlib import ExitStack
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import torch

from blazr.core.errors import ConfigError
from blazr.engine.ranks.orders import load_part
from blazr.models.loading.load import load
from blazr.models.loading.parts import part_of_config, part_of_weight
from blazr.models.loading.plan import plan_model
from blazr.nn.device import resolve_device
from blazr.nn.layers.base import NormConfig
from blazr.nn.layers.embedding import LearnedPositionsConfig
from blazr.nn.layers.ranks import Columns, Rank, Rows
from blazr.nn.operands.floats import ScaledFloats
from blazr.nn.quant import QUANTIZERS
from blazr.nn.quant.gguf import GGML_TYPES
from blazr.nn.quant.packed import PackedWeight
from blazr.nn.quant.weight import FloatWeight, GgufWeight, PlainWeight, stored_weights
from tests.support import references, tiny
from tests.support.examples import FEED_FORWARD_EXAMPLES, MIXER_EXAMPLES
from tests.support.networks import Lab
from tests.support.quantized import KINDS, quantize_directory
from tests.support.ranks import (
    VOCAB,
    build,
    build_stage,
    config_of,
    even_mixer,
    logits_in_threads,
    network,
    part_of,
    stage_of,
    two_ranks,
)
from tests.support.seeds import run_seed
from tests.support.tiny import Tiny
from tests.support.tolerances import error, sensitivity
from tests.support.without_kernels import without_kernels

pytestmark = pytest.mark.sample(3)

# Of the greatest logit; what is added up in another order is rounded otherwise.
TOLERANCE = 1e-5
CPU = resolve_device("cpu")
GOLDEN = Path(__file__).resolve().parent.parent / "golden"
CONVERTED = GOLDEN / "gguf" / "converted"
CASES = sorted(path.name for path in (GOLDEN / "oxidizr").iterdir() if path.is_dir())
# Of recorded checkpoints and of quantized ones; the others are slow.
FEW = {"hf_llama3_tied", "hybrid_bf16", "mamba3_mimo", "mla_moe", "awq", "gptq ordered",
       "fp8 per block", "bitsandbytes nf4"}  # fmt: skip
PACKED = Tiny(
    layers=("StandardTransformer", "StandardTransformer"), hidden_size=256, num_heads=8,
    head_dim=64, intermediate_size=512, vocab_size=53, max_seq_len=1024,
)  # fmt: skip
# To find scales of q4_k takes seconds.
SOME_QUANTIZERS = [
    pytest.param(name, marks=[pytest.mark.slow] * (name == "q4_k")) for name in QUANTIZERS
]
LAYERS = list(zip(sorted(MIXER_EXAMPLES), cycle([None, *FEED_FORWARD_EXAMPLES]), strict=False))


@pytest.fixture(scope="module")
def ranks():
    with two_ranks() as processes:
        yield processes


@pytest.fixture(scope="module")
def exact_ranks():
    """Without kernels, which round what they multiply with packed weights."""
    with ExitStack() as both:
        with without_kernels():
            processes = both.enter_context(two_ranks())
        yield processes


def assert_close(found, expected, whole, ids, tolerance):
    """As close as the tolerance says, or as float32 loses in this network anyway."""
    missed = error(found, expected)
    if missed > tolerance * float(expected.abs().max()):
        assert tolerance, "not the same to the bit"
        inputs = torch.tensor([ids])
        with torch.inference_mode():
            assert missed <= sensitivity(whole, lambda model: model.forward_sequences(inputs)[0])


def compare(ranks, whole, part, *, tolerance=TOLERANCE):
    """Logits at every position however computed, and greedy replies in company.

    Without a tolerance they are the same to the bit.
    """
    small = {"max_running": 4, "tokens": 1024, "replay": False}
    alone, together = Lab(whole, **small), Lab(part, processes=ranks, **small)
    ids = torch.randint(min(VOCAB, whole.config.vocab_size), (150,)).tolist()
    expected = alone.runner.logits(ids)
    for cuts in ((), (1, 63, 64, 65, 70, 71, 72, 128)):
        assert_close(together.runner.logits(ids, cuts), expected, whole, ids, tolerance)
    replies = []
    for lab in (alone, together):
        asked = [lab.ask(ids[:size], max_tokens=8, n=n) for size, n in ((3, 1), (70, 2), (130, 1))]
        lab.run()
        replies.append([lab.answer(each) for each in asked])
    for (tokens, logits), (others, other_logits) in zip(*replies, strict=True):
        assert tokens == others
        assert_close(other_logits, logits, whole, ids, tolerance)
    together.runner.storage.close()


def compare_random(ranks, config, seed=0):
    """The same of a network with random weights."""
    seed = run_seed(seed)
    ranks.tell(build, config, seed)
    whole = network(config, seed)
    compare(ranks, whole, part_of(whole, ranks.ranks))


def compare_loaded(ranks, path, *, tolerance=TOLERANCE, **how):
    """The same of a model that both ranks load.

    Returns:
        Bytes of weights that this rank has, and that there are.
    """
    how = {"dtype": "float32", **how}
    whole = load(str(path), device=CPU, **{**how, "in_stages": False}).module
    ranks.tell(load_part, str(path), {**how, "free_bytes": CPU.free_bytes()})
    part = load(str(path), device=CPU, ranks=ranks.ranks, **how).module
    compare(ranks, whole, part, tolerance=tolerance)
    return (sum(w.nbytes for w in stored_weights(each)) for each in (part, whole))


def _slow_where_the_like_is_tried():
    """The layers, as slow tests where mixers and feed-forwards like theirs come before."""
    tried = set()
    for mixer, feed in LAYERS:
        halves = {type(MIXER_EXAMPLES[mixer]), feed}
        yield pytest.param(mixer, feed, marks=[pytest.mark.slow] * (halves <= tried))
        tried |= halves


@pytest.mark.parametrize(("mixer", "feed"), [*_slow_where_the_like_is_tried()])
def test_a_layer_over_two_ranks(ranks, mixer, feed):
    """Each mixer, with one after the other of the feed-forwards behind it."""
    mixers = [even_mixer(mixer)] * 2
    compare_random(ranks, config_of(mixers, feed and FEED_FORWARD_EXAMPLES[feed]))


@pytest.mark.parametrize(
    ("mixer", "count"),
    [
        ("gqa", 4),
        ("gqa_capped", 4),
        ("gqa_nope", 3),
        ("mamba1_normed", 5),
        ("mamba2", 6),
        ("mamba2_groups", 4),
        ("mamba3", 3),
        ("mamba3_mimo", 4),
        ("gated_delta", 4),
        ("kimi_delta", 3),
        ("mla", 3),
        ("short_conv", 8),
    ],
)
def test_more_ranks(mixer, count):
    """Also more than there are groups, or heads of keys, which several then share."""
    config = config_of([MIXER_EXAMPLES[mixer]] * 2, FEED_FORWARD_EXAMPLES["mlp"])
    whole = network(config, run_seed())
    ids = torch.randint(VOCAB, (2, 70))
    with torch.inference_mode():
        expected = whole.forward_sequences(ids)
    for found in logits_in_threads(whole, ids, count):
        assert_close(found[0], expected[0], whole, ids[0].tolist(), TOLERANCE)


def test_experts_on_latent_channels(ranks):
    """What leads back from them is whole on every rank, and its bias on one."""
    feed = replace(FEED_FORWARD_EXAMPLES["moe"], latent_size=10, dense_bias=True)
    compare_random(ranks, config_of([even_mixer("gqa")], feed))


@pytest.mark.parametrize("shares_norm", [True, False])
def test_both_halves_of_a_layer_side_by_side(ranks, shares_norm):
    """As in Phi and Command R, through LayerNorms, and with a bias of the scores."""
    config = config_of([even_mixer("gqa")] * 2, FEED_FORWARD_EXAMPLES["mlp"], head_bias=True)
    norm = NormConfig(config.hidden_size, 1e-5, "layer", has_bias=False)
    layers = tuple(
        replace(
            layer,
            is_parallel=True,
            mixer_norm=norm,
            feed_forward_norm=None if shares_norm else norm,
        )
        for layer in config.layers
    )
    compare_random(ranks, replace(config, layers=layers))


@pytest.mark.parametrize("is_tied", [False, True])
def test_learned_positions_and_a_narrow_embedding(ranks, is_tied):
    """As in OPT 350M: the table and both projections are whole on every rank."""
    config = config_of([even_mixer("gqa_nope")] * 2, FEED_FORWARD_EXAMPLES["mlp"])
    table = LearnedPositionsConfig(
        count=config.max_seq_len, hidden_size=config.hidden_size, first=2
    )
    more = {"positions": table, "embedding_size": 20, "tie_word_embeddings": is_tied}
    compare_random(ranks, replace(config, **more))


@pytest.mark.parametrize("in_stages", [False, True])
@pytest.mark.parametrize("case", ["gpt2", "opt behind", "gpt_bigcode", "gpt_neo", "codegen"])
def test_relatives_of_gpt2_are_cut_as_they_load(ranks, case, in_stages, tmp_path):
    """Some have queries, keys and values in one matrix, which may lie on its side."""
    pytest.importorskip("transformers")
    kind, changes = references.CASES[case]
    references.save_reference(kind, tmp_path, changes={**changes, "num_hidden_layers": 3})
    compare_loaded(ranks, tmp_path, in_stages=in_stages)


def test_every_feed_forward_is_tried():
    """There are no more of them than mixers."""
    assert {feed for _, feed in LAYERS} >= set(FEED_FORWARD_EXAMPLES)


def test_a_tied_head_and_multipliers(ranks):
    """The embedding's rows are the head's, whoever has them."""
    mixers = [even_mixer("gqa"), even_mixer("mamba2")]
    config = config_of(
        mixers,
        FEED_FORWARD_EXAMPLES["mlp"],
        tie_word_embeddings=True,
        embedding_multiplier=1.5,
        logits_scaling=2.0,
        logit_softcap=9.0,
    )
    compare_random(ranks, config)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.slow] * (case not in FEW)) for case in CASES],
)
def test_a_recorded_checkpoint(ranks, case):
    """Both load their part of its files."""
    held, there_are = compare_loaded(ranks, GOLDEN / "oxidizr" / case)
    assert held < 0.75 * there_are


@pytest.mark.parametrize("mix", range(0, len(LAYERS), 6))
def test_layers_in_stages(ranks, mix):
    """Six mixers, three on each rank: the same to the bit."""
    names = [name for name, _ in LAYERS[mix : mix + 6] if name != "shared_block"]
    mixers = [MIXER_EXAMPLES[name] for name in names]
    config = config_of(mixers, [*FEED_FORWARD_EXAMPLES.values()][mix // 6])
    seed = run_seed()
    ranks.tell(build_stage, config, seed)
    whole = network(config, seed)
    compare(ranks, whole, stage_of(whole, ranks.ranks), tolerance=0)


@pytest.mark.parametrize("case", ["hybrid_nano", "hybrid_bf16"])
def test_a_recorded_checkpoint_in_stages(ranks, case):
    """Each rank loads its layers."""
    compare_loaded(ranks, GOLDEN / "oxidizr" / case, tolerance=0, in_stages=True)


def test_layers_that_share_are_not_cut_in_stages():
    """The error says what to do instead."""
    config = config_of([MIXER_EXAMPLES["shared_block"]], None)
    with pytest.raises(ConfigError, match="share parameters"):
        config.as_stage(Rank(0, 2))
    with pytest.raises(ConfigError, match="cannot be cut in 3"):
        config_of([MIXER_EXAMPLES["gqa"]] * 2, None).as_stage(Rank(0, 3))


@pytest.mark.usefixtures("reference_ops")
@pytest.mark.parametrize("name", SOME_QUANTIZERS)
def test_weights_that_are_quantized_while_loading(exact_ranks, name, tmp_path):
    """Blocks are not parted."""
    path = tiny.save(PACKED, tmp_path, layout="hf")
    held, there_are = compare_loaded(exact_ranks, path, quantize=name)
    assert held < 0.6 * there_are


@pytest.mark.parametrize("name", SOME_QUANTIZERS)
def test_packed_weights_by_kernels(ranks, name, tmp_path):
    """They round their inputs; two ranks lose no more by it than one process does."""
    path = str(tiny.save(PACKED, tmp_path, layout="hf"))
    how = {"dtype": "float32", "quantize": name}
    ids = torch.randint(VOCAB, (150,)).tolist()
    with without_kernels():
        truth = Lab(load(path, device=CPU, **how).module).runner.logits(ids)
    alone = Lab(load(path, device=CPU, **how).module).runner.logits(ids)
    ranks.tell(load_part, path, {**how, "free_bytes": CPU.free_bytes()})
    part = load(path, device=CPU, ranks=ranks.ranks, **how).module
    assert isinstance(part.layers[0].mixer.o_proj.weight, PackedWeight)
    found = Lab(part, processes=ranks).runner.logits(ids)
    assert error(found, truth) < 3 * error(alone, truth)


@pytest.mark.usefixtures("reference_ops")
@pytest.mark.parametrize("name", ["q4_0", "q8_0"])
def test_a_file_of_blocks(exact_ranks, name):
    """A GGUF file, whose blocks are parted at their edges or become plain numbers."""
    compare_loaded(exact_ranks, GOLDEN / "gguf" / f"stories260K-{name}.gguf")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in CONVERTED.glob("*.xz")))
def test_every_architecture_of_gguf(ranks, name, tmp_path):
    """Joined, moved and reordered tensors are parted behind all that."""
    path = tmp_path / name.removesuffix(".xz")
    path.write_bytes(lzma.decompress((CONVERTED / name).read_bytes()))
    try:
        part_of_config(plan_model(str(path)).derivation.config, ranks.ranks.rank)
    except ConfigError as refusal:
        pytest.skip(str(refusal))
    compare_loaded(ranks, path)


@pytest.mark.usefixtures("reference_ops")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in FEW)) for name in KINDS]
)
def test_a_quantized_checkpoint(exact_ranks, name, tmp_path):
    """Each kind of it."""
    source = tiny.save(PACKED, tmp_path / "source", layout="hf")
    quantize_directory(source, name, tmp_path / "q", tmp_path / "p")
    compare_loaded(exact_ranks, tmp_path / "q")


@pytest.mark.parametrize("name", GGML_TYPES)
def test_parts_of_blocks(name):
    """Their numbers are those of the whole, to the bit, wherever it is cut."""
    kind = GGML_TYPES[name]
    rows, columns = 48, 4 * kind.length
    content = np.random.default_rng(run_seed()).integers(
        0, 256, (rows, kind.row_bytes(columns)), dtype=np.uint8
    )
    whole = GgufWeight(torch.from_numpy(content), kind, torch.float32)
    numbers = whole.dequantize(torch.float32)
    halves = (range(columns // 4), range(columns // 2, columns))
    odd = (range(kind.length // 2 or 1, columns - 1),)
    for held, expected in (
        (Rows((range(3, 16), range(30, 48))), torch.cat((numbers[3:16], numbers[30:48]))),
        (Columns(halves), torch.cat([numbers[:, run.start : run.stop] for run in halves], 1)),
        (Columns(odd), numbers[:, odd[0].start : odd[0].stop]),
    ):
        part = part_of_weight(whole, held)
        assert torch.equal(part.dequantize(torch.float32).nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize("has_pairs", [False, True])
@pytest.mark.parametrize("block", [(1, 16), (1, 100), (16, 32), (60, 100)])
def test_parts_of_floats(block, has_pairs):
    """They are floats, too, to the bit, unless columns are cut within a block."""
    rows, columns = 60, 100
    scales = torch.rand(-(-rows // block[0]), -(-columns // block[1]))
    numbers = torch.randn(rows, columns).to(torch.float8_e4m3fn)
    if has_pairs:
        numbers = torch.randint(256, (rows, columns // 2), dtype=torch.uint8)
    whole = FloatWeight(
        ScaledFloats(numbers, scales, block, torch.tensor([1.5])), "floats", torch.float32
    )
    there = whole.dequantize(torch.float32)
    for held, expected, is_kept in (
        (Rows((range(3, 16), range(32, 48))), torch.cat((there[3:16], there[32:48])), True),
        (Rows((range(48, 60),)), there[48:], True),
        (Columns((range(32), range(64, 96))), torch.cat((there[:, :32], there[:, 64:96]), 1), True),
        (Columns((range(64, 100),)), there[:, 64:], True),
        (Columns((range(8, 24),)), there[:, 8:24], block[1] == 100),
        (Columns((range(32, 50),)), there[:, 32:50], block[1] == 100),
    ):
        part = part_of_weight(whole, held)
        assert torch.equal(part.dequantize(torch.float32), expected)
        assert isinstance(part, FloatWeight if is_kept else PlainWeight)
        assert part.shape == expected.shape
        if isinstance(part, FloatWeight):  # in memory of its own
            assert part.operand.numbers.untyped_storage().nbytes() == part.operand.numbers.nbytes


@pytest.mark.parametrize("mixer", sorted(MIXER_EXAMPLES))
@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_parts_are_the_whole(mixer, count):
    """Every row and column is on a rank, and a network that cannot be cut says how it can."""
    config = config_of([MIXER_EXAMPLES[mixer]], FEED_FORWARD_EXAMPLES["mlp"])
    try:
        found = [part_of_config(config, Rank(number, count)) for number in range(count)]
    except ConfigError as error:
        refusal = error
    else:
        refusal = None
    if refusal is not None:
        assert f"{count} ranks" in refusal.message
        works = [int(each) for each in refusal.hint.removeprefix("--tp ").split(", ")]
        assert count not in works
        for other in works:
            part_of_config(config, Rank(other - 1, other))
        return
    embedding = [parts["embed_tokens"].runs[0] for _, parts in found]
    assert [row for run in embedding for row in run] == list(range(VOCAB))
    inner = [parts["layers.0.feed_forward.down_proj"].runs[0] for _, parts in found]
    assert [column for run in inner for column in run] == list(range(36))
    assert all(replace(config, layers=part.layers, rank=part.rank) == part for part, _ in found)


@pytest.mark.parametrize("name", ["gemma3n_text", "gemma4_text", "gemma4_text experts"])
def test_keys_of_other_layers_and_vectors_of_tokens_over_two_ranks(ranks, name, tmp_path):
    pytest.importorskip("transformers", reason="it makes the model")
    kind, changes = references.CASES[name]
    dense = {"activation_sparsity_pattern": [0.0] * 4} if kind == "gemma3n_text" else {}
    references.save_reference(kind, tmp_path, changes=changes | dense)
    compare_loaded(ranks, tmp_path)


def test_channels_that_are_compared_with_each_other_are_not_cut(tmp_path):
    pytest.importorskip("transformers", reason="it makes the model")
    kind, changes = references.CASES["gemma3n_text"]
    references.save_reference(kind, tmp_path, changes=changes)
    config = plan_model(str(tmp_path)).derivation.config
    with pytest.raises(ConfigError, match="compared with each other are not cut"):
        part_of_config(config, Rank(0, 2))
