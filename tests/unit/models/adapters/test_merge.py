"""Merging an adapter gives what it gives beside the model."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from blazr import LLM
from blazr.core.errors import CheckpointError, ConfigError
from blazr.models.adapters.merge import RowsChange, StackedChange, StoredChange
from blazr.models.loading.convert import convert
from blazr.models.loading.load import load
from blazr.nn.device import resolve_device
from tests.support.adapters import projections, save_adapter
from tests.support.references import CASES, save_reference

pytest.importorskip("transformers")
HEAD = "base_model.model.lm_head.modules_to_save.weight"
EMBEDDING = "base_model.model.model.embed_tokens.modules_to_save.weight"
NORM = "base_model.model.model.norm.weight"


@pytest.mark.parametrize(
    "config",
    [{}, {"use_rslora": True}, {"use_dora": True}, {"rank_pattern": {"q_proj": 3}}],
    ids=["LoRA", "rsLoRA", "DoRA", "ranks"],
)
def test_merged_weights(config: dict[str, object], tmp_path: Path) -> None:
    model = save_reference("llama", tmp_path / "model")
    names = [*projections(model)] + ([] if config.get("use_dora") else ["model.embed_tokens"])
    merged = save_adapter(tmp_path / "adapter", model, names, config=config)
    made = convert(str(tmp_path / "model"), tmp_path / "out", merge_adapter=tmp_path / "adapter")
    found = load_file(made.path / "model.safetensors")
    for name, expected in merged.named_parameters():
        torch.testing.assert_close(found[name], expected.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", ["qwen2_moe", "gpt_oss"])
def test_merged_routers(case: str, tmp_path: Path) -> None:
    kind, changes = CASES[case]
    model = save_reference(kind, tmp_path / "model", changes=changes)
    names = [name for name, _ in model.named_modules() if name.endswith((".gate", ".router"))]
    merged = save_adapter(tmp_path / "adapter", model, names)
    made = convert(str(tmp_path / "model"), tmp_path / "out", merge_adapter=tmp_path / "adapter")
    found = load_file(made.path / "model.safetensors")
    for name in names:
        expected = merged.get_submodule(name).weight
        torch.testing.assert_close(found[f"{name}.weight"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore")  # PEFT asks transformers for old names
def test_matrices_that_lie_on_their_side(tmp_path: Path) -> None:
    """GPT-2's; that PEFT's change is (out, in) shows in no shape where they are square."""
    peft = pytest.importorskip("peft")
    model = save_reference("gpt2", tmp_path / "model")
    targets = ["c_attn", "c_proj", "c_fc"]
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=targets))
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter, 0, 0.2)
    adapted.save_pretrained(tmp_path / "adapter")
    made = convert(str(tmp_path / "model"), tmp_path / "out", merge_adapter=tmp_path / "adapter")
    found = load_file(made.path / "model.safetensors")
    merged = dict(adapted.merge_and_unload().named_parameters())
    assert {*found} == {*merged}
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, merged[name].detach(), rtol=1e-5, atol=1e-6)


def test_merging_comes_before_quantizing(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    model = save_reference("llama", tmp_path / "model", changes=sizes)
    merged = save_adapter(tmp_path / "adapter", model, [*projections(model)])
    merged.save_pretrained(tmp_path / "merged")
    first = convert(
        str(tmp_path / "model"),
        tmp_path / "first",
        quantize="q8_0",
        merge_adapter=tmp_path / "adapter",
    )
    second = convert(str(tmp_path / "merged"), tmp_path / "second", quantize="q8_0")
    one, other = (
        load(
            str(each.path), device=resolve_device("cpu"), dtype="float32"
        ).module.forward_sequences(torch.arange(8)[None])
        for each in (first, second)
    )
    torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2 * float(other.abs().max()))
    assert first.num_quantized == second.num_quantized > 0


def test_whole_tensors_take_the_place_of_the_model_s(tmp_path: Path) -> None:
    model = save_reference("llama", tmp_path / "model")
    head, norm = (torch.randn(each.weight.shape) for each in (model.lm_head, model.model.norm))

    def add_both(tensors: dict[str, Tensor]) -> None:
        tensors |= {HEAD: head, NORM: norm}

    save_adapter(tmp_path / "adapter", model, ["model.layers.0.mlp.up_proj"], tensors=add_both)
    made = convert(str(tmp_path / "model"), tmp_path / "out", merge_adapter=tmp_path / "adapter")
    found = load_file(made.path / "model.safetensors")
    assert torch.equal(found["lm_head.weight"], head)
    assert torch.equal(found["model.norm.weight"], norm)


@pytest.mark.parametrize("is_tied", [False, True])
def test_rows_of_some_tokens(tmp_path: Path, *, is_tied: bool) -> None:
    """PEFT's trainable_token_indices, of the embedding and of a head that is the same."""
    changes = {"tie_word_embeddings": is_tied}
    model = save_reference("llama", tmp_path / "model", changes=changes)
    numbers = torch.randn(3, 24)
    rows = {"base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta": numbers}
    save_adapter(
        tmp_path / "adapter",
        model,
        [*projections(model, "q_proj")],
        config={"trainable_token_indices": [30, 5, 52]},
        tensors=lambda tensors: tensors.update(rows),
    )
    made = convert(str(tmp_path / "model"), tmp_path / "out", merge_adapter=tmp_path / "adapter")
    found = load_file(made.path / "model.safetensors")
    expected = model.model.embed_tokens.weight.clone()
    expected[[30, 5, 52]] = numbers
    assert torch.equal(found["model.embed_tokens.weight"], expected)
    assert ("lm_head.weight" in found) is not is_tied
    if not is_tied:
        assert torch.equal(found["lm_head.weight"], model.lm_head.weight)
        return
    with LLM(str(tmp_path / "model")) as llm, pytest.raises(CheckpointError) as caught:
        llm.core.adapters.load("mine", tmp_path / "adapter")
    assert "blazr convert --merge-adapter" in caught.value.hint


