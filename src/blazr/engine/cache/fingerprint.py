"""What decides the numbers in memory after some tokens: if any of it differs, so may they."""

from __future__ import annotations

import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import blake2b
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from blazr import engine, models, nn
from blazr.engine.cache.storage import CacheLayout
from blazr.models.causal_lm import CausalLM
from blazr.nn.ops.op import describe_kernels

_log = logging.getLogger(__name__)


def fingerprint(model: CausalLM, layout: CacheLayout) -> bytes:
    """A hash of the weights, of how they are computed with, and of how memory is laid out.

    Args:
        model: Every byte of its weights is read, a gigabyte or more in a second.
        layout: How pages and states lie in memory.

    Returns:
        16 bytes.
    """
    started = time.monotonic()
    facts = {
        "code": [
            _digest_files(Path(root))
            for package in (engine, models, nn)
            for root in package.__path__
        ],
        "torch": torch.__version__,
        "kernels": describe_kernels(),
        "device": str(model.device),
        "network": str(model),
        "config": repr(model.config),
        # what a running sequence has besides, more of it with drafts, is in no file
        "layout": repr(replace(layout, run_bytes=0, working_copies=1)),
    }
    weights = dict(chain(model.named_parameters(), model.named_buffers()))
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        digests = pool.map(_digest_weight, weights.values())
        facts["weights"] = dict(zip(weights, digests, strict=True))
    found = blake2b(json.dumps(facts).encode(), digest_size=16)
    _log.debug("the model is %s; read in %.1f s", found.hexdigest(), time.monotonic() - started)
    return found.digest()


def _digest_files(folder: Path) -> str:
    digest = blake2b(digest_size=32)
    for path in sorted(folder.rglob("*.*")):
        if path.suffix != ".pyc":
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _digest_weight(weight: Tensor) -> str:
    content = weight.detach().contiguous().flatten().view(torch.uint8).cpu().numpy()
    return (
        f"{weight.dtype} {list(weight.shape)} {blake2b(content.data, digest_size=32).hexdigest()}"
    )
