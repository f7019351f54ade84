"""GGUF files of each architecture compute what the same weights do in another layout."""

import json
import lzma
import math
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from blazr.bench.reference.open import open_reference
from blazr.core.errors import BlazrError, CheckpointError, ConfigError, ShapeError
from blazr.models.causal_lm import CausalLM, ModelConfig
from blazr.models.checkpoint.base import Checkpoint, NumberInfo, TensorInfo
from blazr.models.checkpoint.gguf import read_header
from blazr.models.checkpoint.open import open_checkpoint
from blazr.models.families.gguf.architectures import ARCHITECTURES, gguf_names
from blazr.models.loading.convert import convert
from blazr.models.loading.describe import describe_plan
from blazr.models.loading.load import load
from blazr.models.loading.plan import detect_family, plan_model
from blazr.nn.device import resolve_device
from blazr.nn.quant import QUANTIZERS
from blazr.nn.quant.weight import GgufWeight, stored_weights
from tests.support import ggufs, tiny
from tests.support.tiny import Tiny
from tests.support.tolerances import assert_same_network

CPU = resolve_device("cpu")
GOLDEN = Path(__file__).parents[3] / "golden" / "gguf"
IDS = torch.tensor([[1, 5, 9, 2, 40, 33, 7, 7, 60, 0]])
# oxidizr's names and llama.cpp's; {p} stands for gate, up or down
NAMES = (
    {
        "embed_tokens.weight": "token_embd.weight",
        "norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
        "input_layernorm.weight": "attn_norm.weight",
        "post_attention_layernorm.weight": "ffn_norm.weight",
        "self_attn.o_proj.weight": "attn_output.weight",
        "moe.router.gate.weight": "ffn_gate_inp.weight",
    }
    | {
        f"self_attn.{p}_proj.{part}": f"attn_{p}.{part}"
        for p in "qkv"
        for part in ("weight", "bias")
    }
    | {f"self_attn.{p}_norm.weight": f"attn_{p}_norm.weight" for p in "qk"}
    | {f"mlp.{p}_proj.weight": f"ffn_{p}.weight" for p in ("gate", "up", "down")}
)
MODELS = {
    "llama": Tiny(layers=("StandardTransformer",) * 2),
    "granite": Tiny(layers=("StandardTransformer",) * 2),
    "granitemoe": Tiny(layers=("GqaWithMoe",) * 2, shared_expert=False, tied=True),
    "qwen2": Tiny(layers=("StandardTransformer",) * 2, qkv_bias=True, tied=True),
    "qwen3": Tiny(layers=("StandardTransformer",) * 2, qk_norm=True, head_dim=12),
    "qwen3moe": Tiny(layers=("GqaWithMoe", "GqaWithMoe"), shared_expert=False, qk_norm=True),
}


def in_pairs(rows: Tensor, head_dim: int) -> Tensor:
    """Rows as the converters of some models lay them: i, i + D / 2, i + 1, ..."""
    return rows.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).reshape(rows.shape)


def gguf_tensors(model: Tiny, *, pairs: bool) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, tensor in tiny.tensors(model).items():
        place = re.fullmatch(r"layers\.(\d+)\.(.*)", name)
        at, rest = (f"blk.{place[1]}.", place[2]) if place else ("", name)
        expert = re.fullmatch(r"moe\.experts\.(\d+)\.(\w+)_proj\.weight", rest)
        if expert:
            stack = f"{at}ffn_{expert[2]}_exps.weight"
            found[stack] = torch.cat([*([found[stack]] if stack in found else []), tensor[None]])
            continue
        if pairs and re.match(r"self_attn\.[qk]_proj", rest):
            found[at + NAMES[rest]] = in_pairs(tensor, model.head_dim)
        else:
            found[at + NAMES[rest]] = tensor
    return found


