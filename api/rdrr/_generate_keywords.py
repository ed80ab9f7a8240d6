"""The keyword arguments of generation, for annotations of the functions that pass them on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rdrr_runtime.sampling.params import SamplingKeywords, SamplingParams

if TYPE_CHECKING:
    from rdrr_runtime.decode.interval import Interval
    from rdrr_runtime.decode.strategies import StrategyName
    from rdrr_runtime.decode.strategy import StrategyOptions

OTHER_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "max_tokens": ("max_new_tokens", "n_predict", "num_predict", "max_completion_tokens"),
        "stop": ("stop_strings", "stop_sequences"),
        "stop_ids": ("stop_token_ids", "eos_token_id"),
        "response_format": ("grammar", "json_schema"),
    }
)
"""What other programs call the arguments that are no sampling parameters."""


class GenerateKeywords(SamplingKeywords, total=False):
    """The keyword arguments of `Model.generate`."""

    sampling: SamplingParams | None
    max_tokens: int
    logprobs: int | None
    response_format: Mapping[str, Any] | None
    stop: str | Sequence[str]
    stop_ids: Sequence[int]
    context_shift: int | None
    interval: Interval
    decode: StrategyOptions | StrategyName | None


GENERATE = tuple(
    name
    for name in GenerateKeywords.__annotations__
    if name not in SamplingKeywords.__annotations__
)
SESSION = ("sampling",)
BATCH = ("sampling", "max_tokens", "sequences", "interval", "stop_ids")
"""Keywords that `Model.generate`, `session` and `generate_batch` have besides those of sampling."""


class ChatKeywords(GenerateKeywords, total=False):
    """The keyword arguments of `Model.chat`."""

    tools: Sequence[Mapping[str, Any]] | None
    template: str | Path | None
    variables: Mapping[str, Any] | None
    control_tokens: bool
