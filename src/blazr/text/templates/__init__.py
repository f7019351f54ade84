"""CHAT_TEMPLATES: the built-in forms of a chat, for models that bring none."""

from __future__ import annotations

from dataclasses import dataclass

from blazr.core.table import Table
from blazr.text.templates import mistral
from blazr.text.vocabs import CHAT_STOP_NAMES


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltInTemplate:
    """A form of a chat.

    Args:
        name: What ``--chat-template`` calls it.
        source: Jinja. Written so that no newline is left to the rules of trimming.
        stop_names: Special tokens at which another turn begins, so that the reply ends there.
    """

    name: str
    source: str
    stop_names: tuple[str, ...] = ()


CHAT_TEMPLATES: Table[BuiltInTemplate] = Table.of(
    "chat template",
    (
        # blazr's documented form.
        BuiltInTemplate(
            name="oxidizr",
            source=(
                "{% for message in messages %}"
                "{% if message.role in ('system', 'user', 'assistant') %}"
                "{{ '<|' + message.role + '|>\n' + (message.content or '') + '\n' }}"
                "{% else %}"
                "{{ message.role + ': ' + (message.content or '') + '\n' }}"
                "{% endif %}"
                "{% endfor %}"
                "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
            ),
            stop_names=CHAT_STOP_NAMES,
        ),
        # The form of oxidizr's own training text.
        BuiltInTemplate(
            name="oxidizr-compact",
            source=(
                "{% for message in messages %}"
                "{% if message.role in ('system', 'user', 'assistant') %}"
                "{{ '<|' + message.role + '|>' + (message.content or '') }}"
                "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}"
                "{% else %}"
                "{{ message.role + ': ' + (message.content or '') + '\n' }}"
                "{% endif %}"
                "{% endfor %}"
                "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
            ),
            stop_names=CHAT_STOP_NAMES,
        ),
        *(
            BuiltInTemplate(name=f"mistral-v{version}", source=mistral.source(version))
            for version in mistral.VERSIONS
        ),
        BuiltInTemplate(name="voxtral", source=mistral.source(7, reads_audio=True)),
        # PaliGemma's: all images, then the beginning of the text, and a line feed at its end.
        BuiltInTemplate(
            name="paligemma",
            source=(
                "{% set said = namespace(images='', text='') %}"
                "{% for message in messages %}"
                "{% if message.content is string %}"
                "{% set said.text = said.text + message.content %}"
                "{% else %}"
                "{% for part in message.content or [] %}"
                "{% if part.type == 'text' %}"
                "{% set said.text = said.text + part.text %}"
                "{% else %}"
                "{% set said.images = said.images + '<image>' %}"
                "{% endif %}"
                "{% endfor %}"
                "{% endif %}"
                "{% endfor %}"
                "{{ said.images + bos_token + said.text + '\n' }}"
            ),
        ),
        # Plain text, for a model of which nothing is known.
        BuiltInTemplate(
            name="generic",
            source=(
                "{{ bos_token }}"
                "{% for message in messages %}"
                "{{ message.role + ': ' + (message.content or '') + '\n' }}"
                "{% endfor %}"
                "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
            ),
        ),
    ),
)