def metadata(arch: str, model: Tiny) -> dict[str, object]:
    values: dict[str, object] = {
        "context_length": model.max_seq_len,
        "embedding_length": model.hidden_size,
        "block_count": len(model.layers),
        "attention.head_count": model.num_heads,
        "attention.head_count_kv": model.num_kv_heads,
        "attention.key_length": model.head_dim,
        "attention.value_length": model.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        "expert_used_count": model.experts_per_tok,
    }
    return {"general.architecture": arch} | {f"{arch}.{key}": v for key, v in values.items()}


def write(arch: str, directory: Path, **more: object) -> Path:
    model = MODELS[arch]
    tensors = gguf_tensors(model, pairs=ARCHITECTURES[arch].pairs_rows)
    return ggufs.write(directory / "m.gguf", tensors, metadata(arch, model) | more)


def network(path: Path) -> nn.Module:
    return load(str(path), device=CPU, dtype="float32").module


def logits(path: Path) -> Tensor:
    with torch.inference_mode():
        return network(path).forward_sequences(IDS)


def assert_reference_agrees(path: Path, ids: Tensor = IDS) -> None:
    """What `blazr verify` compares with reads the file alike."""
    reference = open_reference([path], None)
    embedded = reference.embed(ids[0])
    x = embedded if reference.split is None else reference.split(embedded)
    for layer in reference.layers:
        x = layer(x, embedded)
    assert_same_network(network(path), reference.logits(x).float(), ids)


def test_what_is_tested_exists() -> None:
    assert {*MODELS, *DECLARED} < {name for name, row in ARCHITECTURES.items() if not row.is_hybrid}


@pytest.mark.parametrize("arch", MODELS)
def test_the_same_logits_as_in_another_layout(arch: str, tmp_path: Path) -> None:
    other = tiny.save(MODELS[arch], tmp_path / "other")
    assert_same_network(network(write(arch, tmp_path)), network(other), IDS)


