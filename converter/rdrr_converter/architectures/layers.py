"""Rules for the layer types: which layers have full attention and which a sliding window."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rdrr_converter.architectures.config import Config

FULL, SLIDING = "full_attention", "sliding_attention"


def all_full(config: Config) -> tuple[str, ...]:
    """Rule: no layer has a sliding window."""
    return (FULL,) * config.layers


def window_everywhere(config: Config) -> tuple[str, ...]:
    """Rule: every layer has a sliding window if the configuration states one (Mistral)."""
    return (FULL if config.get("sliding_window") is None else SLIDING,) * config.layers


def window_where_stated(config: Config) -> tuple[str, ...]:
    """Rule: the stated layer types, else a sliding window in every layer if there is one."""
    return stated_types(config) or window_everywhere(config)


def window_if_used(config: Config) -> tuple[str, ...]:
    """Rule: every layer has a sliding window if `use_sliding_window` (Qwen 3 with experts)."""
    is_used = config.flag("use_sliding_window") and bool(config.get("sliding_window"))
    return (SLIDING if is_used else FULL,) * config.layers


def window_above(key: str) -> Callable[[Config], tuple[str, ...]]:
    """Rule: layers from index `key` on have a sliding window if `use_sliding_window` (Qwen)."""

    def read(config: Config) -> tuple[str, ...]:
        stated = stated_types(config)
        if not config.flag("use_sliding_window") or not config.get("sliding_window"):
            return (FULL,) * config.layers
        if stated is not None:
            return stated
        first = config.get(key)
        if type(first) is not int or first < 0:
            raise config.fault(key, "a number of layers", first)
        return tuple(SLIDING if layer >= first else FULL for layer in range(config.layers))

    return read


def window_from(key: str) -> Callable[[Config], tuple[str, ...]]:
    """Rule: layers from index `key` on have the sliding window, if one is stated (dots.llm1)."""

    def read(config: Config) -> tuple[str, ...]:
        stated, first = stated_types(config), config.get(key)
        if config.get("sliding_window") is None:
            return (FULL,) * config.layers
        if stated is not None:
            return stated
        if type(first) is not int or first < 0:
            raise config.fault(key, "a number of layers", first)
        return tuple(SLIDING if layer >= first else FULL for layer in range(config.layers))

    return read


def alternating_below(key: str) -> Callable[[Config], tuple[str, ...]]:
    """Rule: even layers below index `key` have a window if `use_sliding_window` (Qwen 2 MoE)."""

    def read(config: Config) -> tuple[str, ...]:
        stated = stated_types(config)
        if not _uses_windows(config, stated):
            return (FULL,) * config.layers
        if stated is not None:
            return stated
        end = config.get(key)
        if type(end) is not int or end < 0:
            raise config.fault(key, "a number of layers", end)
        return tuple(
            FULL if layer % 2 or layer >= end else SLIDING for layer in range(config.layers)
        )

    return read


def _uses_windows(config: Config, stated: tuple[str, ...] | None) -> bool:
    """Return whether the configuration uses a sliding window.

    Raises:
        SourceError: It does not, but `layer_types` names layers with one.
    """
    is_used = config.flag("use_sliding_window") and bool(config.get("sliding_window"))
    if not is_used and SLIDING in (stated or ()):
        expected = f"{FULL} in every layer, or use_sliding_window: true and a sliding_window"
        raise config.fault("layer_types", expected, config.get("layer_types"))
    return is_used


def every_nth_full(key: str) -> Callable[[Config], tuple[str, ...]]:
    """Rule: every n-th layer has full attention, where n is the value of a key (Gemma 3).

    transformers writes n under the key with an underscore too, beside `layer_types`, but reads it
    from `key` only. If there is no `layer_types`, the two must have the same value.
    """

    def read(config: Config) -> tuple[str, ...]:
        stated, written = stated_types(config), config.get(f"_{key}")
        config.get(key)  # transformers reads it only if there is no layer_types
        if stated is not None:
            return stated
        period = config.integer(key)
        if written not in (None, period):
            raise config.fault(f"_{key}", f"{period}, as {key}, or layer_types", written)
        return tuple(
            FULL if (layer + 1) % period == 0 else SLIDING for layer in range(config.layers)
        )

    return read


def every_nth_full_if_window(key: str) -> Callable[[Config], tuple[str, ...]]:
    """Rule: as `every_nth_full`, but all layers have full attention without a window (EXAONE 4)."""
    read_types = every_nth_full(key)

    def read(config: Config) -> tuple[str, ...]:
        if config.get("sliding_window") is None:
            config.get(key)  # only layers with a window follow it
            return stated_types(config) or (FULL,) * config.layers
        return read_types(config)

    return read


def one_full_of(period: int) -> Callable[[Config], tuple[str, ...]]:
    """Rule: the last of each `period` layers has full attention if no types are stated."""

    def read(config: Config) -> tuple[str, ...]:
        return stated_types(config) or tuple(
            SLIDING if (layer + 1) % period else FULL for layer in range(config.layers)
        )

    return read


def first_full_of(period: int) -> Callable[[Config], tuple[str, ...]]:
    """Rule: the first of each `period` layers has full attention if no types are stated (CWM)."""

    def read(config: Config) -> tuple[str, ...]:
        return stated_types(config) or tuple(
            SLIDING if layer % period else FULL for layer in range(config.layers)
        )

    return read


def alternating(config: Config) -> tuple[str, ...]:
    """Rule: sliding window and full attention alternate, beginning with a window (Gemma 2)."""
    return stated_types(config) or tuple(
        FULL if layer % 2 else SLIDING for layer in range(config.layers)
    )


def window_without_rope(config: Config) -> tuple[str, ...]:
    """Rule: layers without rope have a sliding window if `use_sliding_window` (SmolLM3)."""
    stated = stated_types(config)
    if not _uses_windows(config, stated):
        return (FULL,) * config.layers
    plain = unrotated_layers(config)
    return stated or tuple(SLIDING if layer in plain else FULL for layer in range(config.layers))


def unrotated_layers(config: Config) -> tuple[int, ...]:
    """Return the layers without rope: those with 0 in `no_rope_layers`, else every n-th.

    Raises:
        SourceError: `no_rope_layers` is not a list with 0 or 1 for each layer.
    """
    marks = config.get("no_rope_layers")
    config.get("no_rope_layer_interval")  # transformers reads it only if there is no such list
    if marks is None or marks == []:  # Llama 4 publishes an empty list
        period = config.integer("no_rope_layer_interval")
        return tuple(range(period - 1, config.layers, period))
    if not isinstance(marks, list) or len(marks) < config.layers or not set(marks) <= {0, 1}:
        raise config.fault("no_rope_layers", f"{config.layers} of 0 or 1", marks)
    return tuple(layer for layer in range(config.layers) if not marks[layer])


def chunked_with_rope(config: Config) -> tuple[str, ...]:
    """Rule: layers with rope attend within chunks, if there are chunks (Llama 4).

    Raises:
        SourceError: `layer_types` states other layers, or no layer has rope.
    """
    plain = unrotated_layers(config)
    if len(plain) == config.layers:
        raise config.fault("no_rope_layers", "a layer with rope", config.get("no_rope_layers"))
    types = tuple(FULL if layer in plain else SLIDING for layer in range(config.layers))
    stated = config.get("layer_types")
    named = [kind if kind == FULL else "chunked_attention" for kind in types]
    if stated is not None and list(stated)[: config.layers] != named:
        raise config.fault("layer_types", "chunked_attention exactly in layers with rope", stated)
    return types if config.get("attention_chunk_size") else (FULL,) * config.layers


def layers_with_experts(config: Config) -> tuple[int, ...]:
    """Rule: every `decoder_sparse_step`-th layer except those in `mlp_only_layers` (Qwen).

    Raises:
        SourceError: The value of either key is invalid.
    """
    dense = config.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise config.fault("mlp_only_layers", "a list of layers", dense)
    step = config.integer("decoder_sparse_step")
    return tuple(
        layer for layer in range(config.layers) if layer not in dense and (layer + 1) % step == 0
    )


def layers_without_experts(config: Config) -> tuple[int, ...]:
    """Rule: the layers with a dense feed-forward network, which are all others."""
    sparse = layers_with_experts(config)
    return tuple(layer for layer in range(config.layers) if layer not in sparse)


def stated_types(config: Config) -> tuple[str, ...] | None:
    """Return the layer types that the configuration states; None if it states none.

    Raises:
        SourceError: They do not cover every layer, or one of them is unknown.
    """
    types = config.get("layer_types")
    if types is None:
        return None
    known = isinstance(types, list) and all(kind in (FULL, SLIDING) for kind in types)
    if not known or len(types) < config.layers:
        raise config.fault("layer_types", f"{config.layers} of {FULL} or {SLIDING}", types)
    return tuple(types[: config.layers])


def layer_pattern(types: tuple[str, ...]) -> Mapping[str, object]:
    """Return the shortest `inference.layerPattern` that describes the layer types."""
    if not set(types) <= {FULL, SLIDING}:
        return {"type": "custom", "layer_types": types}
    if len(set(types)) == 1:
        return {"type": "uniform"}
    period = types.index(FULL) + 1
    if period > 1 and all(
        (kind == FULL) == (layer % period == period - 1) for layer, kind in enumerate(types)
    ):
        return {"type": "every_n", "period": period, "offset": period - 1}
    return {"type": "custom", "layer_types": types}
