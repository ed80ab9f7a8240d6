"""Granite with a sliding window in three of four layers, and a sink for each head.

Layers may have different rope bases, of which the manifest states one for each kind of layer, or no
rope.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from rdrr_format.errors import ConversionError
from rdrr_manifests.graph.layer_sizes import is_global_layer
from rdrr_manifests.models import Manifest

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures._rope import read_rope
from rdrr_converter.architectures.base import Keys
from rdrr_converter.architectures.config import Config
from rdrr_converter.architectures.gpt_oss import SINKS
from rdrr_converter.architectures.granite import GRANITE
from rdrr_converter.architectures.layers import FULL, SLIDING, first_full_of

LAYER_TYPES = first_full_of(4)
KEY = "layer_rope_theta"


def bases_of_layers(config: Config) -> dict[str, object]:
    """Rule: the fields of `inference.rope`, where `layer_rope_theta` may state a base or 0 a layer.

    Raises:
        SourceError: It is no list with a number for each layer.
        ConversionError: The layers of one kind have several bases, or both kinds have a scaling
            and different bases.
    """
    block, bases = read_rope(config), config.get(KEY)
    if bases is None:
        return {**block, "rope_local_theta": None, "unrotated_layers": None}
    known = isinstance(bases, list) and all(type(base) in (int, float) for base in bases)
    if not known or len(bases) < config.layers or min(bases) < 0:
        raise config.fault(KEY, f"{config.layers} bases, or 0 for a layer without rope", bases)
    bases, types = bases[: config.layers], LAYER_TYPES(config)
    full, local = (
        sorted(
            {float(base) for base, kind in zip(bases, types, strict=True) if base and kind == of}
        )
        for of in (FULL, SLIDING)
    )
    used = sorted({*full, *local})
    is_scaled = "rope_scaling_type" in block
    if len(full) > 1 or len(local) > 1 or (len(used) > 1 and is_scaled):
        raise ConversionError(
            f"the format cannot express this value of {KEY}",
            where=config.where,
            expected="one base for each kind of layer, and the same for both if there is a scaling",
            found=", ".join(map(str, used)),
        )
    base = next(iter((*full, *local)), block["rope_theta"])
    local_base = next(iter(local), base)
    return {
        **block,
        "rope_theta": base,
        "rope_local_theta": None if local_base == base else local_base,
        "unrotated_layers": tuple(at for at, stated in enumerate(bases) if not stated) or None,
    }


def exported(config: Keys, manifest: Manifest, _: Collection[str]) -> Keys:
    """Return the bases of layers in place of the keys of other architectures."""
    rope = manifest.inference.rope
    local, plain = rope.rope_local_theta or rope.rope_theta, rope.unrotated_layers or ()
    bases = [
        0 if layer in plain else rope.rope_theta if is_global_layer(manifest, layer) else local
        for layer in range(manifest.architecture.num_layers)
    ]
    others = ("no_rope_layers", "rope_local_base_freq")
    return {key: value for key, value in config.items() if key not in others} | {KEY: bases}


GRANITE_SWA = replace(
    GRANITE,
    name="granite_swa",
    classes=("GraniteSWAForCausalLM", "GraniteSWAModel"),
    defaults={
        **GRANITE.defaults,
        "hidden_size": 2560,
        "intermediate_size": 8192,
        "max_position_embeddings": 8192,
        "num_attention_heads": 20,
        "num_hidden_layers": 24,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
        "sliding_window": 128,
        "tie_word_embeddings": True,
        "vocab_size": 100352,
    },
    attention={**GRANITE.attention, "sliding_window": read.optional_integer("sliding_window")},
    layer_types=LAYER_TYPES,
    rope=bases_of_layers,
    exported=exported,
    tensors=(*GRANITE.tensors[:-2], SINKS, *GRANITE.tensors[-2:]),
)
