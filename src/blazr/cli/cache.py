"""``blazr pull``, ``list`` and ``rm``: the models in the Hugging Face cache."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from blazr.cli import options
from blazr.core.errors import CheckpointError, ConfigError
from blazr.core.json_text import dump_json
from blazr.core.sizes import size_text

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo, HFCacheInfo

_SUFFIXES = (".safetensors", ".gguf")
_SHORT_COMMIT_LEN = 12
_HOW_TO_GET_MODELS = """\
  blazr pull ORG/NAME    fetches a model from huggingface.co
  blazr run nano         runs the small model that comes with blazr
A model in a folder of your own needs no entry here: blazr run path/to/model"""
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Revision = Annotated[
    str | None, typer.Option(help="Branch, tag or commit.  [default: the default branch]")
]


def pull(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL", help="Hugging Face ids, or files of one (org/name:file.gguf)."
        ),
    ],
    *,
    revision: Revision = None,
    verbose: options.Verbose = False,  # noqa: ARG001  (its callback does it)
) -> None:
    """Download models from the Hugging Face Hub into its cache, where all commands find them."""
    from blazr.models.checkpoint.open import fetch_model

    for model in models:
        print(fetch_model(model, revision=revision))


def list_models(
    *,
    as_json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001  (its callback does it)
) -> None:
    """List the models in the Hugging Face cache, the last used first."""
    rows = [
        {
            "name": repo.repo_id,
            "bytes": repo.size_on_disk,
            "last_used": datetime.fromtimestamp(repo.last_accessed, UTC).isoformat(),
            "revisions": sorted(
                [*revision.refs, revision.commit_hash[:_SHORT_COMMIT_LEN]][0]
                for revision in repo.revisions
            ),
            "has_weights": any(
                file.file_name.endswith(_SUFFIXES)
                for revision in repo.revisions
                for file in revision.files
            ),
            "path": str(repo.repo_path),
        }
        for repo in _models(_scan())
    ]
    if as_json:
        print(dump_json(rows, indent=2))
        return
    if not rows:
        # on stderr, so that a script still reads an empty list
        from huggingface_hub import constants

        print(f"No models in {constants.HF_HUB_CACHE}.\n{_HOW_TO_GET_MODELS}", file=sys.stderr)
    for row in rows:
        used = str(row["last_used"])[:10]
        num_bytes = row["bytes"]
        assert isinstance(num_bytes, int)
        size = size_text(num_bytes)
        note = "" if row["has_weights"] else "  (no weights that blazr can read)"
        print(f"{row['name']:<48} {size:>12}  {used}{note}")


def remove(
    models: Annotated[list[str], typer.Argument(metavar="MODEL", help="Hugging Face ids.")],
    *,
    revision: Revision = None,
    yes: Yes = False,
    verbose: options.Verbose = False,  # noqa: ARG001  (its callback does it)
) -> None:
    """Remove models from the Hugging Face cache."""
    cache = _scan()
    repos = {repo.repo_id: repo for repo in _models(cache)}
    commits = []
    for model in models:
        if model not in repos:
            raise CheckpointError(
                f"{model[:100]!r} is not in the cache.",
                expected=", ".join(sorted(repos)[:8]) or "(the cache is empty)",
                hint="blazr list shows all",
            )
        own = repos[model].revisions
        found = [
            each.commit_hash
            for each in own
            if revision is None or revision in each.refs or each.commit_hash.startswith(revision)
        ]
        if not found:
            known = (", ".join([*each.refs, each.commit_hash[:_SHORT_COMMIT_LEN]]) for each in own)
            raise CheckpointError(
                f"{model[:100]!r} has no such revision in the cache.",
                found=repr(revision)[:100],
                expected="; ".join(known)[:300],
            )
        commits += found
    plan = cache.delete_revisions(*commits) if cache is not None else None
    assert plan is not None  # nothing is found in no cache
    size = size_text(plan.expected_freed_size)
    if not yes and not sys.stdin.isatty():
        raise ConfigError("there is no terminal to confirm on.", hint="confirm with --yes")
    if not yes and not typer.confirm(f"remove {', '.join(models)} ({size})?"):
        raise typer.Exit(1)
    plan.execute()
    print(f"freed {size}")


def _scan() -> HFCacheInfo | None:
    """What is in the cache; None where there is none."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        return scan_cache_dir(constants.HF_HUB_CACHE)
    except CacheNotFound:
        return None


def _models(cache: HFCacheInfo | None) -> Sequence[CachedRepoInfo]:
    repos: Iterable[CachedRepoInfo] = cache.repos if cache is not None else ()
    found = [repo for repo in repos if repo.repo_type == "model"]
    return sorted(found, key=lambda repo: (-repo.last_accessed, repo.repo_id))
