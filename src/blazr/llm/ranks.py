"""Loading a model over several ranks: this process, and others that it starts."""

from __future__ import annotations

from blazr.engine.ranks.orders import PartOptions, load_part
from blazr.engine.ranks.processes import RankProcesses
from blazr.llm.options import LoadOptions
from blazr.models.loading.load import LoadedModel, load
from blazr.models.loading.parts import part_of_config
from blazr.models.loading.plan import plan_model
from blazr.models.loading.read import Progress
from blazr.nn.device import Device
from blazr.nn.layers.ranks import Rank


def load_on_ranks(
    options: LoadOptions,
    device: Device,
    *,
    progress: Progress | None = None,
) -> tuple[LoadedModel, RankProcesses]:
    """Start the other ranks, and have each load its part while this one loads its own.

    Args:
        options: Which model, how, and over how many ranks.
        device: What they compute on.
        progress: Told the bytes of weights read so far, and all of them, while they are read.

    Returns:
        This rank's part, and the other ranks, which the caller closes.

    Raises:
        BlazrError: The model cannot be loaded, or not by so many.
    """
    # before processes are started
    config = plan_model(options.model, revision=options.revision).derivation.config
    first = Rank(0, options.num_ranks)
    if options.pp > 1:
        config.as_stage(first)
    else:
        part_of_config(config, first)
    processes = RankProcesses(options.num_ranks, device)
    free_bytes = device.free_bytes()
    if device.kind == "cpu":  # it is the memory of all of them
        free_bytes //= options.num_ranks
    shared: PartOptions = {
        "dtype": options.dtype,
        "revision": options.revision,
        "quantize": options.quantize,
        "free_bytes": free_bytes,
        "in_stages": options.pp > 1,
        "exact": options.exact,
    }
    try:
        processes.tell(load_part, options.model, shared)
        # what is wrong with the model is said here, where it fails in the same way
        loaded = load(
            options.model, device=device, ranks=processes.ranks, progress=progress, **shared
        )
        processes.wait(device)
    except BaseException:
        processes.close()
        raise
    return loaded, processes
