"""Rules for the layer types: which layers have full attention and which a sliding window."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

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


def window_above(config: Config) -> tuple[str, ...]:
    """Rule: layers from `max_window_layers` on have a window if `use_sliding_window` (Qwen)."""
    stated = stated_types(config)
    if not config.flag("use_sliding_window") or not config.get("sliding_window"):
        return all_full(config)
    return stated or _windows_from(config.layer_count("max_window_layers"), config)


def window_from(config: Config) -> tuple[str, ...]:
    """Rule: layers from `max_window_layers` on have the window, if one is stated (dots.llm1)."""
    stated = stated_types(config)
    config.get("max_window_layers")  # also where the stated types count
    if config.get("sliding_window") is None:
        return all_full(config)
    return stated or _windows_from(config.layer_count("max_window_layers"), config)


def _windows_from(first: int, config: Config) -> tuple[str, ...]:
    return tuple(SLIDING if layer >= first else FULL for layer in range(config.layers))


def alternating_below(config: Config) -> tuple[str, ...]:
    """Rule: even layers below `max_window_layers` have a window if it is used (Qwen 2 MoE)."""
    stated = stated_types(config)
    if not _uses_windows(config, stated):
        return all_full(config)
    if stated is not None:
        return stated
    end = config.layer_count("max_window_layers")
    return tuple(FULL if layer % 2 or layer >= end else SLIDING for layer in range(config.layers))


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


def every_nth_full(config: Config) -> tuple[str, ...]:
    """Rule: every `sliding_window_pattern`-th layer has full attention (Gemma 3).

    transformers writes this number under the key with an underscore too, beside `layer_types`, but
    does not read that. If there is no `layer_types`, the two must have the same value.
    """
    stated, written = stated_types(config), config.get("_sliding_window_pattern")
    config.get("sliding_window_pattern")  # transformers reads it only if there is no layer_types
    if stated is not None:
        return stated
    period = config.integer("sliding_window_pattern")
    if written not in (None, period):
        expected = f"{period}, as sliding_window_pattern, or layer_types"
        raise config.fault("_sliding_window_pattern", expected, written)
    return tuple(FULL if (layer + 1) % period == 0 else SLIDING for layer in range(config.layers))


def every_nth_full_if_window(config: Config) -> tuple[str, ...]:
    """Rule: as `every_nth_full`, but all layers have full attention without a window (EXAONE 4)."""
    if config.get("sliding_window") is None:
        config.get("sliding_window_pattern")  # only layers with a window follow it
        return stated_types(config) or all_full(config)
    return every_nth_full(config)


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
        return all_full(config)
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
    return types if config.get("attention_chunk_size") else all_full(config)


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


def all_but(rule: Callable[[Config], Collection[int]]) -> Callable[[Config], tuple[int, ...]]:
    """Rule: all layers that another rule does not name."""

    def read(config: Config) -> tuple[int, ...]:
        named = rule(config)
        return tuple(layer for layer in range(config.layers) if layer not in named)

    return read


layers_without_experts = all_but(layers_with_experts)


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
