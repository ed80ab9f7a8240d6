"""The options of a conversion, each declared once.

The command line, the Python API and the manifest's record of a conversion all read these fields.
Nothing heavy is imported here; what takes more than a look at one value is checked in
`rdrr_converter.check_options`.
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
from rdrr_format.options import check_fields, documented, option, split_pairs
from rdrr_format.shards import ALIGNMENT, DEFAULT_SHARD_SIZE

from rdrr_converter.profiles import PROFILES, ProfileName
from rdrr_converter.recipes import RECIPES, TAILS, Recipe, RecipeName, RowTail

_MODEL_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_SMALLEST_SHARD = 1 << 16


def split_overrides(words: Sequence[str]) -> dict[str, str]:
    """Read `REGEX=TYPE` words as a mapping in which the last of equal patterns stands last.

    Raises:
        UsageError: One has no `=`.
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
@dataclass(frozen=True, kw_only=True)
class PackageOptions:
    """Options that decide the bytes of a package."""

    quantize: RecipeName = option("q4_k_m", "Storage of the weights.", choices=tuple(RECIPES))
    q4k_layout: LayoutName | None = option(
        None,
        "Order of quantized blocks; row unless weights are transposed.",
        choices=tuple(layout.value for layout in Layout),
    )
    transpose_weights: bool = option(
        False, "Store matmul weights of any dtype transposed, as [inputs, outputs]."
    )
    fuse_gate_up: bool = option(False, "Store gate and up projections as one matrix.")
    k_tail: RowTail = option(
        "pad",
        "Rows whose length is not a multiple of the block size: pad them, use ggml's other types, "
        "or take the smaller of the two.",
        choices=TAILS,
    )
    shard_size: int = option(
        DEFAULT_SHARD_SIZE,
        "Bytes of a full shard.",
        in_bytes=True,
        expected="at least 64 KiB",
        holds=lambda size: size >= _SMALLEST_SHARD,
    )
    align: int = option(
        ALIGNMENT,
        "Tensors begin at multiples of this many bytes; a power of two.",
        in_bytes=True,
        expected="a power of two",
        holds=lambda align: align >= 1 and not align & (align - 1),
    )
    hash_algorithm: HashAlgorithm = option(
        "sha256", "Hash of the shards.", flag="--hash", choices=tuple(ALGORITHMS)
    )
    compress: str | None = option(
        None,
        "Compress the shards with Zstandard; levels are 1 to 22.",
        metavar="zstd[:LEVEL]",
    )
    model_id: str | None = option(
        None,
        "Name of the package; derived from the source unless given.",
        expected="1 to 64 of a-z, 0-9, - and _, beginning with a letter or digit",
        # What the public format's current generation accepts.
        holds=lambda name: _MODEL_ID.fullmatch(name) is not None,
    )
    arch: str | None = option(None, "Architecture to use, whatever the configuration says.")
    lora: str | Path | None = option(
        None, "PEFT adapter (folder or URL) to merge into the weights.", metavar="PATH"
    )
    quality: Quality = option(
        "ref",
        "ref: ggml's blocks bit for bit. best: a longer search for less error at the same size.",
        choices=QUALITIES,
    )
    profile: ProfileName = option(
        "rdrr",
        "Whom the package is for; doppler: only types that the public runtime has kernels for "
        "(Q4_K in rows, F16).",
        choices=tuple(PROFILES),
    )
    imatrix: str | Path | None = option(
        None,
        "Importance matrix of llama.cpp (GGUF or .dat): how much the error in each column counts.",
        metavar="FILE",
    )
    tensor_types: Mapping[str, str] = option(
        {},
        "Storage type of the tensors whose names a regular expression finds; the last match wins.",
        flag="--tensor-type",
        metavar="REGEX=TYPE",
        read_words=split_overrides,
    )
    kernel_hints: Mapping[str, str] = option(
        {},
        "Kernel hint to write into the manifest, by its public name.",
        flag="--kernel-hint",
        metavar="KEY=VALUE",
        read_words=partial(split_pairs, what="kernel hint"),
    )

    def __post_init__(self) -> None:
        """Check each value.

        Raises:
            UsageError: A value that its option does not allow.
        """
        check_fields(self)

    @property
    def recipe(self) -> Recipe:
        """Storage types of the weights.

        Raises:
            KeyError: The profile has no such recipe, which `check_options` refuses first.
        """
        return PROFILES[self.profile][self.quantize]

    @property
    def block_layout(self) -> Layout:
        """Layout of block-quantized matmul weights."""
        if self.q4k_layout is not None:
            return Layout(self.q4k_layout)
        return Layout.COLUMN if self.transpose_weights else Layout.ROW


EngineName = Literal["threads", "ray"]

ENGINES: tuple[EngineName, ...] = get_args(EngineName)
"""Who may do the work; `rdrr_converter.engines` has a module for each."""

DeviceName = Literal["cpu", "wgpu", "cuda"]

DEVICES: tuple[DeviceName, ...] = get_args(DeviceName)
"""What may encode blocks; `rdrr_converter.devices` has a module for each but the CPU."""


@documented
@dataclass(frozen=True, kw_only=True)
class ConvertOptions(PackageOptions):
    """All options of a conversion: `PackageOptions`, and how the work is done.

    The latter change no byte of the package.
    """

    dry_run: bool = option(False, "Print the plan and write nothing.")
    overwrite: bool = option(
        False, "Replace the package that is there, once the new one is complete."
    )
    resume: bool = option(
        False,
        "Continue a conversion to the same destination that was killed, and reuse its finished "
        "shards whose hashes still match.",
    )
    workers: int | None = option(
        None, "Threads; the bytes do not depend on it.", minimum=1, default_text="cores"
    )
    engine: EngineName = option(
        "threads",
        "Who encodes: threads here, or the workers of a Ray cluster.",
        choices=ENGINES,
    )
    ray_address: str | None = option(
        None, "Address of the Ray cluster; one is started without it.", metavar="ADDRESS"
    )
    device: DeviceName = option(
        "cpu",
        "What encodes K-quants of the quality ref: a GPU gives the same bytes as the CPU.",
        choices=DEVICES,
    )
    adapter: str | None = option(
        None,
        "Part of an adapter's name for the device wgpu; the best hardware adapter unless given.",
        metavar="NAME",
    )


class ConvertKeywords(TypedDict, total=False):
    """The fields of `ConvertOptions` as keyword arguments, for annotations."""

    quantize: RecipeName
    q4k_layout: LayoutName | None
    transpose_weights: bool
    fuse_gate_up: bool
    k_tail: RowTail
    shard_size: int
    align: int
    hash_algorithm: HashAlgorithm
    compress: str | None
    model_id: str | None
    arch: str | None
    lora: str | Path | None
    quality: Quality
    profile: ProfileName
    imatrix: str | Path | None
    tensor_types: Mapping[str, str]
    kernel_hints: Mapping[str, str]
    dry_run: bool
    overwrite: bool
    resume: bool
    workers: int | None
    engine: EngineName
    ray_address: str | None
    device: DeviceName
    adapter: str | None
