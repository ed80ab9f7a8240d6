"""Conversions whose packages must never change by accident, and their recorded digests.

`python -m support.golden_packages`, with `tests` and the components on the path, converts them all
and records their digests anew. Do so only when the packages are meant to change, and state the
reason in CHANGELOG.md.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rdrr_converter.convert import convert
from support.golden_checkpoints import CHECKPOINTS, digest_of, options_of

RECORDED = Path(__file__).parents[1] / "data" / "golden_digests.json"


@dataclass(frozen=True)
class Case:
    """A conversion of one of `CHECKPOINTS` with options of `convert`."""

    checkpoint: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        words = (f"{key}={_word(value)}" for key, value in self.options.items())
        return " ".join([self.checkpoint, *words])


def _word(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{key}:{item}" for key, item in value.items())
    return str(value)


def _cases(checkpoint: str, *options: Mapping[str, Any]) -> tuple[Case, ...]:
    return tuple(Case(checkpoint, option) for option in options)


_RECIPES = tuple(
    {"quantize": name}
    for name in (
        "q4_k_m",
        "q4_k_s",
        "q5_k_m",
        "q5_k_s",
        "q6_k",
        "q4_0",
        "q5_0",
        "q8_0",
        "f16",
        "f32",
    )
)
_LAYOUTS = tuple(
    {"q4k_layout": layout, "fuse_gate_up": fused}
    for layout in ("row", "column", "flat")
    for fused in (False, True)
)
_TAILS = tuple({"k_tail": tail} for tail in ("pad", "ggml", "auto"))
_TRANSPOSED = {"transpose_weights": True}
_TYPES = {"tensor_types": {"o_proj": "Q4_0", r"layers\.1.*o_proj": "q8_0"}}
_HINTS = {"kernel_hints": {"q4kMatmul": "fused_q4k", "computePrecision": "f32"}}

CASES: tuple[Case, ...] = (
    *_cases(
        "llama",
        *_RECIPES,
        *_LAYOUTS,
        _TRANSPOSED,
        {**_TRANSPOSED, "quantize": "f16", "fuse_gate_up": True},
        {"quality": "best"},
        {"imatrix": True},
        {"imatrix": True, "quality": "best"},
        {"imatrix": "sensitivity", "size": 900_000},
        {"imatrix": "sensitivity", "bits_per_weight": 7, **_TRANSPOSED},
        {"lora": True},
        _TYPES,
        _HINTS,
        {"shard_size": 2**17},
        {"shard_size": 2**17, "compress": "zstd"},
        {"compress": "zstd:19"},
        {"align": 4096},
        {"hash_algorithm": "blake3"},
        {"model_id": "another-name"},
        {"arch": "mistral", "allow_unread": ("model_type",)},
        {"profile": "doppler"},
        {"profile": "doppler", "quantize": "f16"},
    ),
    *_cases("llama-192", *_TAILS, *({**tail, **_TRANSPOSED} for tail in _TAILS)),
    *_cases("llama-large-values", {}),
    *_cases("qwen2", {}, _TRANSPOSED),
    *_cases("gemma3", *_TAILS, {**_TRANSPOSED, "fuse_gate_up": True}, {"profile": "doppler"}),
    *_cases("phi3", {}, {"fuse_gate_up": True}),
    *_cases("qwen3-moe", {}, {"quantize": "q8_0"}, _TRANSPOSED),
    *_cases("glm4-moe", {}, {"without_draft_head": True}),
    *_cases("qwen3-vl", {}, {"without_vision": True}, {"vision_quantize": "q4_k_m"}),
    *_cases("gguf", {}, {"quantize": "q8_0"}),
    *_cases("small-llama", {}, {**_TRANSPOSED, "fuse_gate_up": True}),
)


def recorded_digests() -> dict[str, str]:
    """Return the recorded digest of each case by name."""
    document: dict[str, str] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return document


def convert_case(case: Case, checkpoint: Path, folder: Path) -> str:
    """Convert an existing checkpoint and return the digest of its package."""
    folder.mkdir()
    convert(checkpoint, folder / "package", **options_of(case.options, folder))
    return digest_of(folder / "package")


def write_checkpoints(folder: Path) -> dict[str, Path]:
    """Write all of `CHECKPOINTS` and return their paths; each folder has the checkpoint's name."""
    return {name: write(folder / name) for name, write in CHECKPOINTS.items()}


def main() -> None:
    """Record the digests of all cases."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        checkpoints = write_checkpoints(root / "checkpoints")
        digests = {
            case.name: convert_case(case, checkpoints[case.checkpoint], root / str(number))
            for number, case in enumerate(CASES)
        }
    RECORDED.write_text(json.dumps(digests, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
