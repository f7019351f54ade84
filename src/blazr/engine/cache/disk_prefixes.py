"""Between the trie of prefixes in memory and the files on disk: what is read back, what is kept."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

from blazr.core.errors import RequestError
from blazr.engine.block import NO_PAGE, Node
from blazr.engine.cache.arena import ItemClass, OutOfMemoryError
from blazr.engine.cache.disk import DiskCache, DiskItem, next_name
from blazr.engine.cache.prefix import PrefixTrie, salt_key
from blazr.engine.request import PromptEmbeddings
from blazr.engine.sequence import Sequence


class DiskPrefixes:
    """Reads prefixes from disk into the trie, and writes those of the trie behind replies.

    Args:
        files: Where they are kept.
        trie: What is in memory.
        allocate: Gives a page or a state, evicting others if need be.
        has_pages: Whether a layer remembers every token.
    """

    def __init__(
        self,
        files: DiskCache,
        trie: PrefixTrie,
        allocate: Callable[[ItemClass], int],
        *,
        has_pages: bool,
    ) -> None:
        self.files = files
        self._trie = trie
        self._allocate = allocate
        self._has_pages = has_pages
        # what the last reply in each run slot had computed, and its salt
        self._texts: dict[int, tuple[array[int], str]] = {}

    def names(
        self, tokens: array[int], salt: str, embeddings: SequenceOf[PromptEmbeddings] = ()
    ) -> list[bytes]:
        """The names of a prompt's blocks, as far as they could be resumed; on any thread."""
        before = next_name(self.files.fingerprint, salt_key(salt))
        names = []
        for block in range((len(tokens) - 1) // self._trie.grid):
            before = next_name(before, self._trie.block_key(tokens, block, embeddings))
            names.append(before)
        return names

    def keep(
        self, tokens: array[int], salt: str, embeddings: SequenceOf[PromptEmbeddings] = ()
    ) -> int:
        """Have all that is known of a text written, however much is waiting.

        Returns:
            Tokens that can be resumed from.
        """
        match = self._trie.match(tokens, salt, embeddings)
        for node in match.path[: match.usable]:
            self._write(node, waits=True)
        return match.usable * self._trie.grid

    def read(
        self, tokens: array[int], salt: str, embeddings: SequenceOf[PromptEmbeddings] = ()
    ) -> int:
        """Read what of a text is not in memory, as far as it could be resumed.

        Returns:
            Tokens that can be resumed from then.
        """
        trie, files = self._trie, self.files
        match = trie.match(tokens, salt, embeddings)
        node = match.path[-1] if match.path else trie.root(salt)
        names = [files.name(each) for each in match.path]
        before = files.name(node)
        for block in range(len(names), (len(tokens) - 1) // trie.grid):
            before = next_name(before, trie.block_key(tokens, block, embeddings))
            if self._has_pages and not files.has(ItemClass.PAGE, before):
                break
            names.append(before)
        trie.lock(node)
        depth = len(names)
        while depth > match.usable:
            if trie.has_states and not files.has(ItemClass.STATE, names[depth - 1]):
                depth -= 1
                continue
            while node.depth < depth:
                key = trie.block_key(tokens, node.depth, embeddings)
                child = self._read_block(node, key, names[node.depth])
                if child is None:
                    break
                trie.lock_child(child)
                node = child
            if node.depth >= depth and self._read_state(node.ancestor(depth)):
                break
            depth = min(node.depth, depth - 1)
        trie.unlock(node)
        return max(depth, match.usable) * trie.grid

    def write(self, sequence: Sequence) -> None:
        """Keep what a sequence has computed, with the states that later ones are likely to need."""
        assert sequence.node is not None, "it runs"
        path = [each for each in sequence.node.to_root() if each.parent is not None]
        for each in reversed(path):
            # of the states at growing distances only a few will ever be needed; `close` keeps them
            self._write(each, keeps_state=each.state_kind != "geometric")
        self.files.mark_used([self.files.name(each) for each in path])
        if sequence.run_slot is not None:
            text = sequence.tokens[: sequence.computed]
            self._texts[sequence.run_slot] = text, sequence.request.cache_salt

    def close(self) -> None:
        """Write all that is in memory, and stop."""
        for node in self._trie.nodes():
            self._write(node, waits=True)
        self.files.close()

    def save_slot(self, slot: int, name: str) -> int:
        """Keep, under a name, what the last reply in a run slot had computed.

        Returns:
            Tokens that can be resumed from.

        Raises:
            RequestError: There is no such text, or it cannot be written.
        """
        tokens, salt = self._texts.get(slot, (array("i"), ""))
        num_saved = self.keep(tokens, salt)
        if not num_saved:
            raise RequestError(
                f"there is nothing to save in slot {slot}.",
                param="id",
                expected=f"a slot in which {self._trie.grid} tokens or more were computed",
            )
        try:
            self.files.save_text(name, tokens, salt)
        except OSError as error:
            message = f"the slot cannot be saved: {error.strerror}."
            raise RequestError(message, param="filename") from error
        return num_saved

    def restore_slot(self, slot: int, name: str) -> int:
        """Bring into memory what was kept under a name.

        Returns:
            Tokens that can be resumed from.

        Raises:
            RequestError: There is nothing of that name.
        """
        try:
            self._texts[slot] = self.files.load_text(name)
        except (OSError, ValueError) as error:
            message = f"no slot of this model was saved as {name!r}."
            raise RequestError(message, param="filename") from error
        return self.read(*self._texts[slot])

    def erase_slot(self, slot: int) -> int:
        """Forget, in memory, what the last reply in a run slot had computed and nobody shares.

        Returns:
            Tokens that it had.
        """
        tokens, salt = self._texts.pop(slot, (array("i"), ""))
        for node in reversed(self._trie.match(tokens, salt).path):
            if not node.children:
                self._trie.forget(node)
        return len(tokens)

    def _read_block(self, parent: Node, key: bytes, name: bytes) -> Node | None:
        """Read the page of a block and publish it; None where that cannot be done."""
        if not self._has_pages:
            return self._trie.insert(parent, key, NO_PAGE)
        try:
            page = self._allocate(ItemClass.PAGE)
        except OutOfMemoryError:
            return None
        is_read = self.files.load(ItemClass.PAGE, name, page) is not None
        node = self._trie.insert(parent, key, page) if is_read else None
        self._trie.arena.release(ItemClass.PAGE, page)
        return node

    def _read_state(self, node: Node) -> bool:
        """Read the recurrent state after a block, where the model has any."""
        if not self._trie.has_states:
            return True
        try:
            slot = self._allocate(ItemClass.STATE)
        except OutOfMemoryError:
            return False
        kind = self.files.load(ItemClass.STATE, self.files.name(node), slot)
        if kind is not None:
            self._trie.put_state(node, slot, kind)
        self._trie.arena.release(ItemClass.STATE, slot)
        return kind is not None

    def _write(self, node: Node, *, keeps_state: bool = True, waits: bool = False) -> None:
        name = self.files.name(node)
        if self._has_pages:
            page = DiskItem(ItemClass.PAGE, name, "end", node.depth, self._trie.grid)
            self.files.save(page, node.page, waits=waits)
        if node.state is not None and keeps_state:
            saves = self._trie.saved_tokens(node)
            state = DiskItem(ItemClass.STATE, name, node.state_kind, node.depth, saves)
            self.files.save(state, node.state, waits=waits)
