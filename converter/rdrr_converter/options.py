"""The options of a conversion, each declared once.

The command line, the Python API and the record in the manifest are all derived from these fields.
Each value is checked here by itself; what involves several options, or parsing, is checked in
`rdrr_converter.check_options`. Nothing heavy is imported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypedDict, get_args

from rdrr_format.dtypes import QUALITIES, Quality
from rdrr_format.errors import UsageError
from rdrr_format.integrity import ALGORITHMS, HashAlgorithm
from rdrr_format.layouts import Layout, LayoutName
from rdrr_format.misuse import explained
from rdrr_format.options import check_fields, documented, option, split_pairs
from rdrr_format.shards import ALIGNMENT, DEFAULT_SHARD_SIZE
from rdrr_manifests.profiles import ProfileName

from rdrr_converter.recipes import (
    DEFAULT_RECIPE,
    PROFILES,
    RECIPES,
    TAILS,
    Recipe,
    RecipeName,
    RowTail,
)

METHODS = ("gptq", "distill")
"""Ways of the option `quality` that run the model; `rdrr._refining` has a function for each."""

_MODEL_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_SMALLEST_SHARD = 1 << 16


def split_overrides(words: Sequence[str]) -> dict[str, str]:
    """Parse `REGEX=TYPE` arguments into a mapping from pattern to type.

    A pattern that is given twice keeps its last type and its last position.

    Raises:
        UsageError: An argument has no `=`.
    """
    types: dict[str, str] = {}
    for word in words:
        pattern, sign, name = word.rpartition("=")
        if not (sign and pattern and name):
            raise UsageError("`tensor_types` cannot be read", expected="REGEX=TYPE", found=word)
        types.pop(pattern, None)
        types[pattern] = name
    return types


@documented
@explained
@dataclass(frozen=True, kw_only=True)
class PackageOptions:
    """Options that decide the bytes of a package."""

    quantize: RecipeName | None = option(
        None,
        "Quantization of the weights. Without it, a GGUF that is quantized keeps its types and its "
        "blocks are copied.",
        choices=tuple(RECIPES),
        default_text=f"{DEFAULT_RECIPE}, or as in the GGUF",
    )
    q4k_layout: LayoutName | None = option(
        None,
        "Layout of quantized blocks; the default is row, or column with transposed weights.",
        choices=tuple(layout.value for layout in Layout),
    )
    transpose_weights: bool = option(
        False, "Store matmul weights of every dtype transposed, as [inputs, outputs]."
    )
    fuse_gate_up: bool = option(False, "Store the gate and up projections as one matrix.")
    k_tail: RowTail | None = option(
        None,
        "What to do with rows whose length is not a multiple of the block size: pad them, store "
        "them in the types that llama.cpp falls back to (ggml), or use the smaller of the two "
        "(auto).",
        choices=TAILS,
        default_text="pad, or auto for encoders",
    )
    shard_size: int = option(
        DEFAULT_SHARD_SIZE,
        "Size of a shard in bytes.",
        in_bytes=True,
        expected="at least 64 KiB",
        holds=lambda size: size >= _SMALLEST_SHARD,
    )
    align: int = option(
        ALIGNMENT,
        "Alignment of tensors in bytes; a power of two.",
        in_bytes=True,
        expected="a power of two",
        holds=lambda align: align >= 1 and not align & (align - 1),
    )
    hash_algorithm: HashAlgorithm = option(
        "sha256", "Hash algorithm for the shards.", flag="--hash", choices=tuple(ALGORITHMS)
    )
    compress: str | None = option(
        None,
        "Compress the shards with Zstandard, at a level from 1 to 22.",
        metavar="zstd[:LEVEL]",
    )
    model_id: str | None = option(
        None,
        "Name of the package; by default it is derived from the source.",
        expected="1 to 64 of a-z, 0-9, - and _, beginning with a letter or digit",
        # The current generation of the public format accepts no other names.
        holds=lambda name: _MODEL_ID.fullmatch(name) is not None,
    )
    arch: str | None = option(
        None, "Architecture to use instead of the one that config.json names."
    )
    allow_unread: tuple[str, ...] = option(
        (),
        "Key of config.json to ignore, although the architecture does not use it and it may change "
        "what the model computes.",
        metavar="KEY",
        read_words=tuple,
    )
    lora: str | Path | None = option(
        None, "PEFT adapter (folder or URL) to merge into the weights.", metavar="PATH"
    )
    quality: str = option(
        "ref",
        "ref: the same blocks as ggml, bit for bit. best: a longer search, for a smaller error at "
        "the same size. gptq: errors that compensate each other over the inputs of a matrix, by "
        "what the model computes. distill: codes trained until the model predicts what its source "
        "does. All but ref can be joined.",
        choices=(*QUALITIES, *METHODS),
        several=True,
        metavar="WAY[,WAY]",
        expected="ref alone, or others",
        holds=lambda quality: quality == "ref" or "ref" not in quality.split(","),
    )
    profile: ProfileName = option(
        "rdrr",
        "The runtime that the package is for; doppler: only types that the public runtime has "
        "kernels for (Q4_K in the row layout, and F16).",
        choices=tuple(PROFILES),
    )
    imatrix: str | Path | None = option(
        None,
        "Importance matrix of llama.cpp (GGUF or .dat), which weighs the error of each column.",
        metavar="FILE",
    )
    size: int | None = option(
        None,
        "Most bytes of all shards: the types of the weights are chosen by measured error.",
        metavar="LIMIT",
        in_bytes=True,
        minimum=1,
    )
    bits_per_weight: float | None = option(
        None, "The same as a number of bits for each weight of the model.", minimum=1
    )
    text: str | Path | None = option(
        None,
        "Text on which `size` and `bits_per_weight` measure how much each weight matters, without "
        "an `imatrix`, and `quality` gptq and distill what it computes; never the one that the "
        "result is judged on.",
        metavar="FILE",
        default_text="one that comes with the package; for gptq and distill, the model's own texts",
    )
    plan: str | Path | None = option(
        None,
        "Conversion report of another package, whose types of the weights are taken.",
        metavar="FILE",
    )
    without_draft_head: bool = option(
        False,
        "Leave out the head for multi-token prediction, which can draft tokens for speculative "
        "decoding.",
    )
    without_vision: bool = option(
        False, "Leave out the vision tower of a model that sees, and convert its text model only."
    )
    mmproj: str | Path | None = option(
        None,
        "GGUF file (path or URL) with the vision tower of the GGUF that is converted.",
        metavar="FILE",
        default_text="the only one beside it whose name contains mmproj",
    )
    vision_quantize: RecipeName | None = option(
        None,
        "Quantization of the weights of the vision tower.",
        choices=tuple(RECIPES),
        default_text="f16",
    )
    tensor_types: Mapping[str, str] = option(
        {},
        "Storage type of the tensors whose names match a regular expression; the last match wins.",
        flag="--tensor-type",
        metavar="REGEX=TYPE",
        read_words=split_overrides,
    )
    kernel_hints: Mapping[str, str] = option(
        {},
        "Kernel hint to write into the manifest, by its name in the format.",
        flag="--kernel-hint",
        metavar="KEY=VALUE",
        read_words=partial(split_pairs, what="kernel hint"),
    )

    def __post_init__(self) -> None:
        """Check each value.

        Raises:
            UsageError: An option does not allow its value.
        """
        check_fields(self)
        object.__setattr__(self, "allow_unread", tuple(sorted(set(self.allow_unread))))

    @property
    def recipe(self) -> Recipe:
        """Recipe that assigns a storage type to each tensor whose type in the source is not kept.

        Raises:
            KeyError: The profile has no such recipe; `check_options` refuses that earlier.
        """
        return PROFILES[self.profile][self.quantize or DEFAULT_RECIPE]

    @property
    def search(self) -> Quality:
        """How the parameters of a block are searched."""
        return "best" if "best" in self.quality.split(",") else "ref"

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that change the blocks by what the model computes, in their order."""
        return tuple(name for name in METHODS if name in self.quality.split(","))

    @property
    def block_layout(self) -> Layout:
        """Layout of block-quantized matmul weights."""
        if self.q4k_layout is not None:
            return Layout(self.q4k_layout)
        return Layout.COLUMN if self.transpose_weights else Layout.ROW


