"""Reading an adapter's configuration: rank and scale of each module, for LoRA adapters only.

`fan_in_fan_out`, which says that the base stores weights as [inputs, outputs], is ignored. PEFT
ignores it for linear layers, and the architecture says which layers of the base are others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rdrr_format.bounded_json import JsonBounds
from rdrr_format.errors import FormatError, SourceError

from rdrr_converter.checkpoint.files import as_source_error, find_file, read_json_object
from rdrr_converter.lora._patterns import PatternTable

_Number = TypeVar("_Number", int, float)

CONFIG = "adapter_config.json"
ADAPTER = JsonBounds(size=4 << 20, values=1 << 17, depth=16)
"""Bounds on the size of a configuration; one that names 50,000 modules fits."""

_LARGEST = float(np.finfo(np.float32).max)

_REFUSED = (
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "layer_replication",
    "megatron_config",
    "monteclora_config",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_qalora",
    "velora_config",
)
"""Settings with which an adapter is more than two matrices per module."""

_BASE_PRESERVING_INITS = (None, True, False, "gaussian", "eva", "orthogonal", "mica")
"""Values of `init_lora_weights` that do not change the base; others belong to a changed base."""


@dataclass(frozen=True)
class AdapterConfig:
    """The configuration of an adapter.

    Attributes:
        where: The file, for messages.
        rank: Rank of modules that no pattern of `ranks` matches.
        alpha: Alpha of modules that no pattern of `alphas` matches; the scale is alpha / rank.
        ranks: Ranks by patterns of module names.
        alphas: Alphas by patterns of module names.
        uses_rslora: Whether the scale is alpha / sqrt(rank) (rsLoRA).
        uses_dora: Whether the rows are scaled to the norms that the adapter states (DoRA).
        ties_head: Whether the change of the embedding also applies to a tied head.
    """

    where: Path
    rank: int
    alpha: float
    ranks: PatternTable[int]
    alphas: PatternTable[float]
    uses_rslora: bool
    uses_dora: bool
    ties_head: bool

    def rank_of(self, module: str) -> int:
        """Return the rank of a module of the base."""
        return self._found(self.ranks, module) or self.rank

    def scale_of(self, module: str) -> float:
        """Return the factor on the product of a module's matrices."""
        rank = self.rank_of(module)
        stated = self._found(self.alphas, module)
        alpha = self.alpha if stated is None else stated
        return alpha / (sqrt(rank) if self.uses_rslora else rank)

    def _found(self, table: PatternTable[_Number], module: str) -> _Number | None:
        try:
            return table.find(module)
        except FormatError as error:
            raise as_source_error(error, self.where) from error


def read_adapter_config(folder: Path, *, follow_links: bool = False) -> AdapterConfig:
    """Read the configuration in an adapter's folder.

    Args:
        folder: The folder.
        follow_links: Whether the configuration may be a link that leads out of it.

    Raises:
        StoreError: The configuration is a link that leads out of the folder.
        SourceError: There is no configuration, it is damaged, or this kind of adapter cannot be
            merged.
    """
    where = find_file(folder, CONFIG, follow_links=follow_links)
    if where is None:
        raise SourceError(
            "the folder holds no LoRA adapter", where=folder, expected=f"a folder with {CONFIG}"
        )
    values = read_json_object(where, ADAPTER)
    _check_kind(values, where)
    return AdapterConfig(
        where=where,
        rank=_positive(values.get("r", 8), "r", where),
        alpha=_number(values.get("lora_alpha", 8), "lora_alpha", where),
        ranks=_patterns(values, "rank_pattern", where, _positive),
        alphas=_patterns(values, "alpha_pattern", where, _number),
        uses_rslora=values.get("use_rslora") is True,
        uses_dora=values.get("use_dora") is True,
        ties_head=values.get("ensure_weight_tying") is True,
    )


def _check_kind(values: Mapping[str, Any], where: Path) -> None:
    kind = values.get("peft_type")
    if kind != "LORA":
        raise SourceError(
            "this kind of adapter cannot be merged",
            where=where,
            expected="peft_type LORA",
            found=kind,
        )
    for key in _REFUSED:
        if values.get(key):
            raise SourceError(
                f"an adapter with {key} cannot be merged", where=where, found=values[key]
            )
    start = values.get("init_lora_weights")
    if start not in _BASE_PRESERVING_INITS:
        raise SourceError(
            "the adapter belongs to a base that was changed before training",
            where=where,
            expected="another init_lora_weights",
            found=start,
            hint="save it with path_initial_model_for_weight_conversion to make it a LoRA",
        )


def _patterns(
    values: Mapping[str, Any],
    key: str,
    where: Path,
    read: Callable[[object, str, Path], _Number],
) -> PatternTable[_Number]:
    table = values.get(key) or {}
    if not isinstance(table, dict):
        raise _fault(key, "an object", table, where)
    numbers = {pattern: read(value, f"{key}.{pattern}", where) for pattern, value in table.items()}
    try:
        return PatternTable(numbers)
    except FormatError as error:
        raise as_source_error(error, f"{where}, {key}") from error


def _positive(value: object, key: str, where: Path) -> int:
    if type(value) is not int or value < 1:
        raise _fault(key, "a number above 0", value, where)
    return value


def _number(value: object, key: str, where: Path) -> float:
    if type(value) not in (int, float) or not abs(value) <= _LARGEST:  # type: ignore[arg-type]
        raise _fault(key, "a finite number of 32 bits", value, where)
    return float(value)  # type: ignore[arg-type]


def _fault(key: str, expected: str, found: object, where: Path) -> SourceError:
    return SourceError(f"impossible {key}", where=where, expected=expected, found=found)
