"""What the built-in model is made from: the same every time, and no story it is judged by."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
STORY = (
    "Once upon a time, there was a little dog named Spot. Spot had a red ball. He played with the "
    "ball all day. One day the ball rolled into the big river. Spot was sad, but a kind duck came. "
    "The duck pushed the ball back. Spot said thank you and they played in the park until the sun "
    "went down. Then Spot went home to his bed and slept well."
)


@pytest.fixture(autouse=True)
def _tools(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "nano"))
    yield
    for script in (ROOT / "tools" / "nano").glob("*.py"):
        sys.modules.pop(script.stem, None)


@pytest.fixture
def corpus_folder(tmp_path, monkeypatch):
    for name in ("tinystories-sample", "stories260k-samples", "stories260k-draws"):
        (tmp_path / name).mkdir()
        numbered = [STORY.replace("Spot", f"Spot{chr(97 + n)}") for n in range(20)]
        text = "\n<|endoftext|>\n".join(f"{name} {story}" for story in numbered)
        (tmp_path / name / "stories.txt").write_text(text, encoding="utf-8")
    (tmp_path / "childrens-classics").mkdir()
    import data
    from data import CLASSICS

    monkeypatch.setattr(data, "LONG_CHATS", 40)
    for book in CLASSICS:
        path = tmp_path / "childrens-classics" / f"{book}.txt"
        path.write_text(f"{STORY}\n\n{STORY}\n\n{STORY}\n", encoding="utf-8")
    return tmp_path


def test_the_last_tenth_is_never_trained_on(corpus_folder):
    from data import load_corpus

    corpus = load_corpus(corpus_folder, seed=0)
    assert len(corpus.held_out) == 2
    texts = [text for text, _ in corpus.documents]
    assert not [t for t in texts if any(story in t for story in corpus.held_out)]
    assert any(t.startswith("<|user|>\n") and "<|assistant|>\n" in t for t in texts)


def test_the_same_seed_gives_the_same_rows(corpus_folder, tmp_path):
    from data import load_corpus
    from tokenizers import Tokenizer
    from train import IGNORED, pack

    tokenizer = Tokenizer.from_file(str(ROOT / "src/blazr/data/nano/tokenizer.json"))
    tables = [
        pack(load_corpus(corpus_folder, seed=s), tokenizer, length=256, seed=s) for s in (1, 1, 2)
    ]
    assert torch.equal(tables[0], tables[1])
    assert tables[0].shape[1:] == (2, 257)
    told = tables[0][:, 1] != IGNORED
    assert 0.5 < told.float().mean() < 1
    assert tables[0].shape != tables[2].shape or not torch.equal(tables[0], tables[2])


def test_of_a_chat_the_replies_are_foreseen_and_their_ends():
    from data import END
    from tokenizers import Tokenizer
    from train import IGNORED, labels

    tokenizer = Tokenizer.from_file(str(ROOT / "src/blazr/data/nano/tokenizer.json"))
    end = tokenizer.token_to_id(END)

    def told(text):
        ids = [*tokenizer.encode(text).ids, end]
        found = labels(ids, tokenizer)
        assert len(found) == len(ids)
        kept = [each for each in found if each != IGNORED]
        return tokenizer.decode(kept, skip_special_tokens=False)

    assert told("One day.\nThe end.") == f"One day.\nThe end.{END}"
    chat = "<|system|>\nBe kind.\n<|user|>\nHi\nyou\n<|assistant|>\nHello!\nWell?\n"
    assert told(chat + "<|user|>\nBye\n<|assistant|>\nGood night!") == (
        f"Hello!\nWell?{END}Good night!{END}"
    )


@pytest.mark.parametrize("length", [1, 40, 479, 480, 510])
def test_a_drawn_story_is_kept_wherever_in_the_context_it_ends(length):
    from sample import BOS, sample

    class Teacher:
        def logits(self, tokens, position, _):
            token = BOS if position == length else 2 + position % 5
            return torch.nn.functional.one_hot(torch.full_like(tokens, token), 9) * 1e9

    stories = sample(Teacher(), 3, torch.Generator())
    assert [len(each) for each in stories] == [length] * 3


def test_weights_are_averaged(tmp_path):
    from average import average
    from safetensors.torch import load_file, save_file

    for name, value in (("own", 2.0), ("start", 1.0)):
        (tmp_path / name).mkdir()
        save_file({"a": torch.full((2, 3), value)}, tmp_path / name / "model.safetensors")
    average(tmp_path / "own", tmp_path / "start", share=0.75)
    found = load_file(tmp_path / "own" / "model.safetensors")["a"]
    assert torch.equal(found, torch.full((2, 3), 1.75))


def test_the_exported_weights_load_as_they_were(tmp_path):
    from model import init_weights, nano_config, save_model

    from blazr.models.causal_lm import CausalLM
    from blazr.models.loading.load import load
    from blazr.nn.device import resolve_device

    model = CausalLM(nano_config())
    init_weights(model, seed=3)
    save_model(model, tmp_path)
    loaded = load(str(tmp_path), device=resolve_device("cpu"))
    assert [type(x.mixer) for x in loaded.config.layers] == [
        type(x.mixer) for x in nano_config().layers
    ]
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded.module.state_dict()[name], weight), name


def test_nano_is_trained_in_bfloat16():
    from model import init_weights, nano_config

    from blazr.models.causal_lm import CausalLM

    model = CausalLM(nano_config())
    init_weights(model, seed=3)
    rows = torch.arange(2 * 80).view(2, 80)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model.forward_sequences(rows[:, :-1])
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).backward()
    gradients = [weight.grad for weight in model.parameters()]
    assert all(each is not None and each.isfinite().all() for each in gradients)


def test_an_update_is_close_to_orthogonal():
    from optimizer import orthogonalize

    for shape in ((4, 24, 60), (60, 24)):
        values = torch.linalg.svdvals(orthogonalize(torch.randn(shape)))
        assert float(values.min()) > 0.6
        assert float(values.max()) < 1.3


def test_what_is_shipped_is_what_the_scripts_describe():
    from data import END
    from tokenizer import CHAT_TEMPLATE, VOCAB_SIZE
    from tokenizers import Tokenizer

    folder = ROOT / "src" / "blazr" / "data" / "nano"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    assert tokenizer.token_to_id(END) == VOCAB_SIZE - 55
    assert tokenizer.token_to_id("<|system|>") == VOCAB_SIZE - 54
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["chat_template"] == CHAT_TEMPLATE
    assert sum(p.stat().st_size for p in folder.iterdir()) <= 12_000_000
