"""The adapters of a model by the names that requests call them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from blazr.core.errors import ConfigError, RequestError
from blazr.engine.adapters import Adapter
from blazr.llm.bundle import ModelBundle

if TYPE_CHECKING:
    from blazr.engine.async_engine import AsyncEngine

_LISTED = 5  # names in a message


@dataclass(frozen=True, slots=True)
class NamedAdapter:
    """An adapter in memory.

    Args:
        name: What requests call it.
        path: Its directory.
        adapter: As the engine knows it.
    """

    name: str
    path: Path
    adapter: Adapter


class Adapters:
    """The adapters of a model; any thread may load, unload and look.

    Args:
        engine: Computes with them.
        bundle: Returns the model as it is now; its weights may be replaced.

    Attributes:
        by_name: Those that are loaded. The mapping is replaced, never changed.
    """

    def __init__(self, engine: AsyncEngine, bundle: Callable[[], ModelBundle | None]) -> None:
        self._engine = engine
        self._bundle = bundle
        self.by_name: Mapping[str, NamedAdapter] = {}
        self._lock = threading.Lock()  # held while one is read

    @property
    def paths(self) -> Mapping[str, Path]:
        """Where they were read, by name."""
        return {name: each.path for name, each in self.by_name.items()}

    def find(self, name: str) -> NamedAdapter:
        """The adapter of a name.

        Raises:
            RequestError: There is none.
        """
        found = self.by_name.get(name)
        if found is None:
            known = ", ".join(map(repr, sorted(self.by_name)[:_LISTED])) or "none"
            raise RequestError(
                "there is no such adapter.",
                param="adapter",
                found=repr(name)[:100],
                expected=f"one of those that are loaded: {known}",
                hint="load it with --adapter NAME=PATH or POST /v1/load_lora_adapter",
            )
        return found

    def load(self, name: str, path: Path, *, in_place: bool = False) -> NamedAdapter:
        """Read an adapter, and hold it for requests that name it.

        Args:
            name: What requests will call it.
            path: A directory of PEFT's, or a GGUF file.
            in_place: Whether it takes the place of the one of that name, if there is one. Requests
                that run or wait keep the old one to their ends; until then there are both.

        Raises:
            RequestError: The name is empty or taken, or the model takes no adapters.
            CheckpointError: It cannot be read, or is not of this model.
            ConfigError: Its configuration is wrong, or of a kind that is not supported.
            CapacityError: There are too many.
        """
        from blazr.models.adapters.attach import plan_adapter
        from blazr.models.adapters.gguf import rules_for_adapter
        from blazr.models.adapters.read import read_adapter
        from blazr.models.loading.load import LoadedModel

        with self._lock:
            old = self.by_name.get(name)
            if not name or (old is not None and not in_place):
                raise RequestError(
                    "the name of an adapter has to be new.",
                    param="lora_name",
                    found=repr(name)[:100],
                    hint="unload the other one first, replace it with load_inplace, or take "
                    "another name",
                )
            bundle = self._bundle()
            weights = None if bundle is None else bundle.weights
            factors = {}
            fingerprint = ""
            if isinstance(weights, LoadedModel):
                file = read_adapter(path)
                rules = rules_for_adapter(
                    file,
                    family=weights.family,
                    config=weights.config,
                    metadata=weights.gguf,
                    rules=weights.rules,
                )
                factors = plan_adapter(file, weights.module, rules)
                fingerprint = file.fingerprint
            adapter = self._engine.load_adapter(
                factors, fingerprint=fingerprint, replaces=None if old is None else old.adapter
            )
            found = NamedAdapter(name, path, adapter)
            self.by_name = {**self.by_name, name: found}
        return found

    def unload(self, name: str) -> None:
        """Forget an adapter; its memory is freed when the last request that uses it has ended.

        Raises:
            RequestError: There is none of that name.
        """
        with self._lock:
            found = self.find(name)
            self.by_name = {key: each for key, each in self.by_name.items() if key != name}
            self._engine.unload_adapter(found.adapter)


def parse_adapters(text: str | None) -> dict[str, Path]:
    """Directories by name, from ``NAME=PATH`` with commas between several.

    Raises:
        ConfigError: It is not of that form.
    """
    found: dict[str, Path] = {}
    for part in (text or "").split(","):
        name, _, path = part.strip().partition("=")
        if not part.strip():
            continue
        if not name or not path or name in found:
            raise ConfigError(
                "--adapter is not understood.",
                found=repr(part)[:100],
                expected="NAME=PATH, each name once, with commas between several",
            )
        found[name] = Path(path).expanduser()
    return found