# Architectures that are compared with what config.json says: its type, its keys beside those that
# all have, and the metadata that say the same.
DECLARED: dict[str, tuple[str, dict[str, object], dict[str, object]]] = {
    "gemma": ("gemma", {"head_dim": 12}, {}),
    "gemma2": (
        "gemma2",
        {"query_pre_attn_scalar": 12, "sliding_window": 4},
        {
            "attention.sliding_window": 4,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
    ),
    "gemma3": (
        "gemma3_text",
        {
            "query_pre_attn_scalar": 12,
            "sliding_window": 4,
            "rope_theta": 1e6,
            "rope_local_base_freq": 10_000.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        {
            "attention.sliding_window": 4,
            "rope.freq_base": 1e6,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
    ),
    "olmo2": ("olmo2", {"head_dim": 12}, {}),
    "phi3": (
        "phi3",
        {
            "sliding_window": 6,
            "original_max_position_embeddings": 128,
            "rope_scaling": {
                "type": "longrope",
                "short_factor": [1.0] * 6,
                "long_factor": [2.0] * 6,
            },
        },
        {
            "attention.sliding_window": 6,
            "rope.scaling.original_context_length": 128,
            "rope.scaling.attn_factor": (1 + math.log(2) / math.log(128)) ** 0.5,
        },
    ),
    "glm4": ("glm4", {"partial_rotary_factor": 0.5}, {"rope.dimension_count": 6}),
    "starcoder2": ("starcoder2", {"norm_epsilon": 1e-5}, {"attention.layer_norm_epsilon": 1e-5}),
}


def declared_config(arch: str) -> ModelConfig:
    """What config.json of the same model gives."""
    kind, more, _ = DECLARED[arch]
    sizes: dict[str, object] = {
        "model_type": kind, "hidden_size": 24, "num_hidden_layers": 7, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 12, "intermediate_size": 40, "vocab_size": 61,
        "max_position_embeddings": 256, "rope_theta": 10_000.0, "tie_word_embeddings": False,
    }  # fmt: skip
    if kind != "starcoder2":
        sizes["rms_norm_eps"] = 1e-5
    names = ["model.embed_tokens.weight", "lm_head.weight"]
    names += [f"model.layers.{index}.x" for index in range(7)]
    tensors = {name: TensorInfo(name, "F32", (61, 24), Path("x"), 0, 61 * 24 * 4) for name in names}
    checkpoint = Checkpoint(path=Path("x"), files={}, tensors=tensors, config=sizes | more)
    return detect_family(checkpoint).derive(checkpoint).config


def write_declared(arch: str, module: CausalLM, path: Path, said: dict[str, object]) -> Path:
    """A file of a model with new weights, and metadata that say what config.json does."""
    tensors: dict[str, Tensor] = {}
    rules = gguf_names(ARCHITECTURES[arch], has_fused_mlp=ARCHITECTURES[arch].has_fused_mlp)
    for name, parameter in module.state_dict().items():
        is_norm = parameter.dim() == 1 and name.endswith("norm.weight")
        parameter.copy_(torch.randn(parameter.shape) * 0.3 + is_norm)
        theirs = rules.sources(name)[0]
        # the converters add what the model adds when it runs
        rows = parameter + (is_norm and arch.startswith("gemma"))
        before = tensors.get(theirs)  # rows of another parameter in the same tensor
        tensors[theirs] = rows if before is None else torch.cat((before, rows))
    if arch == "phi3":
        tensors["rope_factors_short.weight"] = torch.ones(6)
        tensors["rope_factors_long.weight"] = 2 * torch.ones(6)
    model = Tiny(layers=("",) * 7, hidden_size=24, head_dim=12)
    more = {f"{arch}.{key}": value for key, value in said.items()}
    return ggufs.write(path, tensors, metadata(arch, model) | more)


@pytest.mark.parametrize("arch", DECLARED)
def test_the_same_logits_as_by_config_json(arch: str, tmp_path: Path) -> None:
    module = CausalLM(declared_config(arch)).eval()
    path = write_declared(arch, module, tmp_path / "m.gguf", DECLARED[arch][2])
    assert_same_network(network(path), module, IDS)


def test_what_the_first_files_of_gemma_2_leave_out(tmp_path: Path) -> None:
    module = CausalLM(declared_config("gemma2")).eval()
    whole = DECLARED["gemma2"][2] | {"attention.sliding_window": 4096}
    plans = [
        plan_model(str(write_declared("gemma2", module, tmp_path / name, said)))
        for name, said in (("whole.gguf", whole), ("first.gguf", {}))
    ]
    configs = [plan.derivation.config for plan in plans]
    assert configs[0] == configs[1]
    assert configs[1].logit_softcap == 30
    assert_reference_agrees(tmp_path / "first.gguf")


def test_mamba(tmp_path: Path) -> None:
    names = {
        "in_proj.weight": "ssm_in.weight", "x_proj.weight": "ssm_x.weight",
        "dt_proj.weight": "ssm_dt.weight", "dt_proj.bias": "ssm_dt.bias",
        "conv1d.weight": "ssm_conv1d.weight", "conv1d.bias": "ssm_conv1d.bias",
        "out_proj.weight": "ssm_out.weight", "A_log": "ssm_a", "D": "ssm_d",
    }  # fmt: skip
    shapes = {
        "in_proj.weight": (32, 8), "conv1d.weight": (16, 1, 4), "conv1d.bias": (16,),
        "x_proj.weight": (9, 16), "dt_proj.weight": (16, 1), "dt_proj.bias": (16,),
        "A_log": (16, 4), "D": (16,), "out_proj.weight": (8, 16),
    }  # fmt: skip
    hf = {"backbone.embeddings.weight": torch.randn(61, 8), "backbone.norm_f.weight": torch.ones(8)}
    gguf = {
        "token_embd.weight": hf["backbone.embeddings.weight"],
        "output_norm.weight": torch.ones(8),
    }
    for layer in range(2):
        hf[f"backbone.layers.{layer}.norm.weight"] = torch.ones(8)
        gguf[f"blk.{layer}.attn_norm.weight"] = torch.ones(8)
        for name, shape in shapes.items():
            tensor = torch.randn(shape) * 0.5
            hf[f"backbone.layers.{layer}.mixer.{name}"] = tensor
            stored = -tensor.exp() if name == "A_log" else tensor
            gguf[f"blk.{layer}.{names[name]}"] = stored.squeeze(1) if len(shape) == 3 else stored
    from safetensors.torch import save_file

    save_file(hf, tmp_path / "model.safetensors")
    known = {"block_count": 2, "context_length": 256, "attention.layer_norm_rms_epsilon": 1e-5}
    meta = {"general.architecture": "mamba"} | {f"mamba.{k}": v for k, v in known.items()}
    path = ggufs.write(tmp_path / "m.gguf", gguf, meta)
    assert_same_network(network(path), network(tmp_path / "model.safetensors"), IDS)


def test_multipliers_and_windows_are_read(tmp_path: Path) -> None:
    plain = logits(write("granite", tmp_path))
    keys = ("embedding_scale", "residual_scale", "attention.scale", "logit_scale")
    for key in (*(f"granite.{key}" for key in keys), "granite.rope.freq_base"):
        assert not torch.allclose(logits(write("granite", tmp_path, **{key: 0.5})), plain)
    window = write("llama", tmp_path, **{"llama.attention.sliding_window": 4})
    assert torch.allclose(logits(window)[:, :4], plain[:, :4], atol=1e-5)
    assert not torch.allclose(logits(window), plain)


def test_rope_factors_are_in_a_tensor(tmp_path: Path) -> None:
    model = MODELS["llama"]
    tensors = gguf_tensors(model, pairs=True)
    path = tmp_path / "m.gguf"
    ones = ggufs.write(
        path, tensors | {"rope_freqs.weight": torch.ones(4)}, metadata("llama", model)
    )
    found = logits(ones)[0]
    assert_same_network(network(write("llama", tmp_path)), found, IDS)
    # all by two is the same as linear scaling by two
    path.unlink()
    twos = ggufs.write(
        path, tensors | {"rope_freqs.weight": 2 * torch.ones(4)}, metadata("llama", model)
    )
    found = logits(twos)[0]
    scaling = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    assert_same_network(network(write("llama", tmp_path, **scaling)), found, IDS)


@pytest.mark.parametrize("name", ["rope.scaling.factor", "rope.scale_linear"])
def test_a_factor_alone_is_of_linear_scaling(name: str, tmp_path: Path) -> None:
    scaling = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    expected = logits(write("llama", tmp_path, **scaling))[0]
    assert_same_network(network(write("llama", tmp_path, **{f"llama.{name}": 2.0})), expected, IDS)


@pytest.mark.parametrize(
    "nothing",
    [
        {"llama.rope.scaling.type": "", "llama.rope.scaling.factor": 0.0},  # Mistral Small's
        {"llama.attention.temperature_scale": 0.0},  # Devstral 2's
        {"llama.rope.scaling.factor": 0.0},
        {"llama.rope.scale_linear": 0.0},
        {"llama.attention.scale": 0.0},
        {"llama.attn_logit_softcapping": 0.0, "llama.final_logit_softcapping": 0.0},
        {"llama.embedding_scale": 0.0, "llama.residual_scale": 0.0, "llama.logit_scale": 0.0},
        {"qwen3moe.expert_weights_scale": 0.0},
        {"granite.embedding_scale": 0.0, "granite.residual_scale": 0.0, "granite.logit_scale": 0.0},
    ],
)
def test_numbers_that_say_none(nothing: dict[str, object], tmp_path: Path) -> None:
    arch = next(iter(nothing)).partition(".")[0]
    expected = logits(write(arch, tmp_path))[0]
    assert_same_network(network(write(arch, tmp_path, **nothing)), expected, IDS)


@pytest.mark.parametrize(("every", "slides"), [(0, [1, 1]), (1, [0, 0]), (2, [1, 0])])
def test_windows_may_be_given_by_the_period_of_layers_without(
    every: int, slides: list[int], tmp_path: Path
) -> None:
    key = "llama.attention.sliding_window"
    listed = write("llama", tmp_path, **{key: 4, f"{key}_pattern": slides})
    expected = logits(listed)[0]
    counted = write("llama", tmp_path, **{key: 4, f"{key}_pattern": every})
    assert_reference_agrees(counted)
    assert_same_network(network(counted), expected, IDS)


def test_what_scores_experts(tmp_path: Path) -> None:
    arch = "qwen3moe"
    function, norm = f"{arch}.expert_gating_func", f"{arch}.expert_weights_norm"
    expected = logits(write(arch, tmp_path, **{function: 1, norm: True}))[0]
    chosen = write(arch, tmp_path, **{function: 3, norm: False})
    assert_same_network(network(chosen), expected, IDS)
    assert_reference_agrees(chosen)
    with pytest.raises(ConfigError, match="expert_gating_func"):
        plan_model(str(write(arch, tmp_path, **{function: 4})))


@pytest.mark.parametrize("packed", [False, True])
def test_gates_of_experts_may_lie_before_the_others(*, packed: bool, tmp_path: Path) -> None:
    """In one tensor, as llama.cpp's converter writes them when it is asked to."""
    model = MODELS["qwen3moe"]

    def stored(stack: Tensor) -> Tensor | ggufs.Blocks:
        return (8, tuple(stack.shape), QUANTIZERS["q8_0"](stack)) if packed else stack

    apart: dict[str, Tensor | ggufs.Blocks] = {}
    together: dict[str, Tensor | ggufs.Blocks] = {}
    tensors = gguf_tensors(model, pairs=False)
    for name, tensor in tensors.items():
        if "ffn_gate_exps" in name:
            up = tensors[name.replace("gate", "up")]
            together[name.replace("gate", "gate_up")] = stored(torch.cat((tensor, up), 1))
        elif "ffn_up_exps" not in name:
            together[name] = tensor
        apart[name] = stored(tensor) if re.search("ffn_(gate|up)_exps", name) else tensor
    said = metadata("qwen3moe", model)
    expected = logits(ggufs.write(tmp_path / "apart.gguf", apart, said))[0]
    path = ggufs.write(tmp_path / "together.gguf", together, said)
    assert_same_network(network(path), expected, IDS)
    if not packed:  # kernels round activations
        assert_reference_agrees(path)


def test_yarn_is_what_config_json_means_by_it(tmp_path: Path) -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 64}
    more = {f"qwen2.rope.scaling.{key}": value for key, value in scaling.items()}
    ours = plan_model(str(write("qwen2", tmp_path, **more))).derivation.config.layers[0].mixer
    config = tiny.hf_config(MODELS["qwen2"], "qwen2") | {
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    }
    directory = tiny.save(MODELS["qwen2"], tmp_path / "hf", layout="hf")
    (directory / "config.json").write_text(json.dumps(config))
    theirs = plan_model(str(directory)).derivation.config.layers[0].mixer
    positions = torch.arange(200)
    for mine, other in zip(ours.rope.tables(positions), theirs.rope.tables(positions), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.usefixtures("reference_ops")
@pytest.mark.parametrize("name", ["q8_0", "q4_0"])
def test_packed_weights_are_the_numbers_they_stand_for(name: str, tmp_path: Path) -> None:
    path = GOLDEN / f"stories260K-{name}.gguf"
    packed = load(str(path), device=CPU, dtype="float32").module
    plain = load(str(path), device=CPU, dtype="float32").module
    assert sum(isinstance(each, GgufWeight) for each in stored_weights(packed)) == 31
    for part in list(plain.modules()):
        weight = getattr(part, "weight", None)
        if isinstance(weight, GgufWeight):
            numbers = torch.nn.Parameter(weight.dequantize(torch.float32), requires_grad=False)
            del part.weight
            part.weight = numbers
    assert_same_network(packed, plain, IDS)


def test_the_text_is_nearly_that_of_the_plain_weights() -> None:
    module = load(str(GOLDEN / "stories260K-q8_0.gguf"), device=CPU).module
    case = json.loads((GOLDEN / "greedy.json").read_text())["cases"][0]
    ids = case["prompt_ids"] + case["greedy_ids"]
    with torch.inference_mode():
        scores = module.forward_sequences(torch.tensor([ids]))[0]
    same = (scores[:-1].argmax(-1) == torch.tensor(ids[1:])).float().mean().item()
    assert same > 0.95


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"general.architecture": "gpt-j"}, ConfigError),
        ({"general.architecture": 7}, ConfigError),
        ({"llama.block_count": 10**6}, ConfigError),
        ({"llama.block_count": 0}, ConfigError),
        ({"llama.block_count": 1}, CheckpointError),
        ({"llama.block_count": 3}, CheckpointError),
        ({"llama.attention.head_count": 0}, ShapeError),
        ({"llama.attention.head_count": 3}, ShapeError),
        ({"llama.attention.head_count_kv": 0}, BlazrError),
        ({"llama.attention.head_count_kv": 2**30}, ShapeError),
        ({"llama.attention.key_length": 7}, ShapeError),
        ({"llama.attention.value_length": 4}, ConfigError),
        ({"llama.rope.dimension_count": 9}, ConfigError),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}, ConfigError),
        ({"llama.rope.scaling.type": "other", "llama.rope.scaling.factor": 4.0}, ConfigError),
        ({"llama.attention.head_count": "four"}, ConfigError),
        ({"llama.attention.causal": False}, ConfigError),
        ({"llama.attention.causal": 0}, ConfigError),
        ({"llama.logit_scale": -1.0}, ConfigError),
        ({"llama.context_length": 2**31 - 1}, ConfigError),
    ],
)
def test_metadata_that_do_not_fit(
    change: dict[str, object], error: type[BlazrError], tmp_path: Path
) -> None:
    with pytest.raises(error):
        describe_plan(plan_model(str(write("llama", tmp_path, **change))))


