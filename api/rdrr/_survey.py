"""An overview of a package from its manifest, and the memory that it needs: `rdrr inspect`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rdrr_format.dtypes import parse_dtype
from rdrr_format.errors import DeviceError, FormatError
from rdrr_manifests.graph.vision import VISION

if TYPE_CHECKING:
    from rdrr_manifests.models import Manifest, Tensor
    from rdrr_manifests.package import Package
    from rdrr_runtime.compile.choice.hints import Policy

    from rdrr._load_options import WebGpuChoice


@dataclass(frozen=True)
class Group:
    """Totals over the tensors of one storage type or role.

    Attributes:
        name: The storage type or role.
        tensors: Number of tensors.
        weights: Number of weights.
        bytes: Stored bytes.
    """

    name: str
    tensors: int
    weights: int
    bytes: int

    @property
    def bits_text(self) -> str:
        """Stored bits per weight as text, padding included; empty without weights."""
        return f"{8 * self.bytes / self.weights:.2f}" if self.weights else ""


@dataclass(frozen=True)
class Survey:
    """The overview of a package.

    Attributes:
        sections: Facts by heading, in the order in which they are shown.
        by_dtype: Totals of each storage type, most bytes first.
        by_role: Totals of each role, most bytes first.
    """

    sections: Mapping[str, Mapping[str, Any]]
    by_dtype: tuple[Group, ...]
    by_role: tuple[Group, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the overview as JSON values."""
        groups = {"by_dtype": self.by_dtype, "by_role": self.by_role}
        return {**self.sections} | {
            key: [asdict(group) for group in value] for key, value in groups.items()
        }