def test_rows_are_replaced_a_tile_at_a_time() -> None:
    whole, other = torch.randn(9, 3), torch.randn(2, 3)
    change = RowsChange((7, 2), other)
    expected = whole.clone()
    expected[[7, 2]] = other
    parts = [slice(0, 3), slice(3, 8), slice(8, 9)]
    found = torch.cat([change.apply(part, whole[part]) for part in parts])
    assert torch.equal(found, expected)


def _with_parameter(name: str, rows: int, columns: int, rank: int) -> dict[str, object]:
    """Arguments of `save_adapter` for a change of one of PEFT's target_parameters."""
    module, _, leaf = name.rpartition(".")

    def add(tensors: dict[str, Tensor]) -> None:
        tensors[f"base_model.model.{module}.lora_A.weight"] = torch.ones(rank, columns)
        tensors[f"base_model.model.{module}.lora_B.weight"] = torch.ones(rows, rank)

    return {"config": {"target_parameters": [leaf]}, "tensors": add}


def test_more_numbers_than_the_rank_of_one_matrix_are_refused_as_in_serving(
    tmp_path: Path,
) -> None:
    """They were multiplied and added, with the scale of a smaller rank."""
    model = save_reference("llama", tmp_path / "model")
    name = "model.layers.0.self_attn.q_proj.weight"
    save_adapter(tmp_path / "adapter", model, [], rank=4, **_with_parameter(name, 24, 24, rank=8))
    words = "q_proj.weight is not of one matrix"
    with pytest.raises(CheckpointError, match=words):
        convert(str(tmp_path / "model"), tmp_path / "out", merge_adapter=tmp_path / "adapter")
    assert not (tmp_path / "out").exists()
    with LLM(str(tmp_path / "model")) as llm, pytest.raises(CheckpointError, match=words):
        llm.core.adapters.load("mine", tmp_path / "adapter")


_BOTH = ("experts.gate_up_proj", "experts.down_proj")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_apart", [True, False])
@pytest.mark.parametrize(
    ("family", "parameters"),
    [
        ("qwen2_moe", _BOTH),
        ("mixtral", _BOTH),
        ("gpt_oss", _BOTH),  # rows of gate and up in turns, on their sides
        ("llama4_text", _BOTH),  # on their sides
        ("granitemoe", _BOTH),
        ("deepseek_v3", _BOTH[:1]),
    ],
)
def test_experts_in_one_tensor(
    family: str, parameters: tuple[str, ...], tmp_path: Path, *, is_apart: bool
) -> None:
    """As PEFT changes them, and as serving does, whether files have them one by one or together."""
    peft = pytest.importorskip("peft")
    kind, changes = CASES[family]
    model = save_reference(kind, tmp_path / "model", changes=changes)
    if not is_apart:
        model.save_pretrained(tmp_path / "model", save_original_format=False)
    config = peft.LoraConfig(
        r=3, lora_alpha=6, target_modules=["o_proj"], target_parameters=[*parameters]
    )
    adapted = peft.get_peft_model(model, config)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter, 0, 0.2)
    adapted.save_pretrained(tmp_path / "adapter")
    made = convert(str(tmp_path / "model"), tmp_path / "out", merge_adapter=tmp_path / "adapter")
    ids = torch.arange(8)[None]
    with torch.inference_mode():
        expected = adapted.eval()(ids).logits[0]
        found = load(str(made.path), device=resolve_device("cpu"), dtype="float32").module
        scale = float(expected.abs().max())
        torch.testing.assert_close(
            found.forward_sequences(ids)[0], expected, rtol=1e-5, atol=1e-5 * scale
        )


