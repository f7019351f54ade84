"""A small random Whisper with a tokenizer of bytes, and real speech."""

from __future__ import annotations

import io
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.support.seeds import run_seed

_PACKAGES = ("python_multipart", "soundfile", "soxr", "transformers")
NEEDS_AUDIO = pytest.mark.skipif(
    any(find_spec(name) is None for name in _PACKAGES), reason="the audio extra is not installed"
)
RATE = 16_000
SPEECH = Path(__file__).parent.parent / "golden" / "silero-vad"
LANGUAGES = ("en", "de", "zh")
_TINY = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}


def speech(start_s: float = 0.0, end_s: float = 60.0) -> NDArray[np.float32]:
    """A minute of speech, or a part of it, (N,)."""
    import soundfile

    samples, rate = soundfile.read(SPEECH / "test.flac", dtype="float32")
    assert rate == RATE
    return samples[int(start_s * RATE) : int(end_s * RATE)]


def sound_file(
    samples: NDArray[np.float32], *, form: str = "WAV", rate: int = RATE, subtype: str | None = None
) -> bytes:
    """The bytes of a sound file."""
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=form, subtype=subtype)
    return file.getvalue()


def save_whisper(path: Path) -> None:
    """Save a random Whisper; it says other things of other sounds."""
    import transformers

    vocab = {
        char: index for index, char in enumerate(byte_characters())
    }  # the id of a byte is itself
    marks = ["<|endoftext|>", "<|startoftranscript|>"]
    marks += [f"<|{code}|>" for code in LANGUAGES]
    marks += ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>"]
    marks += ["<|nospeech|>", "<|notimestamps|>", *(f"<|{0.02 * n:.2f}|>" for n in range(1501))]
    ids = {mark: len(vocab) + index for index, mark in enumerate(marks)}
    tokenizer = transformers.WhisperTokenizerFast(
        vocab={**vocab, **ids},
        merges=[],
        unk_token="<|endoftext|>",
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
        additional_special_tokens=[each for each in marks if not each[2].isdigit()],
    )
    tokenizer.add_tokens([each for each in marks if each[2].isdigit()])
    end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    config = transformers.WhisperConfig(
        vocab_size=len(vocab) + len(marks),
        num_mel_bins=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        d_model=16,
        max_target_positions=64,
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        decoder_start_token_id=start,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    torch.manual_seed(run_seed())
    network = transformers.WhisperForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in network.parameters():  # so that what is heard decides what is said
            parameter.copy_(torch.randn_like(parameter) * 0.3)
        # times are written where they are asked for
        network.model.decoder.embed_tokens.weight[ids["<|0.00|>"] :] *= 0.02
    network.save_pretrained(path)
    transformers.WhisperFeatureExtractor(feature_size=16).save_pretrained(path)
    tokenizer.save_pretrained(path)
    # what is left to say is ASCII
    generation = {
        "decoder_start_token_id": start,
        "eos_token_id": end,
        "pad_token_id": end,
        "bos_token_id": end,
        "max_length": 40,
        "is_multilingual": True,
        "lang_to_id": {f"<|{code}|>": ids[f"<|{code}|>"] for code in LANGUAGES},
        "task_to_id": {task: ids[f"<|{task}|>"] for task in ("transcribe", "translate")},
        "no_timestamps_token_id": ids["<|notimestamps|>"],
        "prev_sot_token_id": ids["<|startofprev|>"],
        "max_initial_timestamp_index": 50,
        "suppress_tokens": [*range(32), *range(127, 256), *range(start, ids["<|notimestamps|>"])],
        "alignment_heads": [[1, 0], [1, 1]],
    }
    (path / "generation_config.json").write_text(json.dumps(generation))


def save_ctc(path: Path, kind: str = "Wav2Vec2", **more: object) -> None:
    """Save a random model with CTC that knows some letters.

    Args:
        path: Where to.
        kind: What the library's classes of such models begin with.
        more: Of its config.
    """
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        vocab_size=_save_letters(path),
        **_TINY,
        num_hidden_layers=1,
        conv_dim=[8, 8],
        conv_stride=[16, 20],
        conv_kernel=[16, 20],
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        pad_token_id=0,
        **more,
    )
    _save_with_head(path, getattr(transformers, f"{kind}ForCTC"), config, "lm_head")
    tokenizer = transformers.Wav2Vec2CTCTokenizer(str(path / "vocab.json"))
    features = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=False)
    transformers.Wav2Vec2Processor(features, tokenizer).save_pretrained(path)


