"""What a contributor writes for a model of their own: Llama with other keys and tensor names."""

from blazr.models.families.hf.derive import Traits
from blazr.models.families.rules import Rule, RuleBook

_BLOCK, _LAYER = "trunk.blocks.{i}.", "layers.{i}."

COBRA = Traits(
    rules=RuleBook(
        [
            Rule("trunk.tokens.weight", "embed_tokens.weight"),
            Rule("trunk.last_norm.scale", "norm.weight"),
            Rule("scores.weight", "lm_head.weight"),
            Rule(_BLOCK + "norm1.scale", _LAYER + "mixer_norm.weight"),
            Rule(_BLOCK + "norm2.scale", _LAYER + "feed_forward_norm.weight"),
            Rule(_BLOCK + "attn.{p}.weight", _LAYER + "mixer.{p}_proj.weight", p=tuple("qkvo")),
            Rule(_BLOCK + "ffn.in1.weight", _LAYER + "feed_forward.gate_proj.weight"),
            Rule(_BLOCK + "ffn.in2.weight", _LAYER + "feed_forward.up_proj.weight"),
            Rule(_BLOCK + "ffn.out.weight", _LAYER + "feed_forward.down_proj.weight"),
        ]
    ),
    names={
        "hidden_size": ("width",),
        "num_layers": ("depth",),
        "num_attention_heads": ("heads",),
        "num_kv_heads": ("kv_heads",),
        "intermediate_size": ("ffn_width",),
        "max_seq_len": ("context",),
        "rms_norm_eps": ("eps",),
        "rope_theta": ("rope_base",),
    },
).family("cobra")
