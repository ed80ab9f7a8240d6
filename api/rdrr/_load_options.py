"""The options of loading a package, each declared once; nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from rdrr_format.options import check_fields, documented, option, split_pairs
from rdrr_runtime.decode.turns import DEFAULT_TIMEOUT

BACKENDS = ("auto", "wgpu", "cpu")
VERIFY = ("cached", "full", "none")
KV_DTYPES = ("f16", "f32", "q8_0")

DEFAULT_CONTEXT = 8192
"""Most KV slots that are allocated unless more are asked for."""


@documented
@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How a package is loaded for generation."""

    backend: str = option(
        "auto",
        "wgpu: a GPU through WebGPU. cpu: torch. auto: wgpu where there is an adapter, else cpu.",
        choices=BACKENDS,
    )
    adapter: str | None = option(
        None, "Part of the adapter's name; the best one unless given.", metavar="NAME"
    )
    kernel_hints: Mapping[str, str] = option(
        {},
        "Kernel hint for this run, before those of the user's configuration and of the manifest.",
        flag="--kernel-hint",
        metavar="KEY=VALUE",
        read_words=partial(split_pairs, what="kernel hint"),
    )
    strict_hints: bool = option(False, "A hint that is not honoured is an error.")
    kv_dtype: str = option("f16", "Storage of the key-value cache on the GPU.", choices=KV_DTYPES)
    context: int | None = option(
        None,
        "Tokens of prompt and text together; the model's own, at most "
        f"{DEFAULT_CONTEXT:,}, unless given.",
        minimum=1,
    )
    follow_links: bool = option(
        False, "Read what links in the package's folder lead to, wherever that is."
    )

    verify: str = option(
        "cached",
        "Hash the shards while they are loaded. cached: those that changed since they were last "
        "found right. full: all. none: load whatever is there.",
        choices=VERIFY,
    )
    max_vram: int | None = option(
        None,
        "Refuse to load a model that takes more GPU memory than this; no limit unless given.",
        in_bytes=True,
        minimum=1,
    )

    busy_timeout: float | None = option(
        DEFAULT_TIMEOUT,
        "Seconds that a call waits for a generation of another thread; None for as long as it "
        "takes.",
        minimum=0,
        python_only=True,
    )

    def __post_init__(self) -> None:
        """Check each value.

        Raises:
            UsageError: A value that its option does not allow.
        """
        check_fields(self)
