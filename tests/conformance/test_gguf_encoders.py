"""Encoders in GGUF files: the vectors that transformers makes of the model they are made of.

Names of tensors and keys are those of the ``gguf`` package, llama.cpp's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from blazr.cli.convert import convert
from blazr.cli.verify import verify
from blazr.core.errors import CheckpointError
from blazr.llm.describe import describe_model
from blazr.llm.llm import LLM
from blazr.pipelines.encoders import post_norm
from blazr.pipelines.encoders.classifier import Classifier
from blazr.pipelines.encoders.embedder import Embedder
from blazr.pipelines.encoders.encoder import Encoder, Gathered
from blazr.pipelines.encoders.gguf_architectures import ENCODERS
from blazr.pipelines.encoders.request import Cut, ReadRequest
from blazr.pipelines.kinds import CLASSIFICATION, RERANKING, kind_of
from tests.support import encoder_ggufs, ggufs
from tests.support.encoder_ggufs import Model, save_embedding_model, save_ranking_model
from tests.support.encoder_models import NEEDS_TRANSFORMERS, load_encoder
from tests.support.op_samples import random_blocks
from tests.support.plain_bert import INNER_SIZE, NUM_CHOSEN, NUM_LAYERS, PlainBert, random_tensors

gguf = pytest.importorskip("gguf", reason="names and keys are llama.cpp's")
pytestmark = NEEDS_TRANSFORMERS
TEXTS = ("a cat", "the quick brown fox jumps.", "", "own " * 12, "Don't  bark at  the moon")
PAIRS = (("a cat", "the cat sat."), ("the quick brown fox", "own"), ("x", "y z " * 6))
EXACT = 2e-6  # two runs of one network, whose batches may differ
# By the architecture, and whose model it is where there are several: the library's type, how it
# pools, and its vocabulary.
CASES = {
    "bert": ("bert", "cls_token", "word pieces"),
    "bert, XLM-R": ("xlm-roberta", "cls_token", "unigrams"),
    "bert, RoBERTa": ("roberta", "mean_tokens", "RoBERTa"),
    "bert, DistilBERT": ("distilbert", "mean_tokens", "word pieces without types"),
    "nomic-bert": ("nomic_bert", "mean_tokens", "word pieces"),
    "jina-bert-v3": ("jina_embeddings_v3", "mean_tokens", "unigrams"),
    "gemma-embedding": ("gemma3", "mean_tokens", "sentence pieces"),
    "modern-bert": ("modernbert", "cls_token", "ModernBERT"),
    "eurobert": ("eurobert", "lasttoken", "RoBERTa"),
}
# Those that the library has no network of, by what is odd about them.
OURS: dict[str, dict[str, Any]] = {
    "jina-bert-v2": {"heads": 2},
    "jina-bert-v2, gates apart": {"heads": 4, "gate": True},
    "jina-bert-v2, code": {"heads": 4, "norms": True},
    "jina-bert-v2, three heads": {"heads": 3},
    "nomic-bert-moe": {"heads": 2, "experts": 4},
}
RANKING = {
    "bert": ("xlm-roberta", "unigrams"),
    "bert, RoBERTa": ("roberta", "RoBERTa"),
    "bert, DistilBERT": ("distilbert", "word pieces without types"),
    "modern-bert": ("modernbert", "ModernBERT"),
}


def embedding_model(case: str, folder: Path) -> Model:
    return save_embedding_model(folder, case.split(",")[0], *CASES[case])


def ranking_model(case: str, folder: Path, *, num_labels: int = 1, **more: object) -> Model:
    return save_ranking_model(
        folder, case.split(",")[0], *RANKING[case], num_labels=num_labels, **more
    )


def read(path: Path, *texts: Any, **more: Any) -> np.ndarray:
    encoder = load_encoder(path)
    found = Gathered(len(texts))
    encoder.read_texts(ReadRequest(texts=texts, **more), found)
    encoder.close()
    return found.values


@pytest.fixture(scope="module", params=CASES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return embedding_model(request.param, tmp_path_factory.mktemp("models") / "folder")


@pytest.fixture(scope="module")
def file(model: Model) -> Path:
    return model.write(model.folder.parent / "m.gguf")


@pytest.fixture(scope="module")
def both(model: Model, file: Path) -> Iterator[tuple[Encoder, Encoder]]:
    """The folder's encoder, and the file's."""
    found = load_encoder(model.folder), load_encoder(file)
    yield found
    for each in found:
        each.close()


def test_every_architecture_is_here() -> None:
    theirs = {name for name, row in ENCODERS.items() if not row.is_ours}
    assert {case.split(",")[0] for case in CASES} == theirs
    assert {case.split(",")[0] for case in OURS} == ENCODERS.keys() - theirs
    assert {case.split(",")[0] for case in RANKING} == {
        name for name, row in ENCODERS.items() if row.head
    }


def test_the_same_vectors_as_of_the_folder(model: Model, file: Path) -> None:
    expected = read(model.folder, *TEXTS)
    found = read(file, *TEXTS)
    np.testing.assert_allclose(found, expected, atol=EXACT)
    np.testing.assert_allclose(read(file, TEXTS[1])[0], expected[1], atol=1e-5)
    assert np.abs(expected[0] - expected[1]).max() > 0.01


def test_the_same_tokens_as_by_the_library(both: tuple[Encoder, Encoder]) -> None:
    theirs, ours = (each.tokenizer for each in both)
    for texts in [(each,) for each in TEXTS] + list(PAIRS):
        wanted = theirs(*texts)
        assert ours(*texts)["input_ids"] == wanted["input_ids"], texts
        if len(texts) == 2 and "token_type_ids" in wanted:
            assert ours(*texts)["token_type_ids"] == wanted["token_type_ids"]
        for side in ("left", "right"):
            for most in (6, 7, 9, 12, 40):
                theirs.truncation_side = ours.truncation_side = side
                cut = {"truncation": True, "max_length": most}
                expected = theirs(*texts, **cut)["input_ids"]
                assert ours(*texts, **cut)["input_ids"] == expected, (texts, side, most)


def test_the_longest_text_is_that_of_the_folder(both: tuple[Encoder, Encoder]) -> None:
    theirs, ours = (each.network.config.max_position_embeddings for each in both)
    shift = 1 if both[0].network.config.model_type in {"roberta", "xlm-roberta"} else 0
    assert both[1].max_tokens == ours == theirs - shift


def test_info_describes_a_file(model: Model, file: Path) -> None:
    report = describe_model(str(file))
    assert (report["family"], report["dtype"]) == (model.architecture, "float32")
    assert report["parameters"] == {"total": sum(each.numel() for each in model.tensors.values())}
    config, vocabulary = report["config"], report["vocabulary"]
    assert isinstance(config, dict)
    assert isinstance(vocabulary, dict)
    assert config["capabilities"] == ["embedding", "reranking"]
    assert vocabulary["name"] == model.metadata["tokenizer.ggml.model"]


def test_python_gets_the_same_vectors(file: Path) -> None:
    with LLM(str(file), device="cpu") as llm:
        found = [each.embedding for each in llm.embed(TEXTS)]
    np.testing.assert_allclose(found, read(file, *TEXTS), atol=1e-6)


def test_it_is_no_language_model(file: Path) -> None:
    for command in (convert, verify):
        with pytest.raises(CheckpointError, match="no language model") as caught:
            command(str(file), **({"out": file.parent / "out"} if command is convert else {}))
        assert "/v1/embeddings" in str(caught.value)


@pytest.mark.sample
@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0"])
def test_packed_weights_are_the_numbers_they_stand_for(
    kind: str, model: Model, tmp_path: Path
) -> None:
    number = gguf.GGMLQuantizationType[kind]
    packed: dict[str, Tensor | ggufs.Blocks] = dict(model.tensors)
    plain = dict(model.tensors)
    for name, tensor in model.tensors.items():
        block, _ = gguf.GGML_QUANT_SIZES[number]
        if tensor.dim() == 2 and tensor.shape[1] % block == 0:
            blocks = packed[name] = encoder_ggufs.quantized(tensor, kind)
            plain[name] = torch.from_numpy(np.array(gguf.dequantize(blocks[2].numpy(), number)))
    assert any(packed[name] is not model.tensors[name] for name in packed)
    found = read(model.write(tmp_path / "packed.gguf", packed), *TEXTS)
    expected = read(model.write(tmp_path / "plain.gguf", plain), *TEXTS)
    np.testing.assert_allclose(found, expected, atol=EXACT)


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "Q3_K", "Q2_K"])
def test_so_are_those_in_blocks_of_256(kind: str, tmp_path: Path) -> None:
    tensors, metadata, _ = ours("jina-bert-v2", heads=32)  # 256 channels
    number = gguf.GGMLQuantizationType[kind]
    packed: dict[str, Tensor | ggufs.Blocks] = dict(tensors)
    for name, tensor in tensors.items():
        if tensor.dim() == 2 and tensor.shape[1] % 256 == 0:
            blocks = random_blocks(kind, *tensor.shape).blocks
            packed[name] = (int(number), tuple(tensor.shape), blocks)
            tensors[name] = torch.from_numpy(np.array(gguf.dequantize(blocks.numpy(), number)))
    found = read(ggufs.write(tmp_path / "packed.gguf", packed, metadata), *TEXTS)
    expected = read(ggufs.write(tmp_path / "plain.gguf", tensors, metadata), *TEXTS)
    np.testing.assert_allclose(found, expected, atol=EXACT)
    assert np.abs(found[0] - found[1]).max() > 100 * EXACT  # texts differ


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return embedding_model("bert", tmp_path_factory.mktemp("models") / "folder")


@pytest.mark.parametrize("pooling", [None, 0, 1, 2, 3])
def test_a_file_says_how_it_pools(pooling: int | None, bert: Model, tmp_path: Path) -> None:
    path = bert.write(tmp_path / "m.gguf", pooling_type=pooling)
    encoder = load_encoder(path)
    assert isinstance(encoder, Embedder)
    row = encoder.tokenizer(TEXTS[1])
    with torch.inference_mode():
        inputs = {name: torch.tensor([each]) for name, each in row.items()}
        states = encoder.network(**inputs).last_hidden_state[0]
    vector = {2: states[0], 3: states[-1]}.get(pooling or 1, states.mean(0))
    for name in ("dense_2.weight", "dense_3.weight"):
        vector = bert.tensors[name] @ vector
    found = read(path, TEXTS[1])[0]
    np.testing.assert_allclose(found, vector / vector.norm(), atol=1e-5)
    encoder.close()


def test_without_dense_layers_vectors_are_the_states(bert: Model, tmp_path: Path) -> None:
    tensors = {k: each for k, each in bert.tensors.items() if not k.startswith("dense_")}
    assert read(bert.write(tmp_path / "m.gguf", tensors), "a cat").shape == (1, 16)


def test_queries_keys_and_values_may_be_one_matrix(bert: Model, tmp_path: Path) -> None:
    tensors = dict(bert.tensors)
    for layer in range(2):
        for kind in ("weight", "bias"):
            parts = [tensors.pop(f"blk.{layer}.attn_{each}.{kind}") for each in "qkv"]
            tensors[f"blk.{layer}.attn_qkv.{kind}"] = torch.cat(parts)
    expected = read(bert.write(tmp_path / "m.gguf"), *TEXTS)
    found = read(bert.write(tmp_path / "one.gguf", tensors), *TEXTS)
    np.testing.assert_allclose(found, expected, atol=EXACT)


def test_capitals_count_where_the_file_says_so(bert: Model, tmp_path: Path) -> None:
    path = bert.write(tmp_path / "m.gguf")
    cased = bert.write(tmp_path / "cased.gguf", **{"tokenizer.ggml.normalizer.lowercase": False})
    np.testing.assert_array_equal(read(path, "A cat"), read(path, "a cat"))
    assert np.abs(read(cased, "A cat") - read(cased, "a cat")).max() > 1e-3
    np.testing.assert_allclose(read(cased, "a cat"), read(path, "a cat"), atol=EXACT)


def test_embedding_gemma_of_ollama(tmp_path: Path) -> None:
    gemma = embedding_model("gemma-embedding", tmp_path / "folder")
    theirs = {
        k.replace("dense_2.", "dense.0.").replace("dense_3.", "dense.1."): each
        for k, each in gemma.tensors.items()
    }
    names = {
        "rope.freq_base": "rope.global.freq_base",
        "rope.freq_base_swa": "rope.local.freq_base",
    }
    metadata: dict[str, object] = {}
    for key, value in gemma.metadata.items():
        own = key.removeprefix("gemma-embedding.")
        metadata[key if own == key else f"gemma3.{names.get(own, own)}"] = value
    metadata["general.architecture"] = "gemma3"
    path = ggufs.write(tmp_path / "m.gguf", theirs, metadata)
    np.testing.assert_allclose(read(path, *TEXTS), read(gemma.folder, *TEXTS), atol=EXACT)
    del metadata["gemma3.pooling_type"]
    assert kind_of(ggufs.write(tmp_path / "text.gguf", theirs, metadata)) is None


@pytest.mark.parametrize("case", RANKING)
def test_cross_encoders_score_as_the_folder_does(case: str, tmp_path: Path) -> None:
    model = ranking_model(case, tmp_path / "folder")
    path = model.write(tmp_path / "m.gguf", **{"classifier.pooling_type": 2})
    theirs, ours = load_encoder(model.folder), load_encoder(path)
    assert isinstance(theirs, Classifier)
    assert isinstance(ours, Classifier)
    assert ours.info.capabilities == (RERANKING, CLASSIFICATION)
    expected, found = read(model.folder, *PAIRS), read(path, *PAIRS)
    np.testing.assert_allclose(found, expected, atol=EXACT)
    assert ours.scores(found) == pytest.approx(theirs.scores(expected), abs=EXACT)
    assert np.abs(expected[0] - expected[1]).max() > 1e-4
    with LLM(str(path), device="cpu") as llm:
        scores = [each.score for each in llm.score(*zip(*PAIRS, strict=True))]
    assert scores == pytest.approx(theirs.scores(expected), abs=EXACT)
    theirs.close(), ours.close()


def test_modern_bert_s_head_pools_as_the_file_says(tmp_path: Path) -> None:
    model = ranking_model("modern-bert", tmp_path / "folder", classifier_pooling="mean")
    expected = read(model.folder, *PAIRS)
    for said in (1, None):
        path = model.write(tmp_path / "m.gguf", **{"classifier.pooling_type": said})
        np.testing.assert_allclose(read(path, *PAIRS), expected, atol=EXACT)


def test_labels_are_the_file_s(tmp_path: Path) -> None:
    model = ranking_model("bert", tmp_path / "folder", num_labels=3)
    path = model.write(tmp_path / "m.gguf")
    encoder = load_encoder(path)
    assert isinstance(encoder, Classifier)
    assert encoder.info.capabilities == (CLASSIFICATION,)
    assert encoder.labels == ["label 0", "label 1", "label 2"]
    np.testing.assert_allclose(read(path, *TEXTS), read(model.folder, *TEXTS), atol=EXACT)
    encoder.close()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"pooling_type": 4}, "pooling_type"),
        ({"pooling_type": "mean"}, "pooling_type"),
        ({"block_count": 1000}, "block_count"),
        ({"block_count": None}, "block_count"),
        ({"attention.head_count": 0}, "head_count"),
        ({"attention.layer_norm_epsilon": -1.0}, "epsilon"),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, "stretched"),
        ({"tokenizer.ggml.model": "unheard"}, "tokenizer"),
        ({"tokenizer.ggml.model": "none"}, "tokenizer"),
    ],
)
def test_metadata_that_are_not_understood(
    changes: dict[str, object], told: str, bert: Model, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=told):
        load_encoder(bert.write(tmp_path / "m.gguf", **changes))


def test_tensors_that_are_missing_or_too_many(bert: Model, tmp_path: Path) -> None:
    missing = {k: each for k, each in bert.tensors.items() if k != "blk.1.attn_k.weight"}
    more = {**bert.tensors, "blk.1.attn_sinks.weight": torch.zeros(2)}
    other = {**bert.tensors, "blk.1.attn_k.weight": torch.zeros(16, 8)}
    for tensors, told in ((missing, "missing"), (more, "attn_sinks"), (other, "shape")):
        with pytest.raises(CheckpointError, match=told):
            load_encoder(bert.write(tmp_path / "m.gguf", tensors))


def test_a_file_that_ranks_without_an_output_is_refused(bert: Model, tmp_path: Path) -> None:
    """Of its head there is the first layer alone."""
    tensors = {**bert.tensors, "cls.weight": torch.zeros(1, 16), "cls.bias": torch.zeros(1)}
    with pytest.raises(CheckpointError, match="pooling_type 4") as caught:
        load_encoder(bert.write(tmp_path / "m.gguf", tensors, pooling_type=4))
    assert "cls.output.weight" in caught.value.hint


def test_scores_of_a_file_without_bert_s_pooler_are_refused(tmp_path: Path) -> None:
    model = ranking_model("bert", tmp_path / "folder")
    tensors = {
        k: each for k, each in model.tensors.items() if not k.startswith("cls.") or "output" in k
    }
    with pytest.raises(CheckpointError, match="pooler"):
        load_encoder(model.write(tmp_path / "m.gguf", tensors))


def test_texts_that_are_too_long(bert: Model, tmp_path: Path) -> None:
    path = bert.write(tmp_path / "m.gguf")
    cut = read(path, "a " * 100, cut=Cut())
    np.testing.assert_allclose(cut, read(path, "a " * 62), atol=EXACT)


def test_a_network_of_ours_without_experts_is_jina_s_third(tmp_path: Path) -> None:
    model = embedding_model("jina-bert-v3", tmp_path / "folder")
    metadata = {k.replace("jina-bert-v3", "nomic-bert-moe"): v for k, v in model.metadata.items()}
    metadata |= {"general.architecture": "nomic-bert-moe", "nomic-bert-moe.expert_used_count": 2}
    path = ggufs.write(tmp_path / "m.gguf", model.tensors, metadata)
    np.testing.assert_allclose(read(path, *TEXTS), read(model.folder, *TEXTS), atol=1e-5)


def ours(
    case: str, **more: int
) -> tuple[dict[str, Tensor], dict[str, object], encoder_ggufs.Vocabulary]:
    """The tensors, the metadata and the vocabulary of a row of `OURS`, with other sizes."""
    architecture, how = case.split(",")[0], {**OURS[case], **more}
    vocabulary = encoder_ggufs.word_pieces()
    own: dict[str, object] = {
        "block_count": NUM_LAYERS,
        "context_length": 64,
        "feed_forward_length": INNER_SIZE,
        "attention.head_count": how["heads"],
        "attention.layer_norm_epsilon": 1e-12,
        "pooling_type": 1,
        "expert_used_count": NUM_CHOSEN,
    }
    metadata = {f"{architecture}.{key}": each for key, each in own.items()}
    metadata |= {"general.architecture": architecture, **vocabulary.metadata}
    return random_tensors(architecture, **how), metadata, vocabulary


@pytest.mark.parametrize("case", OURS)
def test_networks_of_ours_compute_what_llama_cpp_s_graph_says(case: str, tmp_path: Path) -> None:
    tensors, metadata, vocabulary = ours(case)
    path = ggufs.write(tmp_path / "m.gguf", tensors, metadata)
    plain = PlainBert(tensors, OURS[case]["heads"], rotates="jina-bert-v2" not in case)
    expected = []
    for text in TEXTS:
        vector = plain.states(vocabulary.tokenizer(text)["input_ids"]).mean(0)
        expected.append(vector / vector.norm())
    np.testing.assert_allclose(read(path, *TEXTS), torch.stack(expected), atol=2e-5)
    del tensors["blk.1.attn_output.weight"]
    with pytest.raises(CheckpointError, match=r"self_attn\.o_proj"):
        load_encoder(ggufs.write(tmp_path / "m.gguf", tensors, metadata))


def test_distances_take_little_memory_whatever_the_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors, metadata, _ = ours("jina-bert-v2")
    path = ggufs.write(tmp_path / "m.gguf", tensors, metadata)
    expected = read(path, *TEXTS)
    attend = torch.nn.functional.scaled_dot_product_attention
    sizes = []

    def attend_and_count(*args: Tensor, attn_mask: Tensor) -> Tensor:
        sizes.append(attn_mask.numel())
        return attend(*args, attn_mask=attn_mask)

    monkeypatch.setattr(post_norm, "_MAX_BIAS_NUMBERS", 2000)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend_and_count)
    np.testing.assert_allclose(read(path, *TEXTS), expected, atol=EXACT)
    assert len(sizes) > NUM_LAYERS
    assert max(sizes) <= 2000
