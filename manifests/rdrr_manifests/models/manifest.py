"""The root model: the whole manifest of the current generation."""

from __future__ import annotations

import json
import os
from typing import Any

from pydantic import Field
from rdrr_format.html_tables import facts_table
from rdrr_format.locations import local_path
from rdrr_format.printing import printable
from rdrr_format.stores import replace_file

from rdrr_manifests.models.architecture import Architecture
from rdrr_manifests.models.base import ManifestModel
from rdrr_manifests.models.experts import MoeConfig
from rdrr_manifests.models.hints import KernelHints, Optimizations
from rdrr_manifests.models.identity import Conversion, QuantizationInfo, Shard
from rdrr_manifests.models.inference import Inference
from rdrr_manifests.models.processor import Processor
from rdrr_manifests.models.tensors import Tensor
from rdrr_manifests.models.tokenizer import Tokenizer
from rdrr_manifests.models.vision import Vision

MANIFEST_NAME = "manifest.json"


class Manifest(ManifestModel):
    """`manifest.json`, version 1: the form that rdrr writes and translates every generation into.

    Attributes:
        version: Version of the format, 1.
        model_type: Kind of the model; `transformer` in packages of rdrr.
        quantization: Storage type of most matmul weights, such as `Q4_K_M`.
        quantization_info: Storage type of each group of weights.
        architecture: Sizes of the model.
        moe_config: Experts of the model; None if it has none.
        inference: How the model computes.
        tokenizer: The tokenizer's file and special tokens; None if the package has no tokenizer.
        processor: How an image becomes patches and tokens; None for models without images. Written
            by rdrr only.
        vision: The vision tower, whose tensors are in the group `vision`; None for models without
            one, and if it was left out. Written by rdrr only.
        optimizations: Kernel hints.
        conversion: The conversion that wrote the package.
        metadata: Anything that a writer wants to record; nothing reads it.
        model_id: Name of the package: lower-case letters, digits, `-` and `_`, at most 64
            characters.
        hash_algorithm: Algorithm of the shards' hashes, `sha256` or `blake3`.
        eos_token_id: The id or ids that end a sequence.
        mask_token_id: Id of the mask token, for models that were trained to fill in masks.
        weights_transposed: Whether every matmul weight is stored in the column layout. Written by
            rdrr only.
        groups: Components of the model, each with its tensors, its shards and a hash over the
            bytes of its tensors.
        total_size: Bytes of all shard files.
        shards: The shard files, in order.
        tensors: The entries of the tensors, by name.
    """

    version: int = 1
    model_id: str
    model_type: str = "transformer"
    quantization: str
    quantization_info: QuantizationInfo | None = None
    hash_algorithm: str = "sha256"
    eos_token_id: int | tuple[int, ...] | None = Field(default=None, alias="eos_token_id")
    mask_token_id: int | None = Field(default=None, alias="mask_token_id", ge=0)
    weights_transposed: bool | None = None
    architecture: Architecture
    moe_config: MoeConfig | None = None
    inference: Inference
    tokenizer: Tokenizer | None = None
    processor: Processor | None = None
    vision: Vision | None = None
    optimizations: Optimizations = Optimizations()
    conversion: Conversion | dict[str, Any] | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    groups: Any = None
    total_size: int
    shards: tuple[Shard, ...]
    tensors: dict[str, Tensor]

    def __repr__(self) -> str:
        size = f"{len(self.tensors)} tensors, {self.total_size:,} bytes"
        return printable(f"<Manifest {self.model_id!r}: {self.quantization}, {size}>")

    def _repr_html_(self) -> str:
        """Return a table of the manifest for notebooks."""
        facts = {
            "model type": self.model_type,
            "quantization": self.quantization,
            "layers": self.architecture.num_layers,
            "tensors": f"{len(self.tensors):,}",
            "size": f"{self.total_size:,} bytes in {len(self.shards):,} shards",
        }
        return facts_table(f"Manifest {self.model_id}", facts)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The ids that end a sequence, as a tuple; it may be empty."""
        if self.eos_token_id is None:
            return ()
        return (self.eos_token_id,) if isinstance(self.eos_token_id, int) else self.eos_token_id

    @property
    def kernel_hints(self) -> KernelHints:
        """The kernel hints of the package."""
        return self.optimizations.kernel_hints

    def to_dict(self) -> dict[str, Any]:
        """Return the manifest as JSON values.

        `None` is written inside `inference` and for `moeConfig`, where it means "does not apply".
        Elsewhere a field that is None is omitted.
        """
        data = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        data["inference"] = self.inference.model_dump(mode="json", by_alias=True)
        data.setdefault("moeConfig", None)
        return data

    def to_json(self) -> str:
        """Return the manifest as JSON text, indented by two spaces, with a newline at the end."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the manifest to a file, or to `manifest.json` in a folder, all of it or nothing.

        Only types and ranges of fields have been checked; `rdrr.validate` checks that they fit each
        other and the files of the package.

        Raises:
            StoreError: The file cannot be written.
        """
        target = local_path(path)
        target = target / MANIFEST_NAME if target.is_dir() else target
        replace_file(target, self.to_json().encode())
