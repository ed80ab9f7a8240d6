"""The table of decoding strategies.

Besides its own file, this is the only place that names a strategy. A row gives the class of its
options, whose fields are its flags on the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from rdrr_format.errors import UsageError

from rdrr_runtime.decode.speculative import Speculative
from rdrr_runtime.decode.strategy import StrategyOptions
from rdrr_runtime.decode.wedlm import Wedlm

StrategyName = Literal["ar", "wedlm", "speculative"]
"""`AUTOREGRESSIVE` and the keys of `STRATEGIES`, for annotations."""

AUTOREGRESSIVE = "ar"
"""The name of plain autoregressive decoding, which has no options and no row in the table."""

STRATEGIES: Mapping[str, type[StrategyOptions]] = MappingProxyType(
    {
        "wedlm": Wedlm,
        "speculative": Speculative,
    }
)


def options_named(name: str) -> StrategyOptions | None:
    """Return the default options of a strategy; None for autoregressive decoding.

    Args:
        name: A `StrategyName`, in any case.

    Raises:
        UsageError: There is no strategy of that name.
    """
    name = name.lower()
    if name == AUTOREGRESSIVE:
        return None
    if name not in STRATEGIES:
        known = ", ".join([AUTOREGRESSIVE, *STRATEGIES])
        raise UsageError("unknown decoding strategy", expected=known, found=name)
    return STRATEGIES[name]()