@dataclass(frozen=True)
class TensorFacts:
    """One row of the table of tensors.

    Attributes:
        name: Name of the tensor.
        role: What the tensor is in the model, like `embedding`.
        dtype: Storage type.
        layout: Order of the weights in storage.
        shape: Logical shape.
        size: Stored bytes.
        place: Shard and offset of each of its byte spans, like `0:4096 + 1:0`.
    """

    name: str
    role: str
    dtype: str
    layout: str
    shape: tuple[int, ...]
    size: int
    place: str

    def as_dict(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Loaded:
    """Bytes that the runtime would allocate on an adapter, with an f16 cache.

    Attributes:
        adapter: Name of the adapter.
        weights: Weights, some of them dequantized where a hint asks for it or no kernel reads the
            stored type.
        kv: Key-value cache.
        rest: Activations, logits and tables.
        tower: Weights of the vision tower; 0 without.
        image: Buffers of the tower for the largest image.
        total: The sum.
    """

    adapter: str
    weights: int
    kv: int
    rest: int
    tower: int
    image: int
    total: int


@dataclass(frozen=True)
class Memory:
    """Bytes of memory that running a package needs.

    Attributes:
        context: Number of slots of the key-value cache.
        rows: Token rows of a pass.
        weights: Stored bytes of the weights.
        kv_f16: Key-value cache in f16.
        kv_f32: Key-value cache in f32.
        kv_q8_0: Key-value cache in Q8_0; None if the head dimension is not a multiple of 32.
        activations: Estimate: the float32 values of one layer for `rows` rows, and the logits.
        loaded: What the runtime would allocate on an adapter; None if no adapter can run the
            package.
    """

    context: int
    rows: int
    weights: int
    kv_f16: int
    kv_f32: int
    kv_q8_0: int | None
    activations: int
    loaded: Loaded | None = None

    @property
    def total(self) -> int:
        """Weights, activations and a key-value cache in f16 together."""
        return self.weights + self.kv_f16 + self.activations

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as JSON values, in bytes."""
        return {**asdict(self), "total": self.total}


def survey(manifest: Manifest) -> Survey:
    """Return the overview of a package from its manifest."""
    return Survey(
        {
            "identity": _identity(manifest),
            "architecture": _architecture(manifest),
            **({} if manifest.vision is None else {"vision tower": _tower(manifest)}),
            "kernel hints": manifest.kernel_hints.model_dump(by_alias=True, exclude_none=True),
        },
        by_dtype=_groups(manifest, _dtype_name),
        by_role=_groups(manifest, lambda tensor: tensor.role),
    )


def tensor_facts(manifest: Manifest) -> list[TensorFacts]:
    """Return a row for each tensor, in the order of the manifest."""
    return [
        TensorFacts(
            name=name,
            role=tensor.role,
            dtype=_block_type(tensor.dtype),
            layout=_layout(tensor),
            shape=tensor.shape,
            size=tensor.size,
            place=" + ".join(f"{run.shard_index}:{run.offset}" for run in tensor.byte_spans()),
        )
        for name, tensor in manifest.tensors.items()
    ]


def estimate_memory(
    package: Package,
    policy: Policy,
    context: int | None = None,
    adapter: str | None = None,
    webgpu: WebGpuChoice = "auto",
) -> Memory:
    """Return the memory that running a package needs.

    Args:
        package: The package.
        policy: The kernel hints, some of which dequantize weights.
        context: Number of slots of the key-value cache; the context length of the model when None.
        adapter: Part of an adapter's name; the best adapter, if there is one, when None.
        webgpu: The implementation of WebGPU.

    Raises:
        ManifestError: No graph can be derived from the manifest, so nothing can run the package.
        DeviceError: There is no adapter of this name, or it cannot run the package.
        FormatError: The named adapter has no kernel for a tensor.
    """
    from rdrr_runtime.compile.pass_spec import PREFILL

    manifest = package.manifest
    sizes = manifest.architecture
    context = context or sizes.max_seq_len
    rows = PREFILL.within(context).rows
    heads = sizes.num_attention_heads + sizes.num_key_value_heads
    # Per row: the residual stream and its norm; queries, keys, values and the output of the
    # attention; gate, up and their product.
    width = 2 * sizes.hidden_size + 2 * heads * sizes.head_dim + 3 * sizes.intermediate_size
    return Memory(
        context=context,
        rows=rows,
        weights=sum(tensor.size for tensor in manifest.tensors.values()),
        kv_f16=package.graph.kv_bytes(context, 2),
        kv_f32=package.graph.kv_bytes(context, 4),
        # The number of slots is even, because two scales share a 32-bit word. A block of 32 bytes
        # has a scale of 2 bytes.
        kv_q8_0=None
        if not all(cache.holds_blocks(32) for cache in package.graph.caches.values())
        else package.graph.kv_bytes(context + context % 2, 1) // 32 * 34,
        activations=4 * (rows * width + sizes.vocab_size),
        loaded=_loaded(package, policy, context, adapter, webgpu),
    )


def _loaded(
    package: Package, policy: Policy, context: int, adapter: str | None, webgpu: WebGpuChoice
) -> Loaded | None:
    """Return what the runtime would allocate; None if no adapter can run the package."""
    from rdrr_runtime.exec.footprint import footprint
    from rdrr_runtime.gpu_tower import tower_footprint

    from rdrr._tuned import read_profile
    from rdrr._webgpu import open_device

    try:
        with closing(open_device(adapter, webgpu)) as device:
            tuning = read_profile(device.info).tuning
            need = footprint(package, device.capabilities, policy, context=context, tuning=tuning)
            tower = tower_footprint(package, device.capabilities, policy, context)
    except (DeviceError, FormatError):
        # Without a name any adapter would do, so having none is not an error.
        if adapter:
            raise
        return None
    seeing = (0, 0) if tower is None else (tower.weights, tower.image)
    total = need.total + sum(seeing)
    return Loaded(device.info.name, need.weights, need.kv, need.rest, *seeing, total)


def _identity(manifest: Manifest) -> dict[str, Any]:
    made_by = manifest.conversion
    tool = made_by if isinstance(made_by, dict) else made_by and made_by.model_dump(by_alias=True)
    facts = {
        "model": manifest.model_id,
        "type": manifest.model_type,
        "quantization": manifest.quantization,
        "weights transposed": bool(manifest.weights_transposed),
        "shards": len(manifest.shards),
        "bytes": manifest.total_size,
        "uncompressed": _uncompressed(manifest),
        "hash": manifest.hash_algorithm,
        "tokenizer": manifest.tokenizer and manifest.tokenizer.file,
        "end of text": list(manifest.eos_token_ids),
        "made by": tool and " ".join(str(tool[key]) for key in ("tool", "version") if key in tool),
    }
    return {key: value for key, value in facts.items() if value is not None}


def _uncompressed(manifest: Manifest) -> int | None:
    """Return the uncompressed size of all shards in bytes; None if none is compressed."""
    if not any(shard.compression for shard in manifest.shards):
        return None
    return sum(shard.content_size for shard in manifest.shards)


def _architecture(manifest: Manifest) -> dict[str, Any]:
    sizes, blocks, moe = manifest.architecture, manifest.inference, manifest.moe_config
    plain = blocks.rope.unrotated_layers
    facts = {
        "layers": sizes.num_layers,
        "hidden size": sizes.hidden_size,
        "feed-forward size": sizes.intermediate_size,
        "experts": moe and moe.num_experts,
        "experts per token": moe and moe.num_experts_per_token,
        "expert size": moe and moe.expert_intermediate_size,
        "shared expert size": moe and moe.shared_expert_intermediate_size,
        "query heads": sizes.num_attention_heads,
        "key-value heads": sizes.num_key_value_heads,
        "head dimension": sizes.head_dim,
        "vocabulary": sizes.vocab_size,
        "context length": sizes.max_seq_len,
        "activation": blocks.ffn.activation,
        "sliding window": blocks.attention.sliding_window,
        "layer pattern": blocks.layer_pattern.type,
        "rope base": blocks.rope.rope_theta,
        "rope base, local": blocks.rope.rope_local_theta,
        "rope scaling": blocks.rope.rope_scaling_type,
        "layers without rope": len(plain) if plain else None,
        "mask token": manifest.mask_token_id,
        "query and key norm": blocks.attention.query_key_norm,
        "tied head": blocks.output.tie_word_embeddings,
    }
    return {key: value for key, value in facts.items() if value is not None}


def _tower(manifest: Manifest) -> dict[str, Any]:
    from rdrr_runtime.images.sizes import most_patches

    vision, processor = manifest.vision, manifest.processor
    assert vision is not None, "the caller asks for no other"
    tensors = [tensor for name, tensor in manifest.tensors.items() if name.startswith(VISION)]
    facts: dict[str, Any] = {
        "layers": vision.num_layers,
        "hidden size": vision.hidden_size,
        "heads": vision.num_attention_heads,
        "weights": sum(math.prod(tensor.shape) for tensor in tensors),
        "bytes": sum(tensor.size for tensor in tensors),
        "types": sorted({_block_type(tensor.dtype) for tensor in tensors}),
    }
    if processor is not None:
        most = manifest.architecture.max_seq_len
        facts["patch size"] = processor.patch_size
        facts["most tokens of an image"] = most_patches(processor, most) // processor.merge_size**2
    return facts


def _groups(manifest: Manifest, key: Callable[[Tensor], str]) -> tuple[Group, ...]:
    sums: dict[str, tuple[int, int, int]] = {}
    for tensor in manifest.tensors.values():
        tensors, weights, size = sums.get(key(tensor), (0, 0, 0))
        sums[key(tensor)] = tensors + 1, weights + math.prod(tensor.shape), size + tensor.size
    groups = (Group(name, *values) for name, values in sums.items())
    return tuple(sorted(groups, key=lambda group: (-group.bytes, group.name)))


def _dtype_name(tensor: Tensor) -> str:
    transform, layout, dtype = tensor.source_transform, _layout(tensor), _block_type(tensor.dtype)
    if transform is not None:
        return f"{transform.source_dtype}, as {dtype}"
    return dtype if layout == "row" else f"{dtype}, {layout}"


def _block_type(name: str) -> str:
    """Return the name that reports have for a type: manifests name Q4_K as the mix, Q4_K_M."""
    try:
        return parse_dtype(name).name
    except FormatError:
        return name


def _layout(tensor: Tensor) -> str:
    """Return the layout of a tensor, as stated if its type is one that only other writers have."""
    try:
        return str(tensor.parsed_layout())
    except FormatError:
        return tensor.layout or "row"
