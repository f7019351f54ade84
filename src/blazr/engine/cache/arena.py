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
        self.owner: list[ItemClass | None] = [None] * num_superpages
        self.live = [0] * num_superpages
        self.references: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self.free: tuple[list[int], list[int]] = ([], [])
        self._spare = list(range(num_superpages))[::-1]
        self._fixed: set[int] = set()
        for item_class in (ItemClass.STATE, ItemClass.PAGE):  # state 0 must lie in superpage 0
            self._fixed.update(self._take(item_class) for _ in range(floor[item_class]))

    def allocate(self, item_class: ItemClass) -> int:
        """A free item, with one reference.

        Raises:
            OutOfMemoryError: There is none.
        """
        if not self.free[item_class]:
            if not self._spare or not self.items_per_superpage[item_class]:
                raise OutOfMemoryError(item_class.name.lower())
            self._take(item_class)
        # low ids first: superpages with a floor fill up first
        item = heapq.heappop(self.free[item_class])
        self.references[item_class][item] = 1
        self.live[item // self.items_per_superpage[item_class]] += 1
        return item

    def share(self, item_class: ItemClass, item: int) -> None:
        """Add a reference to an item that has one."""
        self.references[item_class][item] += 1

    def release(self, item_class: ItemClass, item: int) -> bool:
        """Drop a reference. True if it was the last, and the item is free now."""
        count = self.references[item_class][item] - 1
        if count:
            self.references[item_class][item] = count
            return False
        del self.references[item_class][item]
        superpage = item // self.items_per_superpage[item_class]
        self.live[superpage] -= 1
        heapq.heappush(self.free[item_class], item)
        if not self.live[superpage] and superpage not in self._fixed:
            low = superpage * self.items_per_superpage[item_class]
            inside = range(low, low + self.items_per_superpage[item_class])
            self.free[item_class][:] = [
                item for item in self.free[item_class] if item not in inside
            ]
            heapq.heapify(self.free[item_class])
            self.owner[superpage] = None
            self._spare.append(superpage)
        return True

    def is_private(self, item_class: ItemClass, item: int) -> bool:
        """Whether the item has exactly one reference."""
        return self.references[item_class][item] == 1

    def room(self, item_class: ItemClass) -> int:
        """Items of this class that can be allocated now."""
        return len(self.free[item_class]) + len(self._spare) * self.items_per_superpage[item_class]

    def used(self, item_class: ItemClass) -> int:
        """Items of this class with a reference."""
        return len(self.references[item_class])

    def _take(self, item_class: ItemClass) -> int:
        superpage = self._spare.pop()
        self.owner[superpage] = item_class
        low = superpage * self.items_per_superpage[item_class]
        for item in range(low, low + self.items_per_superpage[item_class]):
            heapq.heappush(self.free[item_class], item)
        return superpage
