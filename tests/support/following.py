"""A grammar of calls, fed with text: whether a reply follows it."""

from __future__ import annotations

from llguidance import LLMatcher, LLTokenizer

from blazr.text.grammars.child import Vocabulary, make_matcher, make_tokenizer
from blazr.text.grammars.tool_call import ToolGrammar, tool_call
from blazr.text.tool_calls.format import ToolFormat


class Following:
    """A grammar, fed with text and with special tokens by name."""

    def __init__(self, row: ToolFormat, grammar: ToolGrammar) -> None:
        names = [name for name in row.special_names if name[0] in "<[\uff5c" and len(name) > 1]
        names.sort(key=len, reverse=True)
        self.special_ids = {name: 256 + i for i, name in enumerate(names)}
        tokens = [bytes([each]) for each in range(256)] + [name.encode() for name in names]
        vocabulary = Vocabulary(tokens, list(self.special_ids.values()))
        self.tokenizer: LLTokenizer = make_tokenizer(vocabulary)
        self.source = tool_call(grammar, self.special_ids)

    def matcher(self) -> LLMatcher:
        matcher = make_matcher(self.tokenizer, self.source)
        assert not matcher.get_error(), matcher.get_error()
        return matcher

    def ids(self, text: str) -> list[int]:
        ids: list[int] = []
        while text:
            name = next((each for each in self.special_ids if text.startswith(each)), "")
            ids += [self.special_ids[name]] if name else list(text[0].encode())
            text = text[len(name or text[0]) :]
        return ids

    def takes(self, text: str, *, is_whole: bool = True) -> bool:
        matcher, ids = self.matcher(), self.ids(text)
        return matcher.try_consume_tokens(ids) == len(ids) and (
            not is_whole or matcher.is_accepting()
        )
