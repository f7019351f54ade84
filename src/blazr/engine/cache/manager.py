"""The memory of sequences: reuse, grow, commit, release. Decides; holds no tensor."""

from __future__ import annotations

from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass

from blazr.engine.block import NO_PAGE, Node, StateKind
from blazr.engine.cache.arena import Arena, ItemClass, OutOfMemoryError
from blazr.engine.cache.block_tables import BlockTables
from blazr.engine.cache.disk import DiskCache
from blazr.engine.cache.disk_prefixes import DiskPrefixes
from blazr.engine.cache.prefix import Match, PrefixTrie
from blazr.engine.scores import is_enough, known_scores, knows_next
from blazr.engine.sequence import Fork, Sequence

LONG_PROMPT_INTERVAL = 4096  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """What the model's layers need, in items.

    Args:
        grid: Tokens in a block.
        num_superpages: Superpages in the arena.
        pages_per_superpage: 0 for models without paged layers.
        states_per_superpage: 0 for models without recurrent layers.
        max_running: Sequences that run at once.
        max_blocks: Blocks of the longest sequence.
        num_bytes: Memory of all that.
        page_bytes: Of these, what a page takes.
        state_bytes: What a recurrent state takes.
        working_copies: Working states of a running sequence, `max_running` rows from one to the
            next; none where no layer has any. With two, those before a step with drafts stay until
            it is known which are kept.
    """

    grid: int
    num_superpages: int
    pages_per_superpage: int
    states_per_superpage: int
    max_running: int
    max_blocks: int
    num_bytes: int = 0
    page_bytes: int = 0
    state_bytes: int = 0
    working_copies: int = 1

    @property
    def has_pages(self) -> bool:
        """Whether a layer remembers every token."""
        return self.pages_per_superpage > 0

    @property
    def has_states(self) -> bool:
        """Whether a layer is recurrent."""
        return self.states_per_superpage > 0

    @property
    def floor(self) -> tuple[int, int]:
        """Superpages each class owns for good.

        A running sequence holds one state and writes the next, and slot 0 is the zero state.
        """
        states = 2 * self.max_running + 1
        state_superpages = -(-states // self.states_per_superpage) if self.has_states else 0
        return (1 if self.has_pages else 0, state_superpages)

    @property
    def max_tokens(self) -> int:
        """Most tokens one sequence can have when it is alone."""
        if not self.has_pages:
            return 2**31
        superpages = self.num_superpages - self.floor[ItemClass.STATE]
        if self.has_states:
            superpages -= 2  # its two states may lie outside their class's own superpages
        return superpages * self.pages_per_superpage * self.grid


class CacheManager:
    """Gives sequences their pages, states and run slots, and shares what can be shared.

    Args:
        shape: Sizes of the pools.
        prefix_cache: Whether prefixes of earlier requests are reused.
        disk: Files in which they are kept beyond this process, if anywhere.
    """

    def __init__(
        self, shape: CacheShape, *, prefix_cache: bool = True, disk: DiskCache | None = None
    ) -> None:
        self.shape = shape
        self.prefix_cache = prefix_cache
        self.arena = Arena(
            shape.num_superpages,
            items_per_superpage=(shape.pages_per_superpage, shape.states_per_superpage),
            floor=shape.floor,
        )
        self.trie = PrefixTrie(self.arena, grid=shape.grid, has_states=shape.has_states)
        self.disk: DiskPrefixes | None = None
        if prefix_cache and disk is not None:
            self.disk = DiskPrefixes(disk, self.trie, self._allocate, has_pages=shape.has_pages)
        if shape.has_states:
            # sequences at position 0 read their state from here, so that kernels need no branch
            zero = self.arena.allocate(ItemClass.STATE)
            assert zero == 0, "slot 0 is the zero state"
        self.free_run_slots = list(range(shape.max_running))[::-1]
        self.block_tables = BlockTables(shape.max_running, shape.max_blocks)
        # handed out since they were last taken; nobody has cleared them yet
        self.new_run_slots: list[int] = []
        self.new_pages: list[int] = []

    def start(self, sequence: Sequence) -> None:
        """Give a sequence a run slot and the longest prefix that can be resumed."""
        grid = self.shape.grid
        salt = sequence.request.cache_salt
        trie = self.trie
        sequence.run_slot = self.free_run_slots.pop()
        self.new_run_slots.append(sequence.run_slot)
        # with the first token of the reply they are handed out
        is_scored = sequence.request.params.prompt_logprobs is not None
        wants_scores = is_scored and not sequence.num_output
        sequence.scores = [None] if wants_scores else None
        reads_prefix = self.reads_prefix(sequence)
        if reads_prefix and self.disk is not None and not wants_scores:  # there are none on disk
            self.disk.read(sequence.tokens, salt, sequence.request.embeddings)
        sequence.node = trie.root(salt)
        parted = 0
        if reads_prefix:
            match = self._match(sequence)
            if match.matched > match.usable:
                # two prompts share this much: keep a state there this time
                parted = match.matched * grid
            sequence.reuse = self._reuse_reason(sequence, match)
            if match.usable:
                self._resume(sequence, match.path[: match.usable])
                if wants_scores:
                    path = match.path[: match.usable + 1]
                    sequence.scores = known_scores(sequence, path, grid)
        else:
            sequence.reuse = "off"
        sequence.wanted = self._edges(sequence, parted)
        trie.lock(sequence.node)

    def take_new(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Run slots and pages that were handed out, for the step that will clear them."""
        new = tuple(self.new_run_slots), tuple(self.new_pages)
        self.new_run_slots.clear()
        self.new_pages.clear()
        return new

    def reserve(self, sequence: Sequence, num_tokens: int) -> None:
        """Make room for the next tokens: pages to hold them, slots for the states they pass.

        Raises:
            OutOfMemoryError: There is no room, even after evicting all that can be.
        """
        grid = self.shape.grid
        upto = sequence.computed + num_tokens
        while len(sequence.pages) * grid < upto and self.shape.has_pages:
            page = self._allocate(ItemClass.PAGE)
            assert sequence.run_slot is not None
            self.block_tables.write(sequence.run_slot, len(sequence.pages), [page])
            sequence.pages.append(page)
            self.new_pages.append(page)
        last_edge = upto // grid * grid
        if last_edge <= sequence.checkpoint_length or not self.shape.has_states:
            return
        # a step that failed left its slots behind
        self._drop_pending(sequence)
        before = sequence.checkpoint_length
        for edge, kind in sorted(sequence.wanted.items()):
            if max(sequence.checkpoint_length, sequence.computed) < edge < last_edge:
                slot = self._try_allocate_state(edge - before, kind)
                if slot is not None:
                    sequence.pending.append((edge - sequence.computed, slot))
                    before = edge
        sequence.pending.append((last_edge - sequence.computed, self._next_checkpoint(sequence)))

    def reserve_drafts(self, sequence: Sequence, num_drafts: int) -> int:
        """Make room for drafts behind the next token, on further pages if they reach that far.

        Where states are kept at the ends of blocks, drafts must not reach them.

        Args:
            sequence: A running one that decodes, after `reserve`.
            num_drafts: How many are wanted.

        Returns:
            How many there is room for.
        """
        if not self.shape.has_pages:
            return num_drafts
        with suppress(OutOfMemoryError):
            self.reserve(sequence, 1 + num_drafts)
        return min(num_drafts, len(sequence.pages) * self.shape.grid - sequence.computed - 1)

    def commit(self, sequence: Sequence, num_tokens: int, *, num_drafts: int = 0) -> None:
        """The tokens are in memory: publish whole blocks, move to the last state written.

        Behind drafts nothing is published before `accept`: it may be found out that all of it has
        to be computed again.

        Args:
            sequence: A running one.
            num_tokens: Computed from ``sequence.computed`` on.
            num_drafts: Behind them; they do not count until `accept` says so.
        """
        start = sequence.computed
        grid = self.shape.grid
        sequence.computed += num_tokens
        sequence.was_truncated = num_drafts > 0 and self.shape.working_copies > 0
        if not num_drafts:
            self._publish(sequence)
        for offset, slot in sequence.pending:
            edge = start + offset
            if edge == sequence.computed // grid * grid:
                self._move_checkpoint(sequence, edge, slot)
                self._keep_checkpoint(sequence)
            else:
                # an edge in the middle of the prompt: from now on only the trie holds that state
                self._keep_state(sequence, edge, slot, sequence.wanted[edge])
                self.arena.release(ItemClass.STATE, slot)
        sequence.pending.clear()
        edge = sequence.checkpoint_length
        has_before = num_drafts > 0 and self.shape.working_copies > 1
        sequence.working_length = max(start, edge) if has_before else edge

    def advance(self, sequence: Sequence) -> None:
        """One token more will be in memory when the step that was launched is done.

        What that token is need not be known: nothing is published before `settle`.

        Args:
            sequence: A running one that decodes.
        """
        sequence.computed += 1
        for offset, slot in sequence.pending:
            assert offset == 1, "a step of one token passes one grid edge at most"
            self._move_checkpoint(sequence, sequence.computed, slot)
        sequence.pending.clear()
        sequence.working_length = sequence.checkpoint_length

    def settle(self, sequence: Sequence, length: int) -> None:
        """Publish what `advance` could not, now that the tokens are known.

        Args:
            sequence: A running one.
            length: Tokens that were in memory after that step; at most one more is, meanwhile.
        """
        self._publish(sequence)
        if self.shape.has_states and length == sequence.checkpoint_length:
            self._keep_checkpoint(sequence)

    def accept(self, sequence: Sequence, num_tokens: int, *, num_drafts: int) -> None:
        """Keep the first of the drafts that were computed in memory, and drop the others.

        Args:
            sequence: A running one, after `commit`.
            num_tokens: How many stay; with -1 the token before them does not, either.
            num_drafts: How many were computed. If not all stay, what the sequence carries along is
                made again from the log and what it was before that step, or the checkpoint.
        """
        sequence.computed += num_tokens
        is_whole = num_tokens == num_drafts
        # nothing has to be made again of what was there before the step
        is_behind = sequence.computed > sequence.working_length
        sequence.was_truncated = self.shape.working_copies > 0 and not is_whole and is_behind
        if is_whole and self.shape.working_copies > 1:
            sequence.working_copy = 1 - sequence.working_copy
        self._publish(sequence)

    def truncate(self, sequence: Sequence, length: int) -> None:
        """Forget what was computed from ``length`` on, and drop these tokens.

        Nothing before the last grid edge can be dropped: a whole block is published, and the state
        behind it is the checkpoint. So a step that computes tokens which may be dropped must end
        before the next edge.

        Args:
            sequence: A running one, between two steps. The caller appends what is computed next.
            length: Tokens that stay, from the last grid edge computed to ``sequence.computed``.
        """
        grid = self.shape.grid
        edge = sequence.computed // grid * grid
        assert edge <= length <= sequence.computed, (
            f"cannot truncate to {length} tokens: {edge} to {sequence.computed} can stay"
        )
        del sequence.tokens[length:]
        sequence.computed = length
        sequence.was_truncated = self.shape.working_copies > 0 and length > edge
        sequence.working_length = edge
        while len(sequence.pages) * grid >= length + grid:
            self.arena.release(ItemClass.PAGE, sequence.pages.pop())

    def reserve_fork(
        self, sequence: Sequence, source: Sequence, upto: int, *, samples: bool
    ) -> Fork | None:
        """Memory of its own for a reply that goes on where ``source`` has ``upto`` tokens.

        None without room.
        """
        if not self.free_run_slots:
            return None
        page = NO_PAGE
        # whole pages are shared; both write into one just begun, so the fork takes a copy
        if self.shape.has_pages and upto % self.shape.grid:
            try:
                page = self._allocate(ItemClass.PAGE)
            except OutOfMemoryError:
                return None
        return Fork(sequence, source, self.free_run_slots.pop(), page, upto, samples)

    def cancel_fork(self, fork: Fork) -> None:
        """Take back what was reserved."""
        self.free_run_slots.append(fork.run_slot)
        if fork.page != NO_PAGE:
            self.arena.release(ItemClass.PAGE, fork.page)

    def adopt(self, fork: Fork) -> None:
        """Let a reply go on where another stands: whole pages and the checkpoint are shared."""
        sequence, source = fork.sequence, fork.source
        sequence.run_slot = fork.run_slot
        sequence.node = source.node
        assert sequence.node is not None
        self.trie.lock(sequence.node)
        sequence.published = source.published
        sequence.computed = source.computed
        is_whole = len(sequence.tokens) - sequence.computed <= self.shape.grid
        if not sequence.num_preemptions:
            sequence.num_cached = fork.length
        sequence.reuse = "whole" if is_whole else "partial"
        sequence.wanted = {} if fork.samples else self._edges(sequence)
        sequence.pages = source.pages[: source.computed // self.shape.grid]
        for page in sequence.pages:
            self.arena.share(ItemClass.PAGE, page)
        if fork.page != NO_PAGE:
            sequence.pages.append(fork.page)
        self.block_tables.write(fork.run_slot, 0, sequence.pages)
        sequence.checkpoint = source.checkpoint
        sequence.checkpoint_length = source.checkpoint_length
        if sequence.checkpoint is not None:
            self.arena.share(ItemClass.STATE, sequence.checkpoint)

    def release(self, sequence: Sequence, *, publish: bool = True) -> None:
        """Finish, abort and preemption alike: publish what is whole, drop every reference.

        Args:
            sequence: Loses its memory; its tokens stay.
            publish: False after a failure: nothing of it may be reused.
        """
        if sequence.run_slot is None or sequence.node is None:
            return
        self._drop_pending(sequence)
        if sequence.checkpoint is not None and publish:
            self._keep_state(sequence, sequence.checkpoint_length, sequence.checkpoint, "end")
        self._release_checkpoint(sequence)
        # once a token was drawn, the numbers are known to be finite
        if self.disk is not None and publish and sequence.num_output:
            self.disk.write(sequence)
        for page in sequence.pages:
            self.arena.release(ItemClass.PAGE, page)
        self.trie.unlock(sequence.node)
        if not publish:
            # its blocks were published as they were computed; what failed may have spoilt them
            for node in sequence.created:
                self.trie.forget(node)
        if not self.shape.has_pages:
            self.trie.trim()
        self.free_run_slots.append(sequence.run_slot)
        sequence.pages = []
        sequence.created = []
        sequence.wanted = {}
        sequence.node = None
        sequence.run_slot = None
        sequence.was_truncated = False
        sequence.computed = sequence.published = sequence.checkpoint_length = 0
        sequence.working_copy = sequence.working_length = 0

    def forget(self) -> None:
        """Forget every prefix that no running sequence uses, in memory and on disk."""
        self.trie.forget(None)
        if self.disk is not None:
            self.disk.files.clear()

    def close(self) -> None:
        """Write what is worth keeping beyond this process."""
        if self.disk is not None:
            self.disk.close()

    def usable_prefix(self, sequence: Sequence) -> int:
        """Tokens a waiting sequence could resume from now."""
        return self._match(sequence).usable * self.shape.grid

    def reads_prefix(self, sequence: Sequence) -> bool:
        """Whether a sequence may resume from what others computed."""
        # the mean of the prompt's hidden states needs them all
        return self.prefix_cache and sequence.request.pooling != "mean"

    def has_room_for(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence's tokens would fit beside those that run.

        Pages only the trie holds count as room, since they can be evicted.
        """
        if not self.free_run_slots:
            return False
        if not self.shape.has_pages:
            return True
        held = self.arena.used(ItemClass.PAGE) - self.trie.num_idle_pages
        total = self.shape.max_tokens // self.shape.grid
        needed = -(-(len(sequence.tokens) + 1) // self.shape.grid)
        return held + needed <= total

    def _edges(self, sequence: Sequence, parted: int = 0) -> dict[int, StateKind]:
        """Where states of a prompt are kept, and why: where a later one may be resumed.

        Args:
            sequence: It stands where it begins to compute.
            parted: Where it parts from another, if that is known.
        """
        if not self.prefix_cache:
            return {}
        grid = self.shape.grid
        last = (len(sequence.tokens) - 1) // grid * grid
        edges: dict[int, StateKind] = {}
        edges |= dict.fromkeys(range(LONG_PROMPT_INTERVAL, last, LONG_PROMPT_INTERVAL), "interval")
        anchors = (min(anchor, last) // grid * grid for anchor in sequence.request.anchors)
        edges |= dict.fromkeys(anchors, "anchor")
        edges[last] = "end"
        if parted:
            edges[parted] = "parted"
        kept = {edge // grid for edge in edges}
        between = blocks_between(last // grid, sequence.computed // grid, kept)
        return edges | {block * grid: "geometric" for block in between}

    def _match(self, sequence: Sequence) -> Match:
        """What is known of a sequence's tokens, and of their scores where these are asked for."""
        request = sequence.request
        match = self.trie.match(sequence.tokens, request.cache_salt, request.embeddings)
        wanted = request.params.prompt_logprobs
        if wanted is None:
            return match
        scored = 0
        while scored < len(match.path) and is_enough(match.path[scored].scores, wanted):
            scored += 1
        matched = scored
        if scored and not knows_next(sequence, match.path[scored - 1], self.shape.grid):
            matched -= 1  # the score of a block's first token comes from the block before
        usable = matched
        # pages lie at every block, but a recurrent state only at some: go back to the last of those
        while usable and self.shape.has_states and match.path[usable - 1].state is None:
            usable -= 1
        return Match(match.path, matched, usable)

    def _reuse_reason(self, sequence: Sequence, match: Match) -> str:
        """Why no more was reused, in one word for logs and replies."""
        if match.usable >= (len(sequence.tokens) - 1) // self.shape.grid:
            return "whole" if match.usable else "short"
        if match.matched > match.usable:
            return "no-state"
        return "partial" if match.usable else "unknown"

    def _resume(self, sequence: Sequence, path: tuple[Node, ...]) -> None:
        grid = self.shape.grid
        node = path[-1]
        sequence.node = node
        sequence.published = len(path)
        sequence.computed = len(path) * grid
        if self.shape.has_pages:
            assert sequence.run_slot is not None
            sequence.pages = [hit.page for hit in path]
            self.block_tables.write(sequence.run_slot, 0, sequence.pages)
            for page in sequence.pages:
                self.arena.share(ItemClass.PAGE, page)
        if self.shape.has_states:
            assert node.state is not None
            self.arena.share(ItemClass.STATE, node.state)
            self.trie.use_state(node)
            sequence.checkpoint = node.state
            sequence.checkpoint_length = sequence.computed
            if not sequence.num_preemptions:
                sequence.resumed_at = node.state_kind

    def _publish(self, sequence: Sequence) -> None:
        if not self.prefix_cache:
            return
        # of a step under way the last token is not known
        known = min(sequence.computed, len(sequence.tokens))
        while (sequence.published + 1) * self.shape.grid <= known:
            block = sequence.published
            parent = sequence.node
            assert parent is not None
            key = self.trie.block_key(sequence.tokens, block, sequence.request.embeddings)
            is_new = key not in parent.children
            page = sequence.pages[block] if self.shape.has_pages else NO_PAGE
            node = self.trie.insert(parent, key, page)
            self.trie.lock_child(node)
            if is_new:
                sequence.created.append(node)
            sequence.node = node
            sequence.published += 1

    def _move_checkpoint(self, sequence: Sequence, edge: int, slot: int) -> None:
        if slot != sequence.checkpoint:
            self._release_checkpoint(sequence)
        sequence.checkpoint = slot
        sequence.checkpoint_length = edge

    def _keep_checkpoint(self, sequence: Sequence) -> None:
        """Let others find the state that a sequence goes on from, where they may look for it."""
        edge, slot = sequence.checkpoint_length, sequence.checkpoint
        assert slot is not None
        if edge in sequence.wanted:
            self._keep_state(sequence, edge, slot, sequence.wanted[edge])
        elif edge >= sequence.num_prompt:
            self._keep_state(sequence, edge, slot, "geometric")
            self._thin_states(sequence)

    def _keep_state(self, sequence: Sequence, edge: int, slot: int, kind: StateKind) -> None:
        depth = edge // self.shape.grid
        node = sequence.node
        if node is None or node.depth < depth or not depth:
            return
        self.trie.put_state(node.ancestor(depth), slot, kind)

    def _thin_states(self, sequence: Sequence) -> None:
        """Drop those of a growing reply's states that its new end leaves too close together."""
        node = sequence.node
        blocks = sequence.computed // self.shape.grid
        dropped = geometric_blocks(blocks - 1) - geometric_blocks(blocks)
        least = max(min(dropped, default=blocks), -(-sequence.num_prompt // self.shape.grid))
        while node is not None and node.depth >= least:
            if node.depth in dropped and node.state_kind == "geometric":
                self.trie.drop_state(node)
            node = node.parent

    def _next_checkpoint(self, sequence: Sequence) -> int:
        """Write over the present state if nobody else can see it; otherwise into a new slot."""
        slot = sequence.checkpoint
        if slot is not None and self.arena.is_private(ItemClass.STATE, slot):
            return slot
        return self._allocate(ItemClass.STATE)

    def _try_allocate_state(self, num_tokens: int, kind: StateKind) -> int | None:
        """A slot for a state that saves others so many tokens, if nothing dearer has to go."""
        arena = self.arena
        if not arena.room(ItemClass.STATE):
            self.trie.evict(ItemClass.STATE, below=self.trie.state_worth(num_tokens, kind))
        return self._allocate(ItemClass.STATE) if arena.room(ItemClass.STATE) else None

    def _allocate(self, item_class: ItemClass) -> int:
        while True:
            try:
                return self.arena.allocate(item_class)
            except OutOfMemoryError:
                # a superpage that the other class leaves empty changes hands
                if not self.trie.evict(*ItemClass):
                    raise

    def _drop_pending(self, sequence: Sequence) -> None:
        for _, slot in sequence.pending:
            if slot != sequence.checkpoint:
                self.arena.release(ItemClass.STATE, slot)
        sequence.pending.clear()

    def _release_checkpoint(self, sequence: Sequence) -> None:
        if sequence.checkpoint is not None:
            self.arena.release(ItemClass.STATE, sequence.checkpoint)
            sequence.checkpoint = None


def geometric_blocks(count: int) -> set[int]:
    """After which blocks of a text states are kept: the last three multiples of each power of two.

    Who shares ``n`` blocks with it finds a state after ``n``, or at most ``count - n - 1`` before.
    """
    steps = (1 << power for power in range(count.bit_length()))
    return {block for step in steps for block in range(count // step * step, 0, -step)[:3]}


def blocks_between(count: int, first: int, kept: Set[int]) -> set[int]:
    """After which blocks of a text further states are kept: as few as its prefixes need.

    Who shares ``n`` blocks with it finds a state after ``n``, or at most ``count - n - 1`` before:
    the distances from its end double, but where one that is kept anyway will do.

    Args:
        count: Blocks of the text.
        first: After this one it was resumed: those before belong to others.
        kept: Where states are kept anyway, ``count`` among them.
    """
    blocks: set[int] = set()
    shared = count - 1  # blocks of the longest prefix that has no state yet
    while (least := 2 * shared - count + 1) > first:
        nearest = min((block for block in kept if least <= block <= shared), default=None)
        if nearest is None:
            blocks.add(nearest := least)
        shared = nearest - 1
    return blocks