def save_wav2vec2_bert(path: Path) -> None:
    """The same with spectrograms in the place of a network over samples."""
    import transformers

    config = transformers.Wav2Vec2BertConfig(
        vocab_size=_save_letters(path),
        **_TINY,
        num_hidden_layers=1,
        feature_projection_input_dim=16,
        pad_token_id=0,
    )
    _save_with_head(path, transformers.Wav2Vec2BertForCTC, config, "lm_head")
    tokenizer = transformers.Wav2Vec2CTCTokenizer(str(path / "vocab.json"))
    features = transformers.SeamlessM4TFeatureExtractor(feature_size=8, num_mel_bins=8, stride=2)
    transformers.Wav2Vec2BertProcessor(features, tokenizer).save_pretrained(path)


def save_parakeet(path: Path) -> None:
    """Save a random Parakeet with CTC, whose tokens are letters."""
    import transformers
    from tokenizers import Tokenizer, models

    vocab = {"<unk>": 0, "<pad>": 9, **{letter: n for n, letter in enumerate("ABCDEFGH", 1)}}
    raw = Tokenizer(models.BPE(vocab, [], unk_token="<unk>"))
    tokenizer = transformers.ParakeetTokenizer(
        tokenizer_object=raw, unk_token="<unk>", pad_token="<pad>"
    )
    config = transformers.ParakeetCTCConfig(
        vocab_size=10,
        pad_token_id=9,
        encoder_config={
            **_TINY,
            "num_hidden_layers": 1,
            "num_mel_bins": 16,
            "subsampling_conv_channels": 8,
            "conv_kernel_size": 3,
        },
    )
    path.mkdir(parents=True, exist_ok=True)
    _save_with_head(path, transformers.ParakeetForCTC, config, "ctc_head")
    features = transformers.ParakeetFeatureExtractor(feature_size=16)
    transformers.ParakeetProcessor(features, tokenizer).save_pretrained(path)


def _save_letters(path: Path) -> int:
    path.mkdir(parents=True, exist_ok=True)
    letters = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ABCDEFGH"]
    (path / "vocab.json").write_text(json.dumps({x: n for n, x in enumerate(letters)}))
    return len(letters)


def _save_with_head(path: Path, kind: Any, config: object, head: str) -> None:
    """Save a random network whose scores differ from token to token."""
    torch.manual_seed(run_seed())
    network = kind(config)
    with torch.no_grad():
        for parameter in getattr(network, head).parameters():
            parameter.copy_(torch.randn_like(parameter))
    network.save_pretrained(path)


def save_moonshine(path: Path) -> None:
    """Save a random Moonshine with a tokenizer of bytes."""
    import transformers
    from tokenizers import Tokenizer, decoders, models

    vocab = {char: index + 3 for index, char in enumerate(byte_characters())}
    raw = Tokenizer(models.BPE({"<unk>": 0, "<s>": 1, "</s>": 2, **vocab}, []))
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    config = transformers.MoonshineConfig(
        vocab_size=len(vocab) + 3,
        **{name: size for name, size in _TINY.items() if name != "num_attention_heads"},
        encoder_num_hidden_layers=1,
        decoder_num_hidden_layers=1,
        encoder_num_attention_heads=2,
        decoder_num_attention_heads=2,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    torch.manual_seed(run_seed())
    network = transformers.MoonshineForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    network.save_pretrained(path)
    features = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True)
    transformers.Wav2Vec2Processor(features, tokenizer).save_pretrained(path)


def save_vits(path: Path, *, num_speakers: int = 1) -> None:
    """Save a random VITS that knows small letters, at 16 kHz."""
    import transformers

    letters = "_ abcdefghijklmnopqrstuvwxyz'."
    path.mkdir(parents=True, exist_ok=True)
    (path / "letters.json").write_text(json.dumps({x: n for n, x in enumerate(letters)}))
    tokenizer = transformers.VitsTokenizer(
        str(path / "letters.json"), pad_token="_", unk_token="_", phonemize=False, is_uroman=False
    )
    config = transformers.VitsConfig(
        vocab_size=len(letters),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        window_size=2,
        ffn_dim=16,
        flow_size=16,
        spectrogram_bins=17,
        upsample_initial_channel=16,
        upsample_rates=[8, 8],
        upsample_kernel_sizes=[16, 16],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1]],
        depth_separable_num_layers=1,
        prior_encoder_num_flows=1,
        prior_encoder_num_wavenet_layers=1,
        posterior_encoder_num_wavenet_layers=1,
        duration_predictor_num_flows=1,
        duration_predictor_filter_channels=16,
        num_speakers=num_speakers,
        speaker_embedding_size=8 if num_speakers > 1 else 0,
        sampling_rate=RATE,
    )
    torch.manual_seed(run_seed())
    network = transformers.VitsModel(config)
    network.save_pretrained(path)
    tokenizer.save_pretrained(path)


def byte_characters() -> list[str]:
    """The characters that stand for the bytes 0 to 255 [Radford et al., 2019, GPT-2]."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(each) if each in plain else chr(next(others)) for each in range(256)]
