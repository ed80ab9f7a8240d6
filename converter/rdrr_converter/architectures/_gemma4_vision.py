"""The vision tower of Gemma 4: layers like those of its text model, and means of patches.

Each axis has its own position embedding, and rotates a half of each head. Ours rotates the pairs of
an element and the one half a head behind it, so the rows of queries and keys are reordered.
"""

from __future__ import annotations

from rdrr_manifests.graph import vision

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures._vision import CHANNELS, patch_inputs
from rdrr_converter.architectures.base import ArchitectureRule, TensorRule
from rdrr_converter.architectures.config import Config

_THETA = 100.0
_SEEN_WHOLE = "text_config.use_bidirectional_attention"
_BODY, _EMBEDDER = "model.vision_tower.", "embed_vision.embedding_projection"
_PARTS = [
    *(f"self_attn.{part}_proj" for part in "qkvo"),
    *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
]
_NORMS = (
    vision.ATTENTION_NORM,
    vision.AFTER_ATTENTION,
    vision.BEFORE_FEED_FORWARD,
    vision.AFTER_FEED_FORWARD,
)
_WITHOUT_EFFECT = ("default_output_length", "global_head_dim", "max_position_embeddings")
"""Keys that transformers does not read: positions end with their embedding, the number of tokens is
the image processor's, and all layers have heads of one size."""

_STANDARDIZES = read.flag("standardize")


def _heads(config: Config) -> int:
    """Rule: the heads, each with keys of its own, which fill the width together."""
    heads, size = config.integer("num_attention_heads"), config.integer("hidden_size")
    for key, number in (("num_key_value_heads", heads), ("head_dim", size // heads)):
        if config.integer(key) != number:
            raise config.fault(key, str(number), config.get(key))
    if config.flag("use_clipped_linears"):
        expected = "false: products with limits of their own are not computed by this version"
        raise config.fault("use_clipped_linears", expected, True)
    return heads


def _rope_theta(config: Config) -> float:
    """Rule: the base of the frequencies."""
    stated = config.get("rope_parameters")
    if stated is None:
        return _THETA
    # Published towers say `default`, later versions of transformers `axial`, for the same rotation.
    if not isinstance(stated, dict) or stated.get("rope_type", "axial") not in ("axial", "default"):
        raise config.fault("rope_parameters", "rope_type axial", stated)
    part = config.part("rope_parameters", stated)
    part.get("rope_type")
    return _THETA if part.get("rope_theta") is None else part.number("rope_theta")


def _seen_whole(config: Config) -> str | None:
    """Rule: the layers of the text model in which tokens of an image attend to all of it."""
    return "sliding" if config.get(_SEEN_WHOLE) == "vision" else None


def _rows_of_head(config: Config) -> list[int]:
    """Return the order of the rows of a head: those of each axis are pairs half a head apart.

    The first half of a head is rotated by the column of a patch, the second by its row, and each
    consists of the first elements of its pairs, then of the second ones.
    """
    quarter = config.integer("head_dim") // 4
    return [part * quarter + row for part in (2, 0, 3, 1) for row in range(quarter)]


def _rows_of_heads(config: Config) -> list[int]:
    rows, heads = _rows_of_head(config), range(config.integer("num_attention_heads"))
    return [len(rows) * head + row for head in heads for row in rows]


GEMMA4_VISION = ArchitectureRule(
    name="gemma4_vision",
    classes=(),
    defaults={
        "head_dim": 64,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 768,
        "in_channels": CHANNELS,
        "intermediate_size": 3072,
        "num_attention_heads": 12,
        "num_hidden_layers": 16,
        "num_key_value_heads": 12,
        "patch_size": 16,
        "pooling_kernel_size": 3,
        "position_embedding_size": 10240,
        "rms_norm_eps": 1e-6,
        "temporal_patch_size": 1,
    },
    sizes={
        "patch_inputs": patch_inputs,
        "hidden_size": read.integer("hidden_size"),
        "intermediate_size": read.integer("intermediate_size"),
        "num_layers": read.integer("num_hidden_layers"),
        "num_attention_heads": _heads,
        "activation": read.activation("hidden_activation"),
        "form": "rms_norm",
        "norm_eps": read.number("rms_norm_eps"),
        "position_grid": read.integer("position_embedding_size"),
        "position_sampling": "separate",
        "rope_theta": _rope_theta,
        "merge_size": read.integer("pooling_kernel_size"),
        "merger": "scaled_mean",
        "standardizes": _STANDARDIZES,
        "seen_whole": _seen_whole,
    },
    tensors=(
        TensorRule(f"{vision.PATCHES}.weight", "matmul", ("hidden", "inputs")),
        TensorRule(f"{vision.POSITIONS}.weight", "other", ("axes", "places", "hidden")),
        *(TensorRule(f"{vision.LAYER}{norm}.weight", "norm", ("hidden",)) for norm in _NORMS),
        *(
            TensorRule(f"{vision.LAYER}self_attn.{part}_norm.weight", "norm", ("head",))
            for part in "qk"
        ),
        *(
            TensorRule(f"{vision.LAYER}{part}.weight", "matmul", ("hidden", "hidden"))
            for part in _PARTS[:4]
        ),
        *(
            TensorRule(f"{vision.LAYER}{part}.weight", "matmul", ("inner", "hidden"))
            for part in _PARTS[4:6]
        ),
        TensorRule(f"{vision.LAYER}{_PARTS[6]}.weight", "matmul", ("hidden", "inner")),
        TensorRule(f"{vision.MERGER}shift", "bias", ("hidden",), required=_STANDARDIZES),
        TensorRule(f"{vision.MERGER}scale", "norm", ("hidden",), required=_STANDARDIZES),
        TensorRule(
            f"{vision.MERGER}proj.weight",
            "matmul",
            ("output", "hidden"),
            aliases=(f"{_EMBEDDER}.weight",),
        ),
    ),
    stated_by_tensors=_WITHOUT_EFFECT,
    row_order={
        **{f"{vision.LAYER}self_attn.{part}_proj.weight": _rows_of_heads for part in "qk"},
        **{f"{vision.LAYER}self_attn.{part}_norm.weight": _rows_of_head for part in "qk"},
    },
    body=_BODY,
    prefixes=(_BODY, "vision_tower."),
    beside=(_SEEN_WHOLE,),
    names={
        "model.embed_tokens": f"{_BODY}patch_embedder.input_proj",  # this tells the prefix
        vision.PATCHES: f"{_BODY}patch_embedder.input_proj",
        f"{vision.POSITIONS}.weight": f"{_BODY}patch_embedder.position_embedding_table",
        **{
            f"{vision.LAYER}{part}": f"{_BODY}encoder.layers.{{layer}}.{part}.linear"
            for part in _PARTS
        },
        **{
            f"{vision.LAYER}{norm}": f"{_BODY}encoder.layers.{{layer}}.{norm}"
            for norm in (*_NORMS, *(f"self_attn.{part}_norm" for part in "qk"))
        },
        f"{vision.MERGER}shift": f"{_BODY}std_bias",
        f"{vision.MERGER}scale": f"{_BODY}std_scale",
        f"{vision.MERGER}proj": f"model.{_EMBEDDER}",
    },
)
