"""Facts about a package, counted from its manifest: what `rdrr inspect` shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rdrr_format.errors import DeviceError, FormatError

if TYPE_CHECKING:
    from rdrr_manifests.models import Manifest, Tensor
    from rdrr_manifests.package import Package
    from rdrr_runtime.compile.hints import Policy


@dataclass(frozen=True)
class Group:
    """Tensors that have something in common.

    Attributes:
        name: What they have in common.
        tensors: How many there are.
        weights: Elements of all.
        bytes: Stored bytes of all.
    """

    name: str
    tensors: int
    weights: int
    bytes: int

    @property
    def bits_text(self) -> str:
        """Stored bits for one weight, padding counted."""
        return f"{8 * self.bytes / self.weights:.2f}" if self.weights else ""


@dataclass(frozen=True)
class Survey:
    """The overview.

    Attributes:
        sections: Facts by heading, in the order to show them.
        by_dtype: Tensors by storage type, largest first.
        by_role: Tensors by role, largest first.
    """

    sections: Mapping[str, Mapping[str, Any]]
    by_dtype: tuple[Group, ...]
    by_role: tuple[Group, ...]

    def as_dict(self) -> dict[str, Any]:
        """The overview as JSON values."""
        groups = {"by_dtype": self.by_dtype, "by_role": self.by_role}
        return {**self.sections} | {
            key: [asdict(group) for group in value] for key, value in groups.items()
        }


@dataclass(frozen=True)
class TensorFacts:
    """One row of the tensor table."""

    name: str
    role: str
    dtype: str
    layout: str
    shape: tuple[int, ...]
    size: int
    place: str

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Loaded:
    """Bytes that the runtime would allocate on an adapter, with an f16 cache.

    Attributes:
        adapter: Its name.
        weights: As they are kept there, expanded where a hint or the lack of a kernel asks for it.
        kv: Keys and values.
        rest: Activations, logits and tables.
        total: Everything.
    """

    adapter: str
    weights: int
    kv: int
    rest: int
    total: int


@dataclass(frozen=True)
class Memory:
    """Bytes that running a package takes.

    Attributes:
        context: Tokens that the caches hold.
        rows: Token rows of a pass.
        weights: As stored.
        kv_f16: Key-value caches in f16.
        kv_f32: Key-value caches in f32.
        kv_q8_0: Key-value caches in Q8_0; None where heads are no whole blocks of 32.
        activations: Estimate: the f32 values of one layer for `rows` rows, and the logits.
        loaded: What the runtime would allocate; None where no adapter can run it.
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
        """Everything, with an f16 cache."""
        return self.weights + self.kv_f16 + self.activations

    def as_dict(self) -> dict[str, Any]:
        """The figures as JSON values, in bytes."""
        return {**asdict(self), "total": self.total}


def survey(manifest: Manifest) -> Survey:
    """Count what a manifest holds."""
    return Survey(
        {
            "identity": _identity(manifest),
            "architecture": _architecture(manifest),
            "kernel hints": manifest.kernel_hints.model_dump(by_alias=True, exclude_none=True),
        },
        by_dtype=_groups(manifest, _dtype_name),
        by_role=_groups(manifest, lambda tensor: tensor.role),
    )


def tensor_facts(manifest: Manifest) -> list[TensorFacts]:
    """Every tensor, in the manifest's order."""
    return [
        TensorFacts(
            name=name,
            role=tensor.role,
            dtype=tensor.dtype,
            layout=str(tensor.parsed_layout()),
            shape=tensor.shape,
            size=tensor.size,
            place=" + ".join(f"{run.shard_index}:{run.offset}" for run in tensor.byte_spans()),
        )
        for name, tensor in manifest.tensors.items()
    ]


def estimate_memory(
    package: Package, policy: Policy, context: int | None = None, adapter: str | None = None
) -> Memory:
    """Memory of a run.

    Args:
        package: The package.
        policy: Hints, some of which expand weights.
        context: Tokens to hold; the model's longest when None.
        adapter: Part of an adapter's name; the best one, or none where there is none, when None.

    Raises:
        ManifestError: The graph cannot be derived, so nothing can run it.
        DeviceError: No adapter of that name, or it cannot run the package.
        FormatError: The named adapter has no kernel for a tensor.
    """
    from rdrr_runtime.compile.pass_spec import PREFILL

    manifest = package.manifest
    sizes = manifest.architecture
    context = context or sizes.max_seq_len
    rows = PREFILL.within(context).rows
    heads = sizes.num_attention_heads + sizes.num_key_value_heads
    # Residual and normed stream; queries, keys, values and the attention's output; gate, up and
    # their product.
    width = 2 * sizes.hidden_size + 2 * heads * sizes.head_dim + 3 * sizes.intermediate_size
    return Memory(
        context=context,
        rows=rows,
        weights=sum(tensor.size for tensor in manifest.tensors.values()),
        kv_f16=package.graph.kv_bytes(context, 2),
        kv_f32=package.graph.kv_bytes(context, 4),
        # Slots in pairs: two scales share a word.
        kv_q8_0=None
        if sizes.head_dim % 32
        else package.graph.kv_bytes(context + context % 2, 1) // 32 * 34,
        activations=4 * (rows * width + sizes.vocab_size),
        loaded=_loaded(package, policy, context, adapter),
    )


def _loaded(package: Package, policy: Policy, context: int, adapter: str | None) -> Loaded | None:
    """What the runtime would allocate on an adapter, if there is one that can run it."""
    from rdrr_device.device import open_device
    from rdrr_runtime.exec.footprint import footprint

    from rdrr._tuned import read_profile

    try:
        device = open_device(adapter)
        try:
            tuning = read_profile(device.info).tuning
            found = footprint(package, device, policy, context=context, tuning=tuning)
        finally:
            device.close()
    except (DeviceError, FormatError):
        # Only a named adapter is a demand.
        if adapter:
            raise
        return None
    return Loaded(device.info.name, found.weights, found.kv, found.rest, found.total)


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
    """Bytes that compressed shards hold; None where none is compressed."""
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
        "experts of a token": moe and moe.num_experts_per_token,
        "expert size": moe and moe.expert_intermediate_size,
        "shared expert size": moe and moe.shared_expert_intermediate_size,
        "query heads": sizes.num_attention_heads,
        "key-value heads": sizes.num_key_value_heads,
        "head size": sizes.head_dim,
        "vocabulary": sizes.vocab_size,
        "longest context": sizes.max_seq_len,
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


def _groups(manifest: Manifest, key: Callable[[Tensor], str]) -> tuple[Group, ...]:
    sums: dict[str, tuple[int, int, int]] = {}
    for tensor in manifest.tensors.values():
        tensors, weights, size = sums.get(key(tensor), (0, 0, 0))
        sums[key(tensor)] = tensors + 1, weights + math.prod(tensor.shape), size + tensor.size
    groups = (Group(name, *values) for name, values in sums.items())
    return tuple(sorted(groups, key=lambda group: (-group.bytes, group.name)))


def _dtype_name(tensor: Tensor) -> str:
    layout = tensor.parsed_layout()
    return tensor.dtype if layout == "row" else f"{tensor.dtype}, {layout}"