def converted(
    name: str, directory: Path, more: dict[str, Tensor] | None = None, /, **metadata: object
) -> Path:
    """A file of llama.cpp's converter with more tensors and other metadata, None for none."""
    path = directory / f"{name}.gguf"
    path.write_bytes(lzma.decompress((GOLDEN / "converted" / f"{name}.gguf.xz").read_bytes()))
    header = read_header(path)
    checkpoint = open_checkpoint(path)
    tensors = {
        key: checkpoint.read(key).clone()
        for key, info in header.tensors.items()
        if not isinstance(info, NumberInfo)
    }
    said = {
        key: [*value] if isinstance(value, memoryview) else value
        for key, value in (dict(header.metadata) | metadata).items()
        if value is not None
    }
    path.unlink()
    return ggufs.write(path, tensors | (more or {}), said)


@pytest.mark.parametrize(
    ("name", "metadata", "told"),
    [
        ("llama4", {"llama4.attention.sliding_window": 0}, "sliding_window"),
        ("apertus", {"xielu.beta": [0.5] * 99}, "xielu.beta"),
        ("apertus", {"xielu.beta": [0.5]}, "xielu.beta is missing"),
        ("apertus", {"xielu.beta": None}, "xielu.beta is missing"),
        ("laguna", {"laguna.attention.head_count": 4}, "attn_q does not fit"),
        ("mimo2", {"mimo2.attention.head_count_kv": [1, 4, 1]}, "swa_num_key_value_heads"),
        ("mimo2", {"mimo2.attention.value_length": 12}, "attn_v.weight"),
        ("minicpm3", {"minicpm3.rope.dimension_count": 16}, "latent attention"),
        ("phimoe", {"phimoe.expert_gating_func": 7}, "expert_gating_func"),
        ("cohere2moe", {"cohere2moe.logit_scale": None}, "logit_scale"),
        ("apertus", {"xielu.beta": 0.5, "apertus.block_count": 10**6}, "xielu.beta"),
    ],
)
def test_metadata_that_do_not_fit_such_a_model(
    name: str, metadata: dict[str, object], told: str, tmp_path: Path
) -> None:
    with pytest.raises(BlazrError, match=told):
        load(str(converted(name, tmp_path, **metadata)), device=CPU)


