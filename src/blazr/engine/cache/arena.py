"""One arena of equal superpages, each serving pages or states. Decides; holds no tensor."""

from __future__ import annotations

import heapq
from enum import IntEnum


class ItemClass(IntEnum):
    """What a superpage is cut into."""

    PAGE = 0
    STATE = 1


class OutOfMemoryError(Exception):
    """No item of this class is free and none can be made so."""


class Arena:
    """Reference-counted items in superpages.

    Item ``i`` of a class lies in superpage ``i // n``, with n items of that class in each, so an id
    alone gives its address. Some superpages belong to a class for good: without that floor,
    scattered items of one class could starve the other.

    Args:
        num_superpages: How many there are.
        items_per_superpage: Pages, and states, that one holds; 0 for a class that is not used.
        floor: Superpages that belong to each class for good.
    """

    def __init__(
        self, num_superpages: int, *, items_per_superpage: tuple[int, int], floor: tuple[int, int]
    ) -> None:
        self.items_per_superpage = items_per_superpage
        self.num_superpages = num_superpages
        self.owner: list[ItemClass | None] = [None] * num_superpages
        self.live = [0] * num_superpages
        self.references: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self.free: tuple[list[int], list[int]] = ([], [])
        self._spare = list(range(num_superpages))[::-1]
        self._fixed: set[int] = set()
        for cls in (ItemClass.STATE, ItemClass.PAGE):  # state 0 must lie in superpage 0
            self._fixed.update(self._take(cls) for _ in range(floor[cls]))

    def allocate(self, cls: ItemClass) -> int:
        """A free item, with one reference.

        Raises:
            OutOfMemoryError: There is none.
        """
        if not self.free[cls]:
            if not self._spare or not self.items_per_superpage[cls]:
                raise OutOfMemoryError(cls.name.lower())
            self._take(cls)
        item = heapq.heappop(self.free[cls])  # low ids first: superpages with a floor fill up first
        self.references[cls][item] = 1
        self.live[item // self.items_per_superpage[cls]] += 1
        return item

    def share(self, cls: ItemClass, item: int) -> None:
        """Add a reference to an item that has one."""
        self.references[cls][item] += 1

    def release(self, cls: ItemClass, item: int) -> bool:
        """Drop a reference. True if it was the last, and the item is free now."""
        count = self.references[cls][item] - 1
        if count:
            self.references[cls][item] = count
            return False
        del self.references[cls][item]
        superpage = item // self.items_per_superpage[cls]
        self.live[superpage] -= 1
        heapq.heappush(self.free[cls], item)
        if not self.live[superpage] and superpage not in self._fixed:
            low = superpage * self.items_per_superpage[cls]
            inside = range(low, low + self.items_per_superpage[cls])
            self.free[cls][:] = [item for item in self.free[cls] if item not in inside]
            heapq.heapify(self.free[cls])
            self.owner[superpage] = None
            self._spare.append(superpage)
        return True

    def is_private(self, cls: ItemClass, item: int) -> bool:
        """Whether the item has exactly one reference."""
        return self.references[cls][item] == 1

    def room(self, cls: ItemClass) -> int:
        """Items of this class that can be allocated now."""
        return len(self.free[cls]) + len(self._spare) * self.items_per_superpage[cls]

    def used(self, cls: ItemClass) -> int:
        """Items of this class with a reference."""
        return len(self.references[cls])

    def _take(self, cls: ItemClass) -> int:
        superpage = self._spare.pop()
        self.owner[superpage] = cls
        low = superpage * self.items_per_superpage[cls]
        for item in range(low, low + self.items_per_superpage[cls]):
            heapq.heappush(self.free[cls], item)
        return superpage
