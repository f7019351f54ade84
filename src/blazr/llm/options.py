"""How a model is loaded: the arguments of `LLM`, the flags of ``blazr serve``, its ``[models]``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Concatenate, ParamSpec

from blazr.core.errors import ConfigError
from blazr.engine.config import EngineConfig

P = ParamSpec("P")
MAX_RANKS = 64
ALL_LAYERS = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions(EngineConfig):
    """How a model is loaded, and how its engine divides the machine.

    The command line and ``[models]`` in the settings file take their flags, keys and help from
    here; a field added here is one everywhere.

    Args:
        model: Directory, .safetensors or .gguf file, Hugging Face id, or built-in nano.
        revision: Branch, tag or commit of a Hugging Face id; by default the default branch.
        vocab: Vocabulary: a name (cl100k_base, llama3, …) or a tokenizer file; by default the
            model's.
        mmproj: Image encoder of a GGUF model: a file, or org/name:file.gguf on the Hub; by default
            a file beside the model whose name begins with mmproj.
        model_impl: Whose network runs: auto, or transformers, also where blazr has one of its own;
            slower, but it reads the images of Gemma 4, for example.
        device: Where to compute: auto, cpu, cuda, or cuda:1 for the second GPU; on xpu and mps
            without blazr's own kernels.
        dtype: What to compute in: auto, float32, bfloat16 or float16.
        quantize: Quantize the weights while loading: q8_0, q4_0, q4_k, int8 or int4; or by part:
            experts=q4_0,lm_head=q8_0.
        cpu_moe: Keep all experts on the CPU, which computes them while the GPU computes the rest.
        n_cpu_moe: Keep the experts of this many layers on the CPU, from the first layer on.
        place: Another way to write cpu_moe: experts=cpu.
        exact: On a GPU, sum in a fixed order, so that a reply does not depend on what else is in
            the batch; slower. On a CPU this is always the case.
        tp: Tensor parallelism: processes that hold a part of every layer each; one GPU per process.
        pp: Pipeline parallelism: processes that hold some of the layers each; not together with tp.
        adapter: LoRA adapters that requests may ask for by name: NAME=PATH, with commas between
            several; each a directory in PEFT's format or a .gguf file.
        chat_template: Chat template: a name or a .jinja file; by default the model's.
        tool_parser: How the model writes tool calls (hermes, mistral, …), or none; by
            default it is detected.
        reasoning_parser: How the model marks its thinking (think, harmony, granite, …), or none;
            by default it is detected.

    Raises:
        ConfigError: A value is out of its range.
    """

    model: str = field(default="nano", kw_only=False)
    revision: str | None = None
    vocab: str | None = None
    mmproj: str | None = None
    model_impl: str = "auto"
    device: str = "auto"
    dtype: str = "auto"
    quantize: str | None = None
    cpu_moe: bool = False
    n_cpu_moe: int = 0
    place: str | None = None
    exact: bool = False
    tp: int = 1
    pp: int = 1
    adapter: str | None = None
    chat_template: str | None = None
    tool_parser: str | None = None
    reasoning_parser: str | None = None

    def __post_init__(self) -> None:
        EngineConfig.__post_init__(self)
        for name in ("tp", "pp"):
            if not 1 <= getattr(self, name) <= MAX_RANKS:
                raise ConfigError(
                    f"{name} is out of range.",
                    found=str(getattr(self, name)),
                    expected=f"1 to {MAX_RANKS}",
                )
        if self.model_impl not in {"auto", "transformers"}:
            raise ConfigError(
                "there is no network of this kind.",
                found=f"model_impl {self.model_impl!r:.50}",
                expected="auto or transformers",
            )
        if self.n_cpu_moe < 0:
            raise ConfigError(
                "n_cpu_moe is out of range.", found=str(self.n_cpu_moe), expected="0 or more layers"
            )
        if self.place not in {None, "experts=cpu"}:
            raise ConfigError(
                "nothing is placed in this way.",
                found=f"place {self.place!r:.50}",
                expected="experts=cpu",
                hint="--device says where all else is",
            )
        if self.cpu_experts and self.adapter is not None:
            raise ConfigError(
                "adapters do not work beside experts on the CPU yet.",
                found=f"adapter {self.adapter:.50}",
                hint="merge it into the weights (blazr convert)",
            )
        if self.num_ranks == 1:
            return
        from blazr.engine.speculation import parse_spec  # imports numpy

        drafters = parse_spec(self.spec)
        for name, is_asked, instead in (
            ("cutting both layers and their parts", min(self.tp, self.pp) > 1, "one of the two"),
            ("leaving experts on the CPU", self.cpu_experts > 0, "leave it out"),
            ("model_impl", self.model_impl != "auto", "leave it out"),
            ("adapter", self.adapter is not None, "merge it into the weights (blazr convert)"),
            ("cache_dir", self.cache_dir is not None, "leave it out"),
            ("spec mtp", "mtp" in drafters, "take --spec ngram"),
            ("spec eagle3", "eagle3" in drafters, "take --spec ngram"),
            ("spec draft", "draft" in drafters, "take --spec ngram"),
        ):
            if is_asked:
                raise ConfigError(
                    f"{name} does not work over several ranks yet.",
                    found=f"--tp {self.tp} --pp {self.pp}",
                    hint=instead,
                )

    @property
    def cpu_experts(self) -> int:
        """Of how many layers, from the first on, the experts stay on the CPU."""
        return ALL_LAYERS if self.cpu_moe or self.place is not None else self.n_cpu_moe

    @property
    def num_ranks(self) -> int:
        """Processes that the model is spread over."""
        return self.tp * self.pp


def check_cache_disk(models: Iterable[EngineConfig]) -> None:
    """Refuse a limit for the files of prefixes where no model keeps any.

    One of several models is enough: a settings file may say the limit once, for all.

    Raises:
        ConfigError: ``cache_disk`` is given, and ``cache_dir`` is not.
    """
    found = [(each.cache_dir, each.cache_disk) for each in models]
    usual = EngineConfig().cache_disk
    given = next((disk for _, disk in found if disk != usual), None)
    if given is not None and all(folder is None for folder, _ in found):
        raise ConfigError(
            "cache_disk limits the files in cache_dir, and there is no cache_dir.",
            found=f"cache_disk {given:.50}",
            hint="name a directory: --cache-dir DIR",
        )


def takes(
    options: Callable[P, object],
) -> Callable[[Callable[..., None]], Callable[Concatenate[object, P], None]]:
    """Give an ``__init__`` with ``**keywords`` the signature of ``options``, for type checkers."""
    del options  # only its type matters

    def decorate(init: Callable[..., None]) -> Callable[Concatenate[object, P], None]:
        return init

    return decorate
