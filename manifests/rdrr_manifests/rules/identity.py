"""Rules on the package as a whole: its name, its version, and its summary fields."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rdrr_manifests.faults import Severity, tensor_field
from rdrr_manifests.generations import Generation
from rdrr_manifests.rules.subject import Finding, Rule, Subject

_MODEL_ID = re.compile(r"[a-z0-9_-]{1,64}")
HASH_ALGORITHMS = ("sha256", "blake3")
_NEWEST_VERSION = 1
_LAYOUTS = ("row", "col", "column", "flat")


def version(subject: Subject) -> Iterator[Finding]:
    """Check that `version` is 1; 2 is read as 1 with a warning, and more needs a newer rdrr."""
    stated = subject.manifest.version
    if stated < _NEWEST_VERSION:
        yield Finding("version", "this version does not exist", "1", stated)
    elif stated > _NEWEST_VERSION + 1:
        yield Finding("version", "this package needs a newer rdrr", "1", stated)
    elif stated > _NEWEST_VERSION:
        yield Finding("version", "the version is unknown and is read as 1", "1", stated, "warning")


def model_id(subject: Subject) -> Iterator[Finding]:
    """Check that `modelId` consists of 1 to 64 lower-case letters, digits, `-` and `_`."""
    stated = subject.manifest.model_id
    if not _MODEL_ID.fullmatch(stated):
        # Packages of other writers break this rule and can be read nevertheless.
        severity: Severity = "error" if subject.is_written_by_rdrr or not stated else "warning"
        expected = "1 to 64 of a-z, 0-9, - and _"
        yield Finding("modelId", "not a plain name", expected, stated, severity)


def hash_algorithm(subject: Subject) -> Iterator[Finding]:
    """Check that `hashAlgorithm` is sha256 or blake3, also where a shard states it."""
    algorithm = subject.manifest.hash_algorithm
    if algorithm not in HASH_ALGORITHMS:
        yield Finding(
            "hashAlgorithm", "unknown hash algorithm", " or ".join(HASH_ALGORITHMS), algorithm
        )
    for index, shard in enumerate(subject.manifest.shards):
        stated = (shard.model_extra or {}).get("hashAlgorithm")
        if stated is not None and stated != algorithm:
            yield Finding(
                f"shards[{index}].hashAlgorithm",
                "differs from the hashAlgorithm of the package",
                algorithm,
                stated,
            )


def eos_token(subject: Subject) -> Iterator[Finding]:
    """Check that end-of-sequence ids are rows of the embedding, and that there is at least one."""
    manifest = subject.manifest
    rows = manifest.inference.output.embedding_vocab_size or manifest.architecture.vocab_size
    for eos in manifest.eos_token_ids:
        if not 0 <= eos < rows:
            yield Finding(
                "eos_token_id", "the id is outside the vocabulary", f"0 to {rows - 1}", eos
            )
    if not manifest.eos_token_ids and manifest.model_type == "transformer":
        yield Finding(
            "eos_token_id",
            "the field is missing, so only the token limit ends a sequence",
            severity="warning",
        )


def tokenizer_vocabulary(subject: Subject) -> Iterator[Finding]:
    """Check that the tokenizer has no more entries than the embedding has rows."""
    manifest = subject.manifest
    if manifest.tokenizer is None:
        yield Finding("tokenizer", "the block is missing, so text cannot be encoded")
        return
    rows = manifest.inference.output.embedding_vocab_size or manifest.architecture.vocab_size
    size = manifest.tokenizer.vocab_size
    if size is not None and size > rows:
        yield Finding(
            "tokenizer.vocabSize",
            "more entries than the embedding has rows",
            f"at most {rows}",
            size,
        )


def quantization_layout(subject: Subject) -> Iterator[Finding]:
    """Check that `quantizationInfo.layout` is known, and is stated if there are Q4_K_M tensors."""
    info = subject.manifest.quantization_info
    stated = info.layout if info else None
    field = "quantizationInfo.layout"
    if stated is None:
        if any(_is_q4k(tensor.dtype) for tensor in subject.manifest.tensors.values()):
            yield Finding(field, "Q4_K_M tensors need this field", "row or col")
    elif stated not in _LAYOUTS:
        yield Finding(field, "unknown layout", "row or col", stated)
    elif stated == "flat":
        yield Finding(field, "other runtimes refuse this layout", "row or col", stated, "warning")


def _is_q4k(dtype: str) -> bool:
    return dtype.upper().startswith("Q4_K")


def experts(subject: Subject) -> Iterator[Finding]:
    """Check that `moeConfig` has a positive number of experts, and that a token uses 1 to all."""
    moe = subject.manifest.moe_config
    if moe is None:
        return
    total, used = moe.num_experts, moe.num_experts_per_token
    if total < 1:
        yield Finding(
            "moeConfig.numExperts", "not a valid number of experts", "a positive integer", total
        )
    elif not 1 <= used <= total:
        yield Finding(
            "moeConfig.numExpertsPerToken", "not a valid number of experts", f"1 to {total}", used
        )


def groups(subject: Subject) -> Iterator[Finding]:
    """Check that `groups` only name shards and tensors that exist."""
    stated = subject.manifest.groups
    if not isinstance(stated, dict):
        return
    count = len(subject.manifest.shards)
    for key, group in stated.items():
        if not isinstance(group, dict):
            yield Finding(f"groups.{key}", "not an object", found=group)
            continue
        shards = group.get("shards")
        for index in shards if isinstance(shards, list) else ():
            if not isinstance(index, int) or not 0 <= index < count:
                yield Finding(f"groups.{key}.shards", "no such shard", f"0 to {count - 1}", index)
        tensors = group.get("tensors")
        for name in tensors if isinstance(tensors, list) and subject.has_tensors else ():
            known = isinstance(name, str) and (
                name in subject.manifest.tensors or name in subject.broken_tensors
            )
            if not known:
                yield Finding(f"groups.{key}.tensors", "no such tensor", found=name)


def tensor_count(subject: Subject) -> Iterator[Finding]:
    """Check that `tensorCount` is the number of tensors, if it is stated."""
    stated = (subject.manifest.model_extra or {}).get("tensorCount")
    count = len(subject.manifest.tensors) + len(subject.broken_tensors)
    if subject.has_tensors and stated is not None and stated != count:
        yield Finding("tensorCount", "differs from the number of tensors", count, stated)


def role_stated(subject: Subject) -> Iterator[Finding]:
    """Check that every tensor states its role, in the current generation."""
    if subject.generation is not Generation.CURRENT:
        return
    for name, tensor in subject.manifest.tensors.items():
        if "role" not in tensor.model_fields_set:
            yield Finding(tensor_field(name, "role"), "the role is missing and is read as other")


RULES = (
    Rule("version", version, needs=("version",)),
    Rule("model-id", model_id, needs=("modelId",)),
    Rule("hash-algorithm", hash_algorithm, needs=("hashAlgorithm", "shards")),
    Rule("eos-token", eos_token, needs=("eos_token_id", "architecture", "inference")),
    Rule(
        "tokenizer-vocabulary",
        tokenizer_vocabulary,
        "warning",
        ("tokenizer", "architecture", "inference"),
    ),
    Rule("quantization-layout", quantization_layout, needs=("quantizationInfo",)),
    Rule("experts", experts, needs=("moeConfig",)),
    Rule("groups", groups, needs=("shards",)),
    Rule("tensor-count", tensor_count, needs=("tensors",)),
    Rule("tensor-role", role_stated, "warning"),
)
