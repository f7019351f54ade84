"""Mistral AI's forms of a chat, by the version that a ``tekken.json`` names.

Source: instruct.py of mistral-common.
"""

from __future__ import annotations

VERSIONS = (3, 7, 11, 13)

_CALLS_AS_LIST = (
    "{% for call in message.tool_calls or [] %}"
    "{{ '[TOOL_CALLS][' if loop.first else ', ' }}"
    "{% set said = {'name': call.function.name, 'arguments': call.function.arguments} %}"
    "{{ (dict(said, id=call.id) if call.id else said) | tojson }}"
    "{{ ']' if loop.last else '' }}"
    "{% endfor %}"
)
_RESULT_AS_JSON = (
    "{% set found = content | from_json if content is json else content %}"
    "{{ '[TOOL_RESULTS]{\"content\": ' + (found | tojson) + ', \"call_id\": ' }}"
    "{{ ((message.tool_call_id or '') | tojson) + '}' }}"
)
_RESULT_WITH_ID = (
    "{{ '[TOOL_RESULTS]' + (message.tool_call_id or '') + '[TOOL_CONTENT]' + content }}"
)


_CONTENT = "{% set content = message.content or '' %}"
_CONTENT_WITH_SOUNDS = (
    "{% set said = namespace(text='') %}"
    "{% if message.content is string %}{% set said.text = message.content %}{% else %}"
    "{% for part in message.content or [] %}"
    "{% set text = part.text if part.type == 'text' else '[BEGIN_AUDIO][AUDIO]' %}"
    "{% set said.text = said.text + text %}"
    "{% endfor %}"
    "{% endif %}"
    "{% set content = said.text %}"
)


def source(version: int, *, reads_audio: bool = False) -> str:
    """The template of a version of `VERSIONS`, for a model that reads audio or does not."""
    has_system = version >= 7
    has_ids = version < 13
    has_args = version >= 11
    system = "[SYSTEM_PROMPT]' + content + '[/SYSTEM_PROMPT]" if has_system else ""
    call_id = "{% if call.id %}{{ '[CALL_ID]' + call.id }}{% endif %}" if has_ids else ""
    calls = (
        "{% for call in message.tool_calls or [] %}{{ '[TOOL_CALLS]' + call.function.name }}"
        + call_id
        + "{{ '[ARGS]' + (call.function.arguments | tojson) }}{% endfor %}"
    )
    result = _RESULT_WITH_ID if has_ids else "{{ '[TOOL_RESULTS]' + content }}"
    thoughts = (
        "{% if message.reasoning_content %}"
        "{{ '[THINK]' + message.reasoning_content + '[/THINK]' }}"
        "{% endif %}"
    )
    return (
        "{{ bos_token }}"
        "{% set seen = namespace(users=[], system='') %}"
        "{% for message in messages %}"
        "{% if message.role == 'user' %}{% set seen.users = seen.users + [loop.index0] %}"
        "{% elif message.role == 'system' %}"
        "{% set seen.system = seen.system + (message.content or '') + '\n\n' %}"
        "{% endif %}"
        "{% endfor %}"
        "{% for message in messages %}"
        f"{_CONTENT_WITH_SOUNDS if reads_audio else _CONTENT}"
        "{% if message.role == 'system' %}"
        f"{{{{ '{system}' }}}}"
        "{% elif message.role == 'user' %}"
        f"{{% if tools and loop.index0 == seen.users[{-1 if has_ids else 0}] %}}"
        "{{ '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}"
        "{% endif %}"
        f"{{% if {not has_system} and loop.index0 == seen.users[-1] %}}"
        "{% set content = seen.system + content %}"
        "{% endif %}"
        "{{ '[INST]' + content + '[/INST]' }}"
        "{% elif message.role == 'assistant' %}"
        f"{'' if has_ids else thoughts}"
        "{{ content.rstrip(' ') }}"
        f"{calls if has_args else _CALLS_AS_LIST}"
        "{{ eos_token }}"
        "{% elif message.role == 'tool' %}"
        f"{result if has_system else _RESULT_AS_JSON}"
        "{{ '[/TOOL_RESULTS]' }}"
        "{% endif %}"
        "{% endfor %}"
    )
