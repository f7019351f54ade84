"""Random models that speak, small, as transformers saves them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from blazr.pipelines.audio.speaker import Speaker
from blazr.pipelines.audio.speech import SoundMade, SpeechRequest
from tests.support.pipelines import load_pipeline
from tests.support.seeds import run_seed
from tests.support.vision_models import tokenizer_of

_LETTERS = "abcdefghijklmnopqrstuvwxyz',.?"


def _save_tokenizer(path: Path, *marks: str) -> Any:
    import transformers

    found = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer_of(marks), pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    found.save_pretrained(path)
    return found


def _draw(network: torch.nn.Module) -> None:
    """Other numbers than those that a training begins with: some of these are 0."""
    for name, values in [*network.named_parameters(), *network.named_buffers()]:
        if values.ndim > 1 and values.is_floating_point():
            torch.nn.init.normal_(values.data, 0.0, 0.3)
        elif name.endswith("cluster_usage"):
            torch.nn.init.ones_(values)


def save_bark(path: Path) -> None:
    """With two voices; it says some tokens and stops."""
    import transformers

    sizes = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "dropout": 0.0}
    codec = transformers.EncodecConfig(
        num_filters=2,
        hidden_size=8,
        codebook_dim=8,
        num_residual_layers=1,
        num_lstm_layers=1,
        target_bandwidths=[6.0],
    )
    config = transformers.BarkConfig(
        semantic_config=transformers.BarkSemanticConfig(
            **sizes, input_vocab_size=129_600, output_vocab_size=10_048
        ).to_dict(),
        coarse_acoustics_config=transformers.BarkCoarseConfig(
            **sizes, input_vocab_size=12_096, output_vocab_size=12_096
        ).to_dict(),
        fine_acoustics_config=transformers.BarkFineConfig(
            **sizes, input_vocab_size=1_056, output_vocab_size=1_056
        ).to_dict(),
        codec_config=codec.to_dict(),
    )
    torch.manual_seed(run_seed())
    network = transformers.BarkModel(config)
    network.generation_config = transformers.GenerationConfig()  # its own cannot be written
    _draw(network)
    network.save_pretrained(path)
    _save_tokenizer(path)
    generation = {
        "semantic_config": {
            "max_new_tokens": 9,
            "do_sample": True,
            "eos_token_id": 10_000,
            "semantic_vocab_size": 10_000,
            "max_input_semantic_length": 256,
        },
        "coarse_acoustics_config": {"do_sample": True},
        "fine_acoustics_config": {"temperature": 0.5},
        "codebook_size": 1024,
        "sample_rate": 24_000,
    }
    (path / "generation_config.json").write_text(json.dumps(generation))
    chance = np.random.default_rng(run_seed())
    voices: dict[str, object] = {"repo_or_path": "org/bark"}
    (path / "presets").mkdir()
    for name in ("v2/en_speaker_1", "v2/en_speaker_2"):
        voices[name] = {}
        parts = {"semantic_prompt": (20,), "coarse_prompt": (2, 30), "fine_prompt": (8, 30)}
        for part, shape in parts.items():
            file = f"presets/{name.replace('/', '_')}_{part}.npy"
            np.save(path / file, chance.integers(0, 1024, shape))
            voices[name][part] = file
    (path / "speaker_embeddings_path.json").write_text(json.dumps(voices))


def save_csm(path: Path) -> None:
    """With four codebooks."""
    import transformers

    raw = tokenizer_of(("<|AUDIO|>", "<|audio_eos|>"))
    sizes = {"hidden_size": 16, "intermediate_size": 20, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 1, "num_hidden_layers": 1, "vocab_size": 67}
    codec = transformers.MimiConfig(
        num_filters=2,
        hidden_size=8,
        num_hidden_layers=1,
        intermediate_size=8,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=4,
        codebook_size=64,
        codebook_dim=8,
        num_quantizers=4,
        vector_quantization_hidden_dimension=8,
        num_semantic_quantizers=1,
        upsampling_ratios=[4, 2],
        upsample_groups=8,
    )
    config = transformers.CsmConfig(
        **sizes,
        text_vocab_size=raw.get_vocab_size(),
        num_codebooks=4,
        codebook_pad_token_id=65,
        codebook_eos_token_id=0,
        bos_token_id=raw.token_to_id("<s>"),
        pad_token_id=raw.token_to_id("<pad>"),
        audio_token_id=raw.token_to_id("<|AUDIO|>"),
        audio_eos_token_id=raw.token_to_id("<|audio_eos|>"),
        depth_decoder_config={
            **sizes,
            "num_codebooks": 4,
            "backbone_hidden_size": 16,
            "max_position_embeddings": 5,
        },
        codec_config=codec.to_dict(),
    )
    torch.manual_seed(run_seed())
    network = transformers.CsmForConditionalGeneration(config)
    _draw(network)
    network.save_pretrained(path)
    generation = {"do_sample": True, "depth_decoder_do_sample": True}
    generation |= {"depth_decoder_min_new_tokens": 3, "depth_decoder_max_new_tokens": 3}
    (path / "generation_config.json").write_text(json.dumps(generation))
    _save_tokenizer(path, "<|AUDIO|>", "<|audio_eos|>")


def save_dia(path: Path) -> None:
    """With its codec inside, of three channels."""
    import transformers

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.DiaConfig(
        encoder_config={**sizes, "num_key_value_heads": 2},
        decoder_config={
            **sizes,
            "cross_num_attention_heads": 2,
            "cross_num_key_value_heads": 2,
            "cross_head_dim": 8,
            "cross_hidden_size": 16,
            "num_channels": 3,
            "vocab_size": 68,
            "eos_token_id": 64,
            "pad_token_id": 65,
            "bos_token_id": 66,
        },
        delay_pattern=[0, 2, 3],
    )
    torch.manual_seed(run_seed())
    network = transformers.DiaForConditionalGeneration(config)
    _draw(network)
    network.generation_config.update(
        do_sample=True, eos_token_id=64, pad_token_id=65, bos_token_id=66, guidance_scale=3.0
    )
    network.save_pretrained(path)
    transformers.DiaTokenizer().save_pretrained(path)
    transformers.DiaFeatureExtractor(hop_length=8).save_pretrained(path)
    codec = transformers.DacModel(
        transformers.DacConfig(
            encoder_hidden_size=4,
            decoder_hidden_size=8,
            downsampling_ratios=[4, 2],
            upsampling_ratios=[4, 2],
            n_codebooks=3,
            codebook_size=64,
            codebook_dim=4,
            sampling_rate=44_100,
        )
    )
    _draw(codec)
    codec.save_pretrained(path / "codec")


def save_speecht5(path: Path) -> None:
    """With two voices, and its vocoder inside."""
    import sentencepiece
    import transformers

    path.mkdir(exist_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(_LETTERS), _LETTERS] * 3),
        model_prefix=str(path / "spm_char"),
        model_type="char",
        vocab_size=len(_LETTERS) + 5,
        pad_id=1,
        bos_id=0,
        eos_id=2,
        unk_id=3,
        minloglevel=3,
    )
    tokenizer = transformers.SpeechT5Tokenizer(str(path / "spm_char.model"))
    tokenizer.save_pretrained(path)
    config = transformers.SpeechT5Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        encoder_layers=1,
        encoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_layers=1,
        decoder_attention_heads=2,
        decoder_ffn_dim=16,
        num_mel_bins=8,
        speaker_embedding_dim=6,
        speech_decoder_prenet_units=8,
        speech_decoder_postnet_layers=1,
        speech_decoder_postnet_units=8,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        conv_dim=[8, 8],
        conv_kernel=[3, 3],
        conv_stride=[2, 2],
        num_feat_extract_layers=2,
    )
    torch.manual_seed(run_seed())
    network = transformers.SpeechT5ForTextToSpeech(config)
    _draw(network)
    torch.nn.init.constant_(network.speech_decoder_postnet.prob_out.bias, -100.0)  # goes on
    network.save_pretrained(path)
    vocoder = transformers.SpeechT5HifiGanConfig(
        model_in_dim=8,
        upsample_initial_channel=8,
        upsample_rates=[4, 4],
        upsample_kernel_sizes=[8, 8],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1]],
    )
    second = transformers.SpeechT5HifiGan(vocoder)
    _draw(second)
    second.save_pretrained(path / "vocoder")
    (path / "voices").mkdir()
    for number, name in enumerate(("clb", "rms")):
        vector = np.random.default_rng(number).normal(size=6).astype(np.float32)
        np.save(path / "voices" / f"{name}.npy", vector)


SAVERS: Mapping[str, Callable[[Path], None]] = {
    "bark": save_bark,
    "csm": save_csm,
    "dia": save_dia,
    "speecht5": save_speecht5,
}
RATES = {"bark": 24_000, "csm": 24_000, "dia": 44_100, "speecht5": 16_000}


class LeftError(Exception):
    """The client has left."""


class Said:
    """What a model has said, and how often it looked whether its client is there.

    Args:
        leaves_after: At which look it is not; None stays.
    """

    def __init__(self, leaves_after: int | None = None) -> None:
        self.parts: list[SoundMade] = []
        self.num_checks = 0
        self._leaves_after = leaves_after

    def emit(self, item: SoundMade) -> None:
        self.parts.append(item)

    def check(self) -> None:
        self.num_checks += 1
        if self.num_checks == self._leaves_after:
            raise LeftError

    @property
    def sound(self) -> NDArray[np.float32]:
        """All of it, (N,)."""
        return np.concatenate([part.samples for part in self.parts])


def load_speaker(path: Path) -> Speaker:
    return load_pipeline(path, Speaker)


def say(
    speaker: Speaker,
    text: str = "hello there. how are you",
    *,
    voice: str = "0",
    speed: float = 1.0,
    seed: int = 3,
    said: Said | None = None,
) -> Said:
    said = said or Said()
    speaker.speak(SpeechRequest(text=text, voice=voice, speed=speed, seed=seed), said)
    return said
