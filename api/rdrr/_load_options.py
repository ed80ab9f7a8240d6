"""The options of loading a package, each declared once.

The command line reads them too, so nothing heavy is imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypedDict, get_args

from rdrr_format.misuse import explained
from rdrr_format.options import check_fields, documented, option, split_pairs
from rdrr_runtime.decode.backend_lock import DEFAULT_TIMEOUT

BackendName = Literal["auto", "wgpu", "cpu"]
VerifyMode = Literal["cached", "full", "none"]
KvDtype = Literal["f16", "f32", "q8_0"]
WebGpuChoice = Literal["auto", "wgpu", "dawn"]
ExecutorName = Literal["auto", "dispatches", "persistent"]
TablePlace = Literal["auto", "gpu", "host"]
RoundedPlace = Literal["shared", "kept"]

BACKENDS: tuple[BackendName, ...] = get_args(BackendName)
VERIFY: tuple[VerifyMode, ...] = get_args(VerifyMode)
KV_DTYPES: tuple[KvDtype, ...] = get_args(KvDtype)
WEBGPU: tuple[WebGpuChoice, ...] = get_args(WebGpuChoice)
EXECUTORS: tuple[ExecutorName, ...] = get_args(ExecutorName)
TABLE_PLACES: tuple[TablePlace, ...] = get_args(TablePlace)
ROUNDED_PLACES: tuple[RoundedPlace, ...] = get_args(RoundedPlace)

DEFAULT_CONTEXT = 8192
"""Largest number of slots of the key-value cache unless a larger context is asked for."""


@documented
@explained
@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Options of loading a package for generation."""

    backend: BackendName = option(
        "auto",
        "Where the model runs. wgpu: on a GPU through WebGPU. cpu: in torch. auto: wgpu if there "
        "is a hardware adapter, or if an adapter is named; else cpu if torch is installed; else "
        "wgpu on a software adapter.",
        choices=BACKENDS,
        also_known_as=("device", "gpu"),
    )
    adapter: str | None = option(
        None, "Part of the name of the adapter to use; the best adapter by default.", metavar="NAME"
    )
    webgpu: WebGpuChoice = option(
        "auto",
        "Implementation of WebGPU. wgpu: wgpu-native. dawn: Dawn, which the extra dawn installs. "
        "auto: wgpu, unless `rdrr tune --compare-webgpu` found Dawn to be faster on the adapter.",
        choices=WEBGPU,
    )
    kernel_hints: Mapping[str, str] = option(
        {},
        "Kernel hint for this run; it overrides the user's configuration and the manifest.",
        flag="--kernel-hint",
        metavar="KEY=VALUE",
        read_words=partial(split_pairs, what="kernel hint"),
    )
    strict_hints: bool = option(False, "Treat a kernel hint that is not honoured as an error.")
    kv_dtype: KvDtype = option(
        "f16",
        "Data type of the key-value cache on the GPU.",
        choices=KV_DTYPES,
        also_known_as=("dtype", "cache_type", "kv_cache_dtype"),
    )
    layer_inputs: TablePlace = option(
        "auto",
        "Where the table with inputs of each layer is (Gemma 3n, and the E models of Gemma 4). "
        "gpu: in GPU memory. host: in the package, from which the rows of each token are read; "
        "decoding then waits for every token. auto: gpu, if the model fits with it.",
        choices=TABLE_PLACES,
    )
    rounded_weights: RoundedPlace = option(
        "shared",
        "Where weights are that batches and prompts need rounded to rows, such as column-major "
        "ones. shared: in a buffer that all share, rounded in each pass. kept: in memory of their "
        "own, as much as Q8_0 weights take, rounded once; batches are then faster.",
        choices=ROUNDED_PLACES,
    )
    executor: ExecutorName = option(
        "auto",
        "How greedy decoding reaches the GPU. dispatches: each phase of a token is launched by "
        "itself. persistent: a whole token in one dispatch, if a test shows that the adapter can "
        "do it. auto: the one that `rdrr tune` found to be faster; without it dispatches at first, "
        "which a process that decodes for long compares with one dispatch on a GPU.",
        choices=EXECUTORS,
    )
    context: int | None = option(
        None,
        "Most tokens of prompt and generated text together; by default the context length of the "
        f"model, but at most {DEFAULT_CONTEXT:,}.",
        minimum=1,
        also_known_as=("n_ctx", "num_ctx", "ctx_size", "max_model_len", "max_length"),
    )
    follow_links: bool = option(False, "Follow links that lead out of the package's folder.")

    verify: VerifyMode = option(
        "cached",
        "Which shards to hash while they are loaded. cached: those that have changed since their "
        "hash was last found correct. full: all. none: none.",
        choices=VERIFY,
    )
    max_vram: int | None = option(
        None,
        "Refuse a model, and later a batch, that needs more GPU memory than this; no limit by "
        "default.",
        in_bytes=True,
        minimum=1,
        also_known_as=("vram", "max_memory", "gpu_memory_utilization"),
    )

    busy_timeout: float | None = option(
        DEFAULT_TIMEOUT,
        "Seconds that a call waits for a generation of another thread or task; None to wait "
        "without limit.",
        minimum=0,
        python_only=True,
    )

    def __post_init__(self) -> None:
        """Check each value.

        Raises:
            UsageError: A value is not allowed.
        """
        check_fields(self)


class LoadKeywords(TypedDict, total=False):
    """The fields of `LoadOptions` as keyword arguments, for annotations."""

    backend: BackendName
    adapter: str | None
    webgpu: WebGpuChoice
    kernel_hints: Mapping[str, str]
    strict_hints: bool
    kv_dtype: KvDtype
    layer_inputs: TablePlace
    rounded_weights: RoundedPlace
    executor: ExecutorName
    context: int | None
    follow_links: bool
    verify: VerifyMode
    max_vram: int | str | None
    busy_timeout: float | None
