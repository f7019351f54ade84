"""Models without a network of ours, or that pass it over, run through transformers alike."""

from __future__ import annotations

import json
from functools import wraps

import pytest
import torch
from typer.testing import CliRunner

from blazr import LLM, SamplingParams
from blazr.cli.app import app
from blazr.core.errors import CheckpointError, ConfigError, EngineError, UnknownFamilyError
from blazr.llm.describe import describe_model
from tests.support.references import save_reference
from tests.support.seeds import run_seed
from tests.support.tolerances import assert_as_right, assert_greedy, sensitivity

transformers = pytest.importorskip("transformers")

KINDS = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "rotary_dim": 4},
    "opt": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "ffn_dim": 64,
        "word_embed_proj_dim": 32,
        "max_position_embeddings": 256,
    },
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "rwkv": {
        "hidden_size": 32,
        "attention_hidden_size": 32,
        "num_hidden_layers": 2,
        "context_length": 256,
    },
}
# Its cache cannot be gone on with: it has the wrong shape after a short prompt.
WITHOUT_CACHE = {
    "xlstm": {"hidden_size": 64, "num_heads": 4, "num_blocks": 1, "embedding_dim": 64},
}
KINDS |= WITHOUT_CACHE
VOCAB = 97
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
THEIRS = {"device": "cpu", "model_impl": "transformers"}
PROMPTS = [[5, 9, 22, 7], [3], list(range(3, 40))]


def write(kind: str, directory) -> torch.nn.Module:
    torch.manual_seed(run_seed(3))
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=VOCAB, bos_token_id=1, eos_token_id=2, pad_token_id=0, **KINDS[kind]
    )
    network = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    network.save_pretrained(directory)
    return network