def test_experts_one_by_one_merged_into_one_tensor(tmp_path: Path) -> None:
    """Some matrices of some experts, as PEFT has them where they are modules."""
    kind, changes = CASES["qwen2_moe"]
    model = save_reference(kind, tmp_path / "model", changes=changes)
    model.save_pretrained(tmp_path / "model", save_original_format=False)
    experts = model.model.layers[1].mlp.experts
    gate_up, down = experts.gate_up_proj.clone(), experts.down_proj.clone()
    inner = down.shape[-1]
    written: dict[str, Tensor] = {}
    for expert, name in ((0, "gate"), (3, "down"), (1, "up"), (1, "gate")):
        rows = {"gate": slice(None, inner), "up": slice(inner, None), "down": slice(None)}[name]
        part = (down if name == "down" else gate_up)[expert, rows]
        a, b = torch.randn(4, part.shape[1]), torch.randn(part.shape[0], 4)
        at = f"base_model.model.model.layers.1.mlp.experts.{expert}.{name}_proj"
        written |= {f"{at}.lora_A.weight": a, f"{at}.lora_B.weight": b}
        part += 2 * (b @ a)
    save_adapter(tmp_path / "adapter", model, [], tensors=lambda x: x.update(written))
    made = convert(str(tmp_path / "model"), tmp_path / "out", merge_adapter=tmp_path / "adapter")
    found = load_file(made.path / "model.safetensors")
    at = "model.layers.1.mlp.experts."
    torch.testing.assert_close(found[f"{at}gate_up_proj"], gate_up, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[f"{at}down_proj"], down, rtol=1e-5, atol=1e-5)


def test_a_stack_is_changed_a_tile_at_a_time() -> None:
    """Tiles end within matrices, and may hold several."""
    stack = torch.randn(4, 5, 3)
    left, right = torch.randn(5, 2), torch.randn(2, 3)
    change = StackedChange(5, {1: StoredChange(left, right), 3: StoredChange(left, 2 * right)})
    expected = stack.clone()
    expected[1] += left @ right
    expected[3] += 2 * left @ right
    rows = stack.flatten(0, 1)
    for step in (1, 3, 7, 20):
        parts = [slice(low, min(low + step, 20)) for low in range(0, 20, step)]
        found = torch.cat([change.apply(part, rows[part]) for part in parts])
        torch.testing.assert_close(found, expected.flatten(0, 1))


