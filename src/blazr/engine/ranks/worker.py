"""The program of a rank that is not the first: it does what comes in on standard input.

It is started by `RankProcesses` alone, which is why it believes what it is sent.
"""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import NoReturn

import torch

from blazr.core import log
from blazr.core.errors import BlazrError
from blazr.engine.ranks.collectives import ProcessRanks
from blazr.engine.ranks.orders import Member, Order
from blazr.nn.device import resolve_device, use_gpu
from blazr.nn.layers.ranks import Rank


def main(arguments: Sequence[str]) -> None:
    """Do what is ordered until there is nothing more.

    Args:
        arguments: Which rank this is, and of how many; the kind of device, how many threads of the
            CPU there are to compute with, and the directory where the ranks find each other.
    """
    for each in (signal.SIGTERM, signal.SIGHUP):
        # the first rank is sent it, too, and may have something to finish
        signal.signal(each, signal.SIG_IGN)
    number, count, kind, threads, folder = arguments
    logging.disable(logging.WARNING)  # the first rank says the same
    torch.set_num_threads(int(threads))
    rank = Rank(int(number), int(count))
    if kind == "cuda":
        use_gpu(rank.number)
    orders: SimpleQueue[Order] = SimpleQueue()
    threading.Thread(target=_receive, args=(orders, Path(folder)), daemon=True).start()
    (Path(folder) / f"{number}.started").touch()
    member = Member(ProcessRanks(rank, Path(folder), kind), resolve_device(kind))
    with torch.inference_mode():
        while True:
            order, its_arguments = orders.get()
            order(member, *its_arguments)


def _receive(orders: SimpleQueue[Order], folder: Path) -> None:
    """Take orders while others are carried out, and end when the first rank has."""
    try:
        while True:
            orders.put(pickle.load(sys.stdin.buffer))
    except EOFError:
        pass
    except Exception as error:  # noqa: BLE001  (whatever it is, nobody else would notice)
        _say(error)
    finally:
        _end(folder)  # whatever the other thread waits for will not come


def _say(error: Exception) -> None:
    what = error.message if isinstance(error, BlazrError) else str(error)[:300]
    log.write_line(f"rank {sys.argv[1]}: {type(error).__name__}: {what}")


def _end(folder: Path) -> NoReturn:
    """End at once, with all threads; the first rank may have had no time to remove the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Exception as error:  # noqa: BLE001  (the first rank has a message of its own)
        _say(error)
        _end(Path(sys.argv[-1]))
