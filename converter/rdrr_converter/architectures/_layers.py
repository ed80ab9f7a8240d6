"""Which layers attend to everything and which through the sliding window."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rdrr_converter.architectures._config import Config

FULL, SLIDING = "full_attention", "sliding_attention"


def all_full(config: Config) -> tuple[str, ...]:
    """Rule: no layer has a window."""
    return (FULL,) * config.layers


def window_everywhere(config: Config) -> tuple[str, ...]:
    """Rule: every layer has a window where one is stated (Mistral)."""
    return (FULL if config.get("sliding_window") is None else SLIDING,) * config.layers


def window_above(key: str) -> Callable[[Config], tuple[str, ...]]:
    """Rule: layers from number `key` on have a window, if `use_sliding_window` (Qwen)."""

    def read(config: Config) -> tuple[str, ...]:
        if not config.flag("use_sliding_window") or config.get("sliding_window") is None:
            return (FULL,) * config.layers
        stated = _stated(config)
        if stated is not None:
            return stated
        first = config.get(key)
        if type(first) is not int or first < 0:
            raise config.fault(key, "a number of layers", first)
        return tuple(SLIDING if layer >= first else FULL for layer in range(config.layers))

    return read


def every_nth_full(*keys: str) -> Callable[[Config], tuple[str, ...]]:
    """Rule: every n-th layer sees everything; n is the first of `keys` that has a value."""

    def read(config: Config) -> tuple[str, ...]:
        stated = _stated(config)
        if stated is not None:
            return stated
        key = next((key for key in keys if config.get(key) is not None), keys[-1])
        period = config.integer(key)
        return tuple(
            FULL if (layer + 1) % period == 0 else SLIDING for layer in range(config.layers)
        )

    return read


def _stated(config: Config) -> tuple[str, ...] | None:
    types = config.get("layer_types")
    if types is None:
        return None
    known = isinstance(types, list) and all(kind in (FULL, SLIDING) for kind in types)
    if not known or len(types) < config.layers:
        raise config.fault("layer_types", f"{config.layers} of {FULL} or {SLIDING}", types)
    return tuple(types[: config.layers])


def layer_pattern(types: tuple[str, ...]) -> Mapping[str, object]:
    """The shortest `inference.layerPattern` that says the same."""
    if len(set(types)) == 1:
        return {"type": "uniform"}
    period = types.index(FULL) + 1
    if period > 1 and all(
        (kind == FULL) == (layer % period == period - 1) for layer, kind in enumerate(types)
    ):
        return {"type": "every_n", "period": period, "offset": period - 1}
    return {"type": "custom", "layer_types": types}
