"""How /v1/responses says what happens: items, their parts, and events about both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from blazr.llm.results import Completion, Usage
from blazr.server.errors import HttpError
from blazr.server.openai.items import pack_text
from blazr.server.openai.schema import item_usage, logprob_entries
from blazr.server.params import unix_time
from blazr.server.parts import Part, PartsRenderer
from blazr.text.events import TokenText

_ITEM_IDS = {"text": "msg", "reasoning": "rs", "tool": "fc", "custom": "ctc"}
_CALLS = {"tool": "function_call_arguments", "custom": "custom_tool_call_input"}
_TEXT_KINDS = {"text": "output_text", "reasoning": "reasoning_text"}


class ResponseRenderer(PartsRenderer):
    """Says what happens in the words of /v1/responses.

    Args:
        frame: The response without what is generated.
        on_end: Called with the response when it has ended, and the parts of it.
        homes: Namespace and own name of tools in namespaces.
        packs_thoughts: Whether thoughts are shown in the form in which clients send them back.
        wants_logprobs: Whether log-probabilities are shown.
    """

    def __init__(
        self,
        frame: Mapping[str, object],
        on_end: Callable[[dict[str, object]], None],
        *,
        homes: Mapping[str, tuple[str, str]],
        wants_logprobs: bool,
        packs_thoughts: bool,
    ) -> None:
        super().__init__()
        self._frame = frame
        self._on_end = on_end
        self._homes = homes
        self._packs_thoughts = packs_thoughts
        self._wants_logprobs = wants_logprobs
        self._number = -1

    def begin(self) -> Iterable[object]:
        """The response, still empty."""
        response = self._response("in_progress")
        yield self._event("created", response=response)
        yield self._event("in_progress", response=response)

    def opened(self, part: Part) -> Iterable[object]:
        """An item, still empty, and the one part in it."""
        item = self._item(part, "in_progress")
        yield self._event("output_item.added", output_index=part.place, item=item)
        if part.kind not in _CALLS:
            yield {**self._about(part, "content_part.added"), "part": self._content(part)}

    def more(self, part: Part, text: str, tokens: Sequence[TokenText] = ()) -> Iterable[object]:
        """What is added to an item."""
        if part.kind in _CALLS:
            yield self._about(part, f"{_CALLS[part.kind]}.delta", delta=text)
        elif part.kind == "reasoning":
            yield self._about(part, "reasoning_text.delta", delta=text)
        else:
            shown = self._shown(tokens)
            yield self._about(part, "output_text.delta", delta=text, logprobs=shown)

    def closed(self, part: Part) -> Iterable[object]:
        """The end of an item."""
        if part.kind == "custom":
            yield self._about(part, "custom_tool_call_input.done", input=part.text)
        elif part.kind == "tool":
            name = str(self._named(part)["name"])
            yield self._about(part, "function_call_arguments.done", name=name, arguments=part.text)
        else:
            shown = {"logprobs": self._shown(part.logprobs)} if part.kind == "text" else {}
            yield self._about(part, f"{_TEXT_KINDS[part.kind]}.done", text=part.text, **shown)
            yield {**self._about(part, "content_part.done"), "part": self._content(part)}
        item = self._item(part, self._status())
        yield self._event("output_item.done", output_index=part.place, item=item)

    def last(self, usage: Usage) -> Iterable[object]:
        """The whole response."""
        response = self._end(usage)
        yield self._event(str(response["status"]), response=response)

    def failure(self, error: HttpError) -> Iterable[object]:
        """What to send when a stream fails."""
        response = self.failed(error)
        yield self._event("failed", response=response)

    def whole(self, completions: Sequence[Completion], usage: Usage) -> object:  # noqa: ARG002
        """The whole response."""
        return self._end(usage)

    def failed(self, error: HttpError, status: str = "failed") -> dict[str, object]:
        """The response of one that failed or was cancelled, as far as it has come."""
        response = self._response(status)
        if status == "failed":
            response["error"] = {"code": "server_error", "message": error.text}
        self._on_end(response)
        return response

    def _end(self, usage: Usage) -> dict[str, object]:
        status = self._status()
        response = self._response(status)
        if status == "incomplete":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        response |= {"completed_at": unix_time(), "usage": item_usage(usage)}
        self._on_end(response)
        return response

    def _status(self) -> str:
        is_cut = self.finished is not None and self.finished.reason == "length"
        return "incomplete" if is_cut else "completed"

    def _response(self, status: str) -> dict[str, object]:
        is_done = status != "in_progress"
        output = [self._item(part, "completed") for part in self.parts] if is_done else []
        if output and status != "completed":
            output[-1]["status"] = "incomplete"
        return {**self._frame, "status": status, "output": output}

    def _item(self, part: Part, status: str) -> dict[str, object]:
        item: dict[str, object] = {"id": self._item_id(part), "status": status}
        if part.kind == "custom":
            call = {**self._named(part), "input": part.text}
            return {**item, "type": "custom_tool_call", **call}
        if part.kind == "tool":
            call = {**self._named(part), "arguments": part.text}
            return {**item, "type": "function_call", **call}
        content = [] if status == "in_progress" else [self._content(part)]
        if part.kind == "reasoning":
            if self._packs_thoughts:
                item["encrypted_content"] = pack_text(part.text)
            return {**item, "type": "reasoning", "summary": [], "content": content}
        return {**item, "type": "message", "role": "assistant", "content": content}

    def _named(self, part: Part) -> dict[str, object]:
        """Which tool is called, in which call."""
        namespace, name = self._homes.get(part.name, ("", part.name))
        more = {"namespace": namespace} if namespace else {}
        return {"call_id": part.call_id, "name": name, **more}

    def _content(self, part: Part) -> dict[str, object]:
        if part.kind == "reasoning":
            return {"type": "reasoning_text", "text": part.text}
        shown = self._shown(part.logprobs)
        return {"type": "output_text", "text": part.text, "annotations": [], "logprobs": shown}

    def _shown(self, tokens: Iterable[TokenText]) -> list[dict[str, object]]:
        return logprob_entries(tokens) if self._wants_logprobs else []

    def _item_id(self, part: Part) -> str:
        return f"{_ITEM_IDS[part.kind]}_{str(self._frame['id'])[5:]}_{part.place}"

    def _about(self, part: Part, kind: str, **more: object) -> dict[str, object]:
        where: dict[str, object] = {"item_id": self._item_id(part), "output_index": part.place}
        if part.kind not in _CALLS:
            where["content_index"] = 0
        return self._event(kind, **where, **more)

    def _event(self, kind: str, **more: object) -> dict[str, object]:
        self._number += 1
        return {"type": f"response.{kind}", "sequence_number": self._number, **more}