def test_one_number_of_an_activation_stands_for_all_layers(tmp_path: Path) -> None:
    """As llama.cpp reads it; its converter writes a list."""
    said = {f"xielu.{key}": 0.25 + place / 8 for place, key in enumerate(("alpha_p", "alpha_n"))}
    said |= {"xielu.beta": 0.625}
    path = converted("apertus", tmp_path, **said)
    assert_reference_agrees(path, IDS % 53)
    listed = converted("apertus", tmp_path, **{k: [each] * 2 for k, each in said.items()})
    with torch.inference_mode():
        expected = network(listed).forward_sequences(IDS % 53)[0]
    assert_same_network(network(path), expected, IDS % 53)


@pytest.mark.parametrize("name", ["deepseek2", "deepseek2-dense", "mistral4"])
def test_factors_of_rotation_that_latent_attention_has_no_place_for(
    name: str, tmp_path: Path
) -> None:
    path = converted(name, tmp_path)
    rotated = read_header(path).metadata[f"{name.partition('-')[0]}.rope.dimension_count"]
    more = {"rope_freqs.weight": 2 * torch.ones(int(rotated) // 2)}
    with pytest.raises(ConfigError, match=r"rope_freqs\.weight"):
        plan_model(str(converted(name, tmp_path, more)))


@pytest.mark.parametrize("name", ["cohere2moe", "hy_v3", "laguna"])
def test_weights_of_experts_where_nothing_says_whether_they_sum_to_one(
    name: str, tmp_path: Path
) -> None:
    path = converted(name, tmp_path, **{f"{name}.expert_weights_norm": None})
    assert_reference_agrees(path, IDS % 53)


@pytest.mark.parametrize(
    "scaling", [{}, {"type": "yarn", "original_context_length": 8}], ids=["linear", "yarn"]
)
@pytest.mark.parametrize("name", ["olmo2", "olmo2-windows", "laguna", "mellum", "mimo2", "gemma3n"])
def test_scaled_rotation_of_models_that_may_have_a_window(
    name: str, scaling: dict[str, object], tmp_path: Path
) -> None:
    architecture = name.partition("-")[0]
    said = {f"{architecture}.rope.scaling.{key}": each for key, each in scaling.items()}
    factor = {f"{architecture}.rope.scaling.factor": 4.0}
    assert_reference_agrees(converted(name, tmp_path, **factor, **said), IDS % 53)


@pytest.mark.parametrize("name", ["gemma4", "llama-rope"])
def test_factors_of_rotation_are_stretched_by_a_factor(name: str, tmp_path: Path) -> None:
    """As by llama.cpp, which divides frequencies by both."""
    architecture = name.partition("-")[0]
    said = {f"{architecture}.rope.scaling.factor": 4.0}
    plain = network(converted(name, tmp_path)).forward_sequences(IDS % 53)[0]
    path = converted(name, tmp_path, **said)
    assert_reference_agrees(path, IDS % 53)
    found = network(path).forward_sequences(IDS % 53)[0]
    assert (found - plain).abs().max() > 1e-3
    said |= {f"{architecture}.rope.scaling.type": "yarn"}
    said |= {f"{architecture}.rope.scaling.original_context_length": 8}
    with pytest.raises(ConfigError, match="yarn"):
        plan_model(str(converted(name, tmp_path, **said)))


@pytest.mark.parametrize("name", ["cohere2moe", "laguna"])
def test_the_period_of_layers_without_a_window_may_begin_with_one(
    name: str, tmp_path: Path
) -> None:
    listed = converted(name, tmp_path, **{f"{name}.attention.sliding_window_pattern": [0, 1, 0]})
    with torch.inference_mode():
        expected = network(listed).forward_sequences(IDS % 53)[0]
    counted = converted(name, tmp_path, **{f"{name}.attention.sliding_window_pattern": 2})
    assert_reference_agrees(counted, IDS % 53)
    assert_same_network(network(counted), expected, IDS % 53)


@pytest.mark.parametrize(("experts", "has_norms"), [(128, False), (5, True)])
def test_how_many_experts_llama_4_has_tells_whether_it_has_norms(
    experts: int, *, has_norms: bool, tmp_path: Path
) -> None:
    layers = ("GqaWithMoe",) * 4
    model = Tiny(layers=layers, num_experts=experts, shared_expert=False)
    tensors = gguf_tensors(model, pairs=False)
    said = metadata("llama4", model) | {"llama4.rope.dimension_count": model.head_dim}
    plan = plan_model(str(ggufs.write(tmp_path / "m.gguf", tensors, said)))
    mixers = [layer.mixer for layer in plan.derivation.config.layers]
    assert [each.qk_norm for each in mixers] == [has_norms] * 3 + [False]
    assert [each.chunk_size for each in mixers] == [8192] * 3 + [None]
    assert [each.rope is None for each in mixers] == [False] * 3 + [True]
    assert [each.temperature is None for each in mixers] == [True] * 3 + [False]


@pytest.mark.parametrize(("arch", "told"), [("minicpm", "logit_scale"), ("baichuan", "ALiBi")])
def test_files_that_leave_out_what_decides(arch: str, told: str, tmp_path: Path) -> None:
    tensors = gguf_tensors(MODELS["llama"], pairs=True)
    more = {"minicpm.embedding_scale": 12.0, "minicpm.residual_scale": 0.5}
    said = metadata(arch, MODELS["llama"]) | more
    with pytest.raises(ConfigError, match=told):
        plan_model(str(ggufs.write(tmp_path / "m.gguf", tensors, said)))


@pytest.mark.parametrize(
    ("name", "metadata", "warns"),
    [
        ("mistral4", {}, "temperature_scale"),
        ("mistral4", {"mistral4.attention.temperature_scale": 0.1}, ""),
        ("phimoe", {}, "attn_factor"),
        ("phimoe", {"phimoe.rope.scaling.attn_factor": 1.243163}, ""),
        ("deepseek2-dense", {}, ""),
    ],
)
def test_what_a_file_leaves_out_is_said(
    name: str, metadata: dict[str, object], warns: str, tmp_path: Path
) -> None:
    warnings = plan_model(str(converted(name, tmp_path, **metadata))).derivation.warnings
    assert [warns in each for each in warnings] == ([True] if warns else [])


def test_parameters_in_the_metadata_stay_there(tmp_path: Path) -> None:
    first = converted("apertus", tmp_path)
    convert(str(first), tmp_path / "second.gguf")
    headers = [read_header(path) for path in (first, tmp_path / "second.gguf")]
    places = [
        {key: isinstance(info, NumberInfo) for key, info in header.tensors.items()}
        for header in headers
    ]
    assert places[0] == places[1]
    assert sum(places[0].values()) == 2 * 4
    assert_same_network(network(tmp_path / "second.gguf"), network(first), IDS % 53)


def test_heads_may_be_given_per_layer(tmp_path: Path) -> None:
    heads = {"llama.attention.head_count": [4, 4], "llama.attention.head_count_kv": [2, 2]}
    expected = logits(write("llama", tmp_path))[0]
    assert_same_network(network(write("llama", tmp_path, **heads)), expected, IDS)


def test_parts_that_are_not_known_are_refused(tmp_path: Path) -> None:
    tensors = gguf_tensors(MODELS["llama"], pairs=True) | {"blk.0.attn_twist.weight": torch.ones(4)}
    path = ggufs.write(tmp_path / "m.gguf", tensors, metadata("llama", MODELS["llama"]))
    with pytest.raises(CheckpointError, match="attn_twist"):
        load(str(path), device=CPU)
