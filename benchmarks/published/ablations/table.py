"""The table of ablations: the single optimizations that can be measured.

The names are those of published lists of optimizations. An optimization that cannot be switched off
in this runtime, because the slower code no longer exists, is not in the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from rdrr.bench.runs import LoadedAs

from published.modes.submission import Submission
from published.modes.table import MODES, Mode

BASE = MODES["ours-x8"]
_SINGLE = MODES["ours-x1"]
_PER_OP = replace(_SINGLE, submission=Submission(submit_per_op=True))
_RECREATED = Submission(uniforms="fresh", fresh_bind_groups=True, fresh_staging=True)


@dataclass(frozen=True)
class Side:
    """One of the two variants that an ablation compares.

    Attributes:
        name: Name in the table.
        mode: How the side decodes.
        options: How its package is loaded.
        package: Name of another package (`--package NAME=PATH`); empty for the measured package.
        backend: `wgpu` or `cpu`.
        cached: Whether the key-value cache is used.
    """

    name: str
    mode: Mode = BASE
    options: LoadedAs = field(default_factory=LoadedAs)
    package: str = ""
    backend: Literal["wgpu", "cpu"] = "wgpu"
    cached: bool = True


@dataclass(frozen=True)
class Ablation:
    """One optimization and the two sides that are compared.

    Attributes:
        name: Name that `--ablation` takes.
        slow: The side without the optimization.
        fast: The side with the optimization.
        phase: What is timed: a decoded token (`decode`), the time to first token (`prefill`), or
            the time to first token on a newly opened device (`first`).
        gate: The smallest ratio that passes.
        published: The ratio that was claimed or measured elsewhere, or None.
        weights: Kind of matrices that the optimization affects.
    """

    name: str
    slow: Side
    fast: Side
    phase: Literal["decode", "prefill", "first"] = "decode"
    gate: float = 0.97
    published: float | None = None
    weights: Literal["any", "blocks", "scalars"] = "any"


def _hints(name: str, **hints: str) -> Side:
    return Side(name, options=LoadedAs(hints))


def _attention_kernels() -> list[Ablation]:
    """Return ablations of each attention kernel against the automatic choice.

    The gate of 0.91 means that the automatic choice is at most 10 % slower than any other.
    """
    keys: tuple[tuple[str, Literal["decode", "prefill"]], ...] = (
        ("attentionDecode", "decode"),
        ("attentionPrefill", "prefill"),
    )
    return [
        Ablation(
            f"attention-{phase}-{kernel}",
            _hints(kernel, **{key: kernel}),
            Side("auto"),
            phase,
            0.91,
        )
        for key, phase in keys
        for kernel in ("streaming", "split_kv", "tiled_small", "tiled_large")
    ]


_EXPANDED = LoadedAs({"q4kMatmul": "dequant_f16"})
_FUSED = LoadedAs({"q4kMatmul": "fused_q4k"})
_COLUMN = Side("q4-col, expanded to f16", options=_EXPANDED, package="column")
_FLAT = Side("q4-flat, expanded to f16", options=_EXPANDED, package="flat")
_ROW = Side("q4-row, fused", options=_FUSED)

ABLATIONS: Mapping[str, Ablation] = MappingProxyType(
    {
        ablation.name: ablation
        for ablation in (
            Ablation(
                "command-batching",
                Side("one submit per op", _PER_OP),
                Side("one submit per token", _SINGLE),
                gate=1.2,
            ),
            Ablation(
                "buffer-reuse",
                Side("created for each op", replace(_SINGLE, submission=_RECREATED)),
                Side("kept", _SINGLE),
            ),
            Ablation(
                "gpu-sampling",
                Side("argmax on the CPU", replace(_SINGLE, sampler="cpu")),
                Side("argmax on the GPU", _SINGLE),
                gate=1.05,
                published=1.3,
            ),
            Ablation(
                "deferred-fetch",
                Side("read every token", _SINGLE),
                Side("read every 4", MODES["ours-x4"]),
                gate=1.15,
                published=1.59,
            ),
            Ablation(
                "overlap",
                Side("read, then submit"),
                Side("submit, then read", MODES["ahead-x8"]),
            ),
            Ablation("prewarm", Side("cold"), Side("warm"), "first", 1.0),
            Ablation(
                "kv-f16",
                Side("cache f32", options=LoadedAs(kv_dtype="f32")),
                Side("cache f16", options=LoadedAs(kv_dtype="f16")),
            ),
            Ablation(
                "kv-q8",
                Side("cache f16", options=LoadedAs(kv_dtype="f16")),
                Side("cache q8_0", options=LoadedAs(kv_dtype="q8_0")),
            ),
            *_attention_kernels(),
            Ablation(
                "fused-ops",
                Side("one dispatch per op", options=LoadedAs(fused=False)),
                Side("fused"),
                gate=1.0,
                published=1.2,
            ),
            Ablation(
                "fused-ops-prefill",
                Side("one dispatch per op", options=LoadedAs(fused=False)),
                Side("fused"),
                "prefill",
            ),
            Ablation(
                "f16-activations",
                _hints("f32", computePrecision="f32"),
                _hints("f16", computePrecision="f16"),
                published=1.2,
            ),
            Ablation(
                "w4a16-fused",
                _hints("expanded to f16", q4kMatmul="dequant_f16"),
                _hints("fused", q4kMatmul="fused_q4k"),
                gate=1.3,
                published=2.0,
                weights="blocks",
            ),
            Ablation(
                "int8-products",
                _hints("fused_q4k", q4kMatmul="fused_q4k"),
                _hints("fused_q4k_int8", q4kMatmul="fused_q4k_int8"),
                weights="blocks",
            ),
            Ablation(
                "subgroup-gemv",
                _hints("workgroup memory", f16Matmul="gemv"),
                _hints("subgroups", f16Matmul="gemv_subgroup"),
                published=1.5,
                weights="scalars",
            ),
            Ablation(
                "gate-up-fusion",
                Side("gate and up"),
                Side("gate-up in one", package="fused"),
                published=1.2,
            ),
            Ablation("doppler-col-over-flat", _FLAT, _COLUMN, published=0.98),
            Ablation("doppler-col-over-row", _ROW, _COLUMN, published=1.18),
            Ablation("doppler-prefill", _ROW, _COLUMN, "prefill", published=11.8),
            Ablation(
                "column-major",
                Side("row", options=_FUSED),
                Side("column", options=_FUSED, package="column"),
                published=1.5,
            ),
            Ablation(
                "kv-cache",
                Side("no cache", _SINGLE, cached=False),
                Side("cache", _SINGLE),
                gate=3.0,
            ),
            Ablation(
                "gpu-over-cpu",
                Side("torch on the CPU", _SINGLE, backend="cpu"),
                Side("GPU", _SINGLE),
                gate=3.0,
                published=14.0,
            ),
        )
    }
)
"""The ablations by name. The doppler rows and `column-major` report the effect of a layout on the
kernels of this runtime; the published systems have other, slower kernels for it."""
