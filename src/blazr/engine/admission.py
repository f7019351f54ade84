"""How many places of the queue each client may take."""

from __future__ import annotations

from collections import Counter

from blazr.core.errors import CapacityError, RequestError
from blazr.engine.turns import paths_of


class Admission:
    """Counts replies that run or wait, and keeps places free for those who have none.

    A client may always take its first place while there is one. It may take more while it holds at
    most half as many as are then free: a third of the queue while it is alone, less with every
    other that asks for much. So newcomers find room. Where clients come in groups, a group may hold
    at most twice as many as are free, and its clients share what is left of that. Whatever is free,
    everyone may hold its part of the replies that run at once. Not thread-safe.

    Source: Choudhury and Hahne 1998, "Dynamic Queue Length Thresholds for Shared-Memory Packet
    Switches".

    Args:
        num_places: Most replies that run or wait.
        max_running: Of these, how many may run at once.
    """

    def __init__(self, num_places: int, *, max_running: int) -> None:
        self._num_places = num_places
        self._max_running = max_running
        self._held: Counter[tuple[str, ...]] = Counter()
        self._num_clients: Counter[tuple[str, ...]] = Counter()  # that hold any, by their group

    def take(self, client: tuple[str, ...], count: int) -> None:
        """Take places.

        Args:
            client: Who asks: the names of its groups, then its own. One without a name has no
                bound but the queue's.
            count: How many; all or none.

        Raises:
            CapacityError: There are not so many, or the rest is kept for others.
            RequestError: The whole queue has fewer.
        """
        if count > self._num_places:
            raise RequestError(
                "the queue does not hold so many replies.",
                param="n",
                found=str(count),
                expected=f"at most {self._num_places}",
                hint="--max-waiting raises it",
            )
        held = self._held[()]
        if held + count > self._num_places:
            raise CapacityError(
                "the queue is full.",
                found=f"{held} replies running or waiting",
                expected=f"at most {self._num_places}",
                hint="try again in a moment",
            )
        free = self._num_places - held
        part = self._max_running
        paths = paths_of(client)
        for path in paths:
            own = self._held[path]
            part //= max(self._num_clients[path[:-1]], 1)
            share = max(free // 2 if path == client else 2 * free, part)
            if own and own + count > share:
                raise CapacityError(
                    "the rest of the queue is kept for others.",
                    found=f"{own} replies of yours running or waiting",
                    expected=f"at most {share} now",
                    hint="try again when some have ended",
                )
            free = share - own
        for path in paths:
            if not self._held[path]:
                self._num_clients[path[:-1]] += 1
            self._held[path] += count
        self._held[()] += count

    def give_back(self, client: tuple[str, ...]) -> None:
        """Give back one of the places that were taken."""
        self._held[()] -= 1
        for path in paths_of(client):
            self._held[path] -= 1
            if not self._held[path]:
                del self._held[path]
                self._num_clients[path[:-1]] -= 1
                if not self._num_clients[path[:-1]]:
                    del self._num_clients[path[:-1]]
