"""Which weights are packed how."""

import pytest

from blazr.core.errors import BlazrError, ConfigError, UnknownNameError
from blazr.nn.quant.packed import parse_policy

EXPERTS = "layers.3.feed_forward.experts.gate_proj"
MLP = "layers.3.feed_forward.up_proj.weight"
MIXER = "layers.0.mixer.q_proj.weight"
HEAD, EMBEDDING = "lm_head.weight", "embed_tokens.weight"


def test_nothing_is_asked_for() -> None:
    for text in (None, ""):
        assert parse_policy(text).choose(MLP) is None


def test_one_name_is_for_all_but_coarse_heads() -> None:
    policy = parse_policy("q4_0")
    assert {policy.choose(name) for name in (EXPERTS, MLP, MIXER, EMBEDDING)} == {"q4_0"}
    assert policy.choose(HEAD, is_head=True) == "q8_0"
    assert policy.choose(EMBEDDING, is_head=True) == "q8_0"
    assert parse_policy("Q8_0").choose(HEAD, is_head=True) == "q8_0"


def test_the_most_particular_part_decides() -> None:
    policy = parse_policy("feed_forward=q8_0, experts=q4_0,lm_head=none")
    assert policy.choose(EXPERTS) == "q4_0"
    assert policy.choose(MLP) == "q8_0"
    assert policy.choose(MIXER) is None
    assert policy.choose(HEAD, is_head=True) is None


def test_parts_beside_a_name_for_the_rest() -> None:
    policy = parse_policy("q4_0,mixer=none,lm_head=q4_0")
    assert policy.choose(MLP) == "q4_0"
    assert policy.choose(MIXER) is None
    assert policy.choose(EMBEDDING, is_head=True) == "q4_0"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("q9_9", UnknownNameError),
        ("experts=q9", UnknownNameError),
        ("exprts=q4_0", ConfigError),
        ("q4_0,q8_0", ConfigError),
        ("experts=q4_0,experts=q8_0", ConfigError),
        (",", BlazrError),
        ("=", BlazrError),
    ],
)
def test_what_cannot_be_read(text: str, kind: type[BlazrError]) -> None:
    with pytest.raises(kind):
        parse_policy(text)