def scores(network: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return network(torch.tensor([ids]), use_cache=False).logits[0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_tokens_as_the_library(kind, tmp_path):
    network = write(kind, tmp_path)
    loss = sensitivity(network, lambda each: scores(each, PROMPTS[2]))
    with LLM(str(tmp_path), dtype="float32", **THEIRS) as llm:
        replies = llm.generate(PROMPTS, GREEDY)
        for prompt, reply in zip(PROMPTS, replies, strict=True):
            tokens = list(reply.token_ids)
            expected = scores(network, [*prompt, *tokens[:-1]])[len(prompt) - 1 :]
            assert len(tokens) == 12
            assert_greedy(tokens, expected, loss)
            assert reply.usage.cached_tokens == 0
        assert_as_right(llm.logits(PROMPTS[2]), scores(network, PROMPTS[2]), loss)


def test_a_network_of_our_own_may_be_passed_over(tmp_path, caplog):
    save_reference("llama", tmp_path, seed=3)
    replies = []
    for chosen in ("auto", "transformers"):
        with LLM(str(tmp_path), device="cpu", dtype="float32", model_impl=chosen) as llm:
            assert ("runs through transformers" in caplog.text) is (chosen == "transformers")
            replies.append(llm.generate([PROMPTS[2]], GREEDY)[0].token_ids)
    assert replies[0] == replies[1]
    with pytest.raises(ConfigError, match="model_impl"):
        LLM(str(tmp_path), model_impl="vllm")


def test_several_replies_and_scores_of_the_prompt(tmp_path):
    network = write("gpt2", tmp_path)
    with LLM(str(tmp_path), dtype="float32", **THEIRS) as llm:
        params = SamplingParams(
            temperature=0.8, seed=4, n=3, max_tokens=8, ignore_eos=True, prompt_logprobs=0
        )
        together = llm.generate([PROMPTS[0]], params)
        plain = SamplingParams(temperature=0.8, seed=4, n=3, max_tokens=8, ignore_eos=True)
        forked = llm.generate([PROMPTS[0]], plain)
        assert [each.token_ids for each in forked] == [each.token_ids for each in together]
        with torch.inference_mode():
            scores = network(torch.tensor([PROMPTS[0]])).logits[0].log_softmax(-1)
        found = [each.logprob for each in together[0].prompt_logprobs[1:]]
        expected = scores[:-1].gather(1, torch.tensor(PROMPTS[0][1:])[:, None])[:, 0]
        assert found == pytest.approx(expected.tolist(), abs=1e-4)


def test_a_missing_tensor_is_named(tmp_path):
    from safetensors.torch import load_file, save_file

    write("opt", tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    gone = next(name for name in tensors if name.endswith("fc1.weight"))
    del tensors[gone]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"fc1\.weight"):
        LLM(str(tmp_path), **THEIRS)


def test_code_beside_the_weights_is_never_run(tmp_path):
    write("gpt2", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "homemade", "auto_map": {"AutoConfig": "evil.Config"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text("raise SystemExit('this ran')")
    with pytest.raises(UnknownFamilyError, match="homemade"):
        LLM(str(tmp_path), device="cpu")


class Canary:
    """Pickled, it leaves a file where it is unpickled."""

    def __init__(self, file):
        self._file = file

    def __reduce__(self):
        return open, (str(self._file), "w")


@pytest.mark.parametrize(
    "pickle_name",
    ["pytorch_model.bin", "pytorch_model-00001-of-00001.bin", "adapter_model.bin", "model.pt"],
)
def test_no_pickle_beside_the_weights_is_opened(pickle_name, tmp_path, monkeypatch):
    """The weights are those of the safetensors file, under whatever name, or nothing."""
    fired = tmp_path / "fired"
    directory = tmp_path / "model"
    network = write("gpt2", directory)
    (directory / "model.safetensors").rename(directory / "mine.safetensors")
    torch.save({"weight": Canary(fired)}, directory / pickle_name)
    index = {"weight_map": dict.fromkeys(network.state_dict(), pickle_name)}
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    adapter = {"peft_type": "LORA", "base_model_name_or_path": str(directory)}
    (directory / "adapter_config.json").write_text(json.dumps(adapter))
    config = json.loads((directory / "config.json").read_text())
    config["transformers_weights"] = pickle_name
    (directory / "config.json").write_text(json.dumps(config))

    def refuse(*args, **kwargs):
        raise AssertionError("a pickle was opened")

    monkeypatch.setattr(torch, "load", refuse)
    with LLM(str(directory), dtype="float32", **THEIRS) as llm:
        loss = sensitivity(network, lambda each: scores(each, PROMPTS[0]))
        assert_as_right(llm.logits(PROMPTS[0]), scores(network, PROMPTS[0]), loss)
    assert not fired.exists()


def test_a_pickle_alone_is_refused(tmp_path):
    network = write("gpt2", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(network.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="can run code when it is opened"):
        LLM(str(tmp_path), **THEIRS)


@pytest.mark.parametrize("kind", ["rwkv", "xlstm"])
def test_info_describes(kind, tmp_path):
    network = write(kind, tmp_path)
    found = describe_model(str(tmp_path))
    assert found["family"] == kind
    assert found["parameters"]["total"] == sum(each.numel() for each in network.parameters())
    assert found["config"]["vocab_size"] == VOCAB
    assert found["config"]["hidden_size"] == KINDS[kind]["hidden_size"]
    assert found["dtype"] == "float32"
    assert "through transformers" in found["warnings"][0]
    assert found["vocabulary"]["name"] is None


@pytest.mark.parametrize("command", [["info", "--fit"], ["convert"]], ids=lambda words: words[0])
def test_what_takes_a_network_of_ours_says_so(command, tmp_path):
    write("rwkv", tmp_path)
    out = [str(tmp_path / "out.gguf")] if command == ["convert"] else []
    result = CliRunner().invoke(app, [*command, str(tmp_path), *out])
    error = result.exception
    assert isinstance(error, UnknownFamilyError)
    assert "runs through transformers" in error.message
    assert "rwkv" in error.found
    assert "pip" not in error.hint


@pytest.mark.parametrize("option", [{"kv_dtype": "q8_0"}, {"state_dtype": "bfloat16"}])
def test_its_memory_is_the_library_s(option, tmp_path):
    write("gpt2", tmp_path)
    (name,) = option
    with pytest.raises(ConfigError, match="as it likes") as caught:
        LLM(str(tmp_path), **THEIRS, **option)
    assert name in caught.value.found


def test_bench_measures(tmp_path):
    write("rwkv", tmp_path)
    words = ["--prompt-tokens", "8", "--output-tokens", "4", "--requests", "2", "--warmup", "0"]
    result = CliRunner().invoke(app, ["bench", str(tmp_path), "--json", "--concurrency=1", *words])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["levels"][0]["num_errors"] == 0


def test_what_the_library_raises_is_told(tmp_path, monkeypatch):
    write("gpt2", tmp_path)

    def fail(*args, **kwargs):
        raise ValueError("the library is at fault")

    monkeypatch.setattr(transformers.GPT2LMHeadModel, "forward", fail)
    with pytest.raises(EngineError, match="the library is at fault"):
        LLM(str(tmp_path), **THEIRS)


# bloom's positions are told by its mask; rwkv, xLSTM and linear layers have states, and no padding
TOGETHER = ["gpt2", "gptj", "opt", "bloom"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_decodes_is_computed_together(kind, tmp_path, monkeypatch):
    """And what leaves, joins or forks meanwhile gets the tokens that it gets alone."""
    kind_of = type(write(kind, tmp_path))
    widths: list[int] = []
    with LLM(str(tmp_path), dtype="float32", **THEIRS) as llm:
        params = [
            SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in (4, 9, 6)
        ]
        alone = [llm.generate([p], each)[0] for p, each in zip(PROMPTS, params, strict=True)]
        forward = kind_of.forward

        @wraps(forward)
        def counted(self, *args, **kwargs):
            widths.append(len(kwargs["input_ids"]))
            return forward(self, *args, **kwargs)

        monkeypatch.setattr(kind_of, "forward", counted)
        together = llm.generate(PROMPTS, params)
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]
    assert (max(widths) == len(PROMPTS)) == (kind in TOGETHER)
