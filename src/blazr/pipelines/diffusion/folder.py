"""A folder with a ``model_index.json``, as diffusers saves pipelines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from blazr.core.errors import CheckpointError
from blazr.models.checkpoint.base import read_json
from blazr.models.checkpoint.open import PIPELINE_INDEX

_READ = frozenset({".json", ".txt", ".model", ".jinja", ".safetensors"})


def read_index(directory: Path) -> tuple[str, list[str]]:
    """The class of a pipeline, and the names of its parts.

    Raises:
        CheckpointError: The index cannot be read, or names what is no part of the library: the
            library would import it. Or the pipeline is of latent consistency models, and its UNet
            is not.
        ConfigError: The UNet's configuration is no JSON object.
    """
    try:
        index = json.loads((directory / PIPELINE_INDEX).read_bytes())
        name = index["_class_name"]
        parts = [(key, *value) for key, value in index.items() if isinstance(value, (list, dict))]
        used = [(key, library) for key, library, _ in parts if library is not None]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{PIPELINE_INDEX} is not understood.",
            found=f"{type(error).__name__}: {str(error)[:100]}",
        ) from None
    foreign = [each for _, each in used if not _is_known(each)]
    if foreign or not isinstance(name, str):
        raise CheckpointError(
            "the pipeline needs code that is not part of diffusers or transformers.",
            found=str(foreign or name)[:100],
            expected="a pipeline of the library itself",
        )
    if name.startswith("LatentConsistencyModel"):
        _check_takes_guidance(directory / "unet" / "config.json")
    return name, [key for key, _ in used]


def _check_takes_guidance(config: Path) -> None:
    """Check that the UNet of latent consistency models gets the guidance, embedded.

    The library's pipelines take the size of that embedding from the UNet, and fail with the first
    image where it has none.

    Source: Luo et al. 2023, arXiv:2310.04378, section 4.2.

    Raises:
        CheckpointError: It has none.
        ConfigError: The file is no JSON object.
    """
    size = read_json(config).get("time_cond_proj_dim")
    if type(size) is not int or size < 1:
        raise CheckpointError(
            "the UNet of this pipeline is that of no latent consistency model.",
            found=f"time_cond_proj_dim {str(size)[:50]} in unet/{config.name}",
            expected="the size of an embedding of the guidance, such as 256",
            hint="if an LCM-LoRA was merged into it, save it as a StableDiffusionPipeline or a "
            "StableDiffusionXLPipeline with an LCMScheduler",
        )


def _is_known(library: object) -> bool:
    """Whether parts may come from a library: from these two, and from modules of pipelines."""
    if not isinstance(library, str) or not library.isidentifier():
        return False
    is_library = library in {"diffusers", "transformers"}
    return is_library or find_spec(f"diffusers.pipelines.{library}") is not None


@contextmanager
def only_data(directory: Path) -> Iterator[Path]:
    """A view of a folder, of links, without what could hold a program: code and pickles."""
    with TemporaryDirectory(prefix="blazr-") as made:
        view = Path(made)
        for file in (*directory.glob("*"), *directory.glob("*/*")):
            if file.suffix in _READ and file.is_file():
                link = view / file.relative_to(directory)
                link.parent.mkdir(exist_ok=True)
                link.symlink_to(file.resolve())
        yield view
