"""The options of loading a package, each declared once; nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypedDict, get_args

from rdrr_format.options import check_fields, documented, option, split_pairs
from rdrr_runtime.decode.turns import PATIENCE

BackendName = Literal["auto", "wgpu", "cpu"]
VerifyMode = Literal["cached", "full", "none"]
KvDtype = Literal["f16", "f32", "q8_0"]

BACKENDS: tuple[BackendName, ...] = get_args(BackendName)
VERIFY: tuple[VerifyMode, ...] = get_args(VerifyMode)
KV_DTYPES: tuple[KvDtype, ...] = get_args(KvDtype)

DEFAULT_CONTEXT = 8192
"""Most KV slots that are allocated unless more are asked for."""


@documented
@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How a package is loaded for generation."""

    backend: BackendName = option(
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
    kv_dtype: KvDtype = option(
        "f16", "Storage of the key-value cache on the GPU.", choices=KV_DTYPES
    )
    context: int | None = option(
        None,
        "Tokens of prompt and text together; the model's own, at most "
        f"{DEFAULT_CONTEXT:,}, unless given.",
        minimum=1,
    )
    follow_links: bool = option(
        False, "Read what links in the package's folder lead to, wherever that is."
    )

    verify: VerifyMode = option(
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
        PATIENCE,
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


class LoadKeywords(TypedDict, total=False):
    """The fields of `LoadOptions` as keyword arguments, for annotations."""

    backend: BackendName
    adapter: str | None
    kernel_hints: Mapping[str, str]
    strict_hints: bool
    kv_dtype: KvDtype
    context: int | None
    follow_links: bool
    verify: VerifyMode
    max_vram: int | None
    busy_timeout: float | None