EngineName = Literal["threads", "ray"]

ENGINES: tuple[EngineName, ...] = get_args(EngineName)
"""Engines that can encode; `rdrr_converter.engines` has a module for each."""

DeviceName = Literal["cpu", "wgpu", "dawn", "cuda"]

DEVICES: tuple[DeviceName, ...] = get_args(DeviceName)
"""Devices that can encode blocks; `rdrr_converter.devices` has a module for each except the CPU."""


@documented
@explained
@dataclass(frozen=True, kw_only=True)
class ConvertOptions(PackageOptions):
    """All options of a conversion: `PackageOptions`, and options that control the work.

    Options that control the work do not change any byte of the package; `measure` adds what it
    measured to the conversion report.
    """

    dry_run: bool = option(False, "Print the plan without writing anything.")
    measure: str | Path | None = option(
        None,
        "Text on which the finished package is compared with its source, or `sentences` for those "
        "that come with rdrr; the conversion report says how far its predictions are apart, or how "
        "alike its embeddings are.",
        metavar="FILE",
    )
    overwrite: bool = option(False, "Replace an existing package once the new one is complete.")
    resume: bool = option(
        False,
        "Refuse to start again if an interrupted conversion to the same destination had other "
        "options, and keep finished shards when the disk is full too. Without it, the same options "
        "continue, and others start again.",
    )
    follow_links: bool = option(
        False,
        "Follow links to configurations, tokenizers and templates that lead out of the "
        "checkpoint's folder; links to weights are followed in any case.",
    )
    workers: int | None = option(
        None,
        "Number of threads; the bytes of the package do not depend on it.",
        minimum=1,
        default_text="cores",
    )
    engine: EngineName = option(
        "threads",
        "What encodes: threads on this machine, or the workers of a Ray cluster.",
        choices=ENGINES,
    )
    ray_address: str | None = option(
        None, "Address of the Ray cluster; without it, a local one is started.", metavar="ADDRESS"
    )
    device: DeviceName = option(
        "cpu",
        "Device that encodes K-quants of quality ref; a GPU produces the same bytes as the CPU. "
        "With cuda, what `size`, `bits_per_weight`, `quality` and `measure` learn from the model "
        "is computed there too.",
        choices=DEVICES,
    )
    adapter: str | None = option(
        None,
        "Part of an adapter's name for wgpu or dawn; the default is the best hardware adapter.",
        metavar="NAME",
    )


class ConvertKeywords(TypedDict, total=False):
    """The fields of `ConvertOptions` as keyword arguments, for annotations."""

    quantize: RecipeName | None
    q4k_layout: LayoutName | None
    transpose_weights: bool
    fuse_gate_up: bool
    k_tail: RowTail | None
    shard_size: int | str
    align: int | str
    hash_algorithm: HashAlgorithm
    compress: str | None
    model_id: str | None
    arch: str | None
    allow_unread: tuple[str, ...]
    lora: str | Path | None
    quality: str
    profile: ProfileName
    imatrix: str | Path | None
    size: int | str | None
    bits_per_weight: float | None
    text: str | Path | None
    plan: str | Path | None
    without_draft_head: bool
    without_vision: bool
    mmproj: str | Path | None
    vision_quantize: RecipeName | None
    tensor_types: Mapping[str, str]
    kernel_hints: Mapping[str, str]
    dry_run: bool
    measure: str | Path | None
    overwrite: bool
    resume: bool
    follow_links: bool
    workers: int | None
    engine: EngineName
    ray_address: str | None
    device: DeviceName
    adapter: str | None