def test_experts_in_blocks_of_four_bits_cannot_be_merged(tmp_path: Path) -> None:
    """As GPT-OSS's files have them; the sum would be rounded to four bits, too."""
    kind, changes = CASES["gpt_oss"]
    sizes = {"hidden_size": 32, "intermediate_size": 32}
    model = save_reference(kind, tmp_path / "model", changes=changes | sizes)
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    for name in [name for name in tensors if re.search("experts.*proj$", name)]:
        count, columns, rows = tensors.pop(name).shape
        blocks = (count, rows, columns // 32)
        tensors[f"{name}_blocks"] = torch.zeros(*blocks, 16, dtype=torch.uint8)
        tensors[f"{name}_scales"] = torch.full(blocks, 120, dtype=torch.uint8)
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    name = "model.layers.0.mlp.experts.down_proj"
    about = _with_parameter(name, 32, 32, rank=4 * model.config.num_local_experts)
    save_adapter(tmp_path / "adapter", model, [], rank=4, **about)
    with pytest.raises(CheckpointError, match="cannot be merged") as caught:
        convert(str(tmp_path / "model"), tmp_path / "out", merge_adapter=tmp_path / "adapter")
    assert "--adapter" in caught.value.hint
    assert not (tmp_path / "out").exists()


def test_changes_of_a_shared_block_are_merged_once(tmp_path: Path) -> None:
    """PEFT saves them with each layer that uses it; the file has its tensors with the first."""
    kind, changes = CASES["zamba2"]
    model = save_reference(kind, tmp_path / "model", changes=changes)
    owner, other = (
        f"model.layers.{layer}.shared_transformer.feed_forward.down_proj" for layer in (1, 4)
    )
    assert model.get_submodule(owner).weight is model.get_submodule(other).weight

    def once_more(tensors: dict[str, Tensor], *, more: float) -> None:
        for name in [name for name in tensors if owner in name]:
            tensors[name.replace(owner, other)] = tensors[name] + more

    merged = save_adapter(
        tmp_path / "same", model, [owner], tensors=functools.partial(once_more, more=0.0)
    )
    save_adapter(
        tmp_path / "unlike", model, [owner], tensors=functools.partial(once_more, more=1.0)
    )
    made = convert(str(tmp_path / "model"), tmp_path / "out", merge_adapter=tmp_path / "same")
    found = load_file(made.path / "model.safetensors")[f"{owner}.weight"]
    torch.testing.assert_close(found, merged.get_submodule(owner).weight.data)
    with pytest.raises(CheckpointError, match="no matrix"):
        convert(str(tmp_path / "model"), tmp_path / "two", merge_adapter=tmp_path / "unlike")


def _with_a_head(model: nn.Module) -> Callable[[dict[str, Tensor]], None]:
    def add_head(tensors: dict[str, Tensor]) -> None:
        tensors[HEAD] = torch.ones(model.model.embed_tokens.weight.shape)

    return add_head


@pytest.mark.parametrize("is_whole", [False, True])
def test_what_is_changed_twice_is_refused(tmp_path: Path, *, is_whole: bool) -> None:
    """The last change was merged, or what two of them do not make together."""
    model = save_reference("llama", tmp_path / "model")
    names = [] if is_whole else ["model.layers.0.self_attn.q_proj"]

    def add_again(tensors: dict[str, Tensor]) -> None:
        if is_whole:
            tensors["base_model.model.model.layers.0.self_attn.q_proj.weight"] = torch.zeros(24, 24)
        for name in [*tensors]:
            tensors[name.replace("model.layers", "backbone.layers")] = tensors[name] + 1

    save_adapter(tmp_path / "adapter", model, names, tensors=add_again)
    with pytest.raises(CheckpointError, match="is changed twice"):
        convert(str(tmp_path / "model"), tmp_path / "out", merge_adapter=tmp_path / "adapter")


@pytest.mark.parametrize("is_changed", [False, True])
def test_an_embedding_of_its_own_is_refused_where_it_is_the_head(
    tmp_path: Path, *, is_changed: bool
) -> None:
    """PEFT trains a copy beside the head, which was changed along without a word."""
    tied = save_reference("llama", tmp_path / "model", changes={"tie_word_embeddings": True})
    embedding = tied.model.embed_tokens.weight + float(is_changed)
    save_adapter(
        tmp_path / "adapter",
        tied,
        [*projections(tied, "q_proj")],
        tensors=lambda tensors: tensors.update({EMBEDDING: embedding}),
    )

    def merge() -> Path:
        adapter = tmp_path / "adapter"
        return convert(str(tmp_path / "model"), tmp_path / "out", merge_adapter=adapter).path

    if is_changed:
        with pytest.raises(CheckpointError, match=r"embed_tokens\.weight cannot be merged"):
            merge()
        assert not (tmp_path / "out").exists()
    else:
        found = load_file(merge() / "model.safetensors")
        assert torch.equal(found["model.embed_tokens.weight"], embedding)


def test_what_cannot_be_merged_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    tied = save_reference("llama", tmp_path / "model", changes={"tie_word_embeddings": True})
    wide = save_reference("llama", tmp_path / "wide", changes={"intermediate_size": 56})
    save_adapter(tmp_path / "embedding", tied, ["model.embed_tokens"])
    save_adapter(
        tmp_path / "head", tied, [*projections(tied, "q_proj")], tensors=_with_a_head(tied)
    )
    save_adapter(tmp_path / "low rank", tied, ["lm_head"])
    save_adapter(tmp_path / "other", wide, [*projections(wide, "mlp")])
    for name, words in (
        ("embedding", "cannot be merged"),
        ("head", "head is its embedding"),
        ("low rank", "head is its embedding"),
        ("other", "not of this model"),
        ("nothing", "is no adapter"),
    ):
        with pytest.raises(CheckpointError, match=words):
            convert(str(tmp_path / "model"), tmp_path / "out", merge_adapter=tmp_path / name)
        assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="safetensors alone"):
        convert(
            str(tmp_path / "model"), tmp_path / "out.gguf", merge_adapter=tmp_path / "embedding"
        )
