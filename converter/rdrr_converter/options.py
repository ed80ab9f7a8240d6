"""What a conversion can be told, checked together before anything is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from rdrr_format.codecs import QUALITIES
from rdrr_format.compression import Compression, parse_compression
from rdrr_format.errors import UsageError
from rdrr_format.integrity import ALGORITHMS
from rdrr_format.layouts import Layout
from rdrr_format.shards import ALIGNMENT, DEFAULT_SHARD_SIZE
from rdrr_manifests.models import parse_hint

from rdrr_converter.overrides import parse_overrides
from rdrr_converter.profiles import PROFILES, check_profile
from rdrr_converter.recipes import RECIPES, TAILS, Recipe

MODEL_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
"""What the public format's current generation accepts."""


@dataclass(frozen=True)
class Options:
    """Options that decide the package's bytes; see `rdrr convert --help` for their meaning.

    Attributes:
        quantize: Name of a recipe.
        q4k_layout: Layout of block-quantized matmul weights; None for `row`, or `column` when
            weights are transposed.
        transpose_weights: Store every matmul weight of any dtype in the column layout.
        fuse_gate_up: Store gate and up as one matrix.
        k_tail: What becomes of rows that are not whole blocks.
        quality: `ref` for ggml's blocks bit for bit, `best` for less error at the same size.
        profile: Whom the package is for: `rdrr`, or `doppler` for what the public runtime loads.
        imatrix: File with an importance matrix, which says whose error counts how much.
        tensor_types: Storage types by regular expressions of names; the last that matches wins.
        kernel_hints: Hints to write, by their public names.
        shard_size: Bytes of a full shard.
        align: Tensors begin at multiples of it in the stream of shards; a power of two.
        hash_algorithm: Of the shards.
        compress: How shards are compressed, as `zstd` or `zstd:19`; None for not at all.
        model_id: Name of the package; None derives it from the source.
        arch: Architecture to use whatever the configuration says.
        lora: Folder of an adapter that is merged.
    """

    quantize: str = "q4_k_m"
    q4k_layout: str | None = None
    transpose_weights: bool = False
    fuse_gate_up: bool = False
    k_tail: str = "pad"
    quality: str = "ref"
    profile: str = "rdrr"
    imatrix: str | None = None
    tensor_types: Mapping[str, str] = field(default_factory=dict)
    kernel_hints: Mapping[str, str] = field(default_factory=dict)
    shard_size: int = DEFAULT_SHARD_SIZE
    align: int = ALIGNMENT
    hash_algorithm: str = "sha256"
    compress: str | None = None
    model_id: str | None = None
    arch: str | None = None
    lora: str | None = None

    def check(self) -> None:
        """Refuse values and combinations that mean nothing.

        Raises:
            UsageError: One of them is wrong.
        """
        _one_of("--quantize", self.quantize, tuple(RECIPES))
        _one_of("--k-tail", self.k_tail, TAILS)
        if self.q4k_layout is not None:
            _one_of("--q4k-layout", self.q4k_layout, tuple(layout.value for layout in Layout))
        if self.transpose_weights and self.q4k_layout not in (None, Layout.COLUMN.value):
            raise UsageError(
                "--transpose-weights stores weights in the column layout",
                expected="--q4k-layout column or no --q4k-layout",
                found=f"--q4k-layout {self.q4k_layout}",
            )
        if self.imatrix is not None and self.block_layout is Layout.COLUMN:
            raise UsageError(
                "--imatrix tells columns apart, and blocks of the column layout lie in one column",
                expected="--q4k-layout row or flat",
                found="column",
            )
        if self.shard_size < 2**16:
            raise UsageError(
                "--shard-size is too small", expected="at least 64 KiB", found=self.shard_size
            )
        self._check_align()
        _ = self.compression
        _one_of("--hash", self.hash_algorithm, tuple(ALGORITHMS))
        if self.model_id is not None and not MODEL_ID.fullmatch(self.model_id):
            raise UsageError(
                "--model-id cannot be used",
                expected="1 to 64 of a-z, 0-9, - and _, beginning with a letter or digit",
                found=self.model_id,
            )
        _one_of("--quality", self.quality, QUALITIES)
        parse_overrides(self.tensor_types)
        check_profile(self)
        for key, value in self.kernel_hints.items():
            parse_hint(f"{key}={value}")

    @property
    def recipe(self) -> Recipe:
        """Storage types of the weights."""
        return PROFILES[self.profile][self.quantize]

    def _check_align(self) -> None:
        if self.align < 1 or self.align & (self.align - 1):
            raise UsageError("--align cannot be used", expected="a power of two", found=self.align)
        # A larger alignment is asked for to be found in files; the usual one is of the stream.
        if self.align > ALIGNMENT and self.shard_size % self.align:
            raise UsageError(
                "--align is lost where shards begin",
                expected=f"a --shard-size that is a multiple of {self.align}",
                found=self.shard_size,
            )

    @property
    def compression(self) -> Compression | None:
        """How shards are compressed.

        Raises:
            UsageError: In no way that is known.
        """
        return None if self.compress is None else parse_compression(self.compress)

    @property
    def block_layout(self) -> Layout:
        """Layout of block-quantized matmul weights."""
        if self.q4k_layout is not None:
            return Layout(self.q4k_layout)
        return Layout.COLUMN if self.transpose_weights else Layout.ROW

    def recorded(self) -> dict[str, object]:
        """The options as the manifest records them."""
        recorded: dict[str, object] = {
            "quantize": self.quantize,
            "q4kLayout": self.block_layout.value,
            "transposeWeights": self.transpose_weights,
            "fuseGateUp": self.fuse_gate_up,
            "kTail": self.k_tail,
            "shardSize": self.shard_size,
            "align": self.align,
        }
        if self.compression:
            recorded["compress"] = str(self.compression)
        if self.arch:
            recorded["arch"] = self.arch
        if self.lora:
            # Not its path: the same adapter elsewhere gives the same package.
            recorded["lora"] = True
        if self.quality != "ref":
            recorded["quality"] = self.quality
        if self.profile != "rdrr":
            recorded["profile"] = self.profile
        if self.imatrix:
            recorded["imatrix"] = True
        if self.tensor_types:
            recorded["tensorTypes"] = [str(one) for one in parse_overrides(self.tensor_types)]
        if self.kernel_hints:
            recorded["kernelHints"] = dict(sorted(self.kernel_hints.items()))
        return recorded


def _one_of(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"{option} has no such value", expected=", ".join(choices), found=value)
