"""What a conversion would write, held to the rules of validation before anything is written.

A configuration may say things that no rule of an architecture looks at (an id of the end of a text
beyond the vocabulary, a context of 10^30 tokens), so the planned manifest is examined like one that
was read.
"""

from __future__ import annotations

from rdrr_format.errors import ConversionError
from rdrr_format.shards import shard_name
from rdrr_manifests.faults import of_severity
from rdrr_manifests.models import Manifest, Shard
from rdrr_manifests.reading import read_object
from rdrr_manifests.rules import examine
from rdrr_manifests.rules.tokenizer import examine_tokenizer

from rdrr_converter.plan import ConversionPlan

_PLACEHOLDER_HASH = "f" * 64


def check_manifest(draft: Manifest, plan: ConversionPlan, where: object) -> None:
    """Refuse a conversion whose package would not be valid.

    Args:
        draft: The manifest, as far as it is known.
        plan: What is written.
        where: The configuration, for messages.

    Raises:
        ConversionError: It would not.
    """
    text = _with_shards(draft, plan).to_json().encode()
    data, _ = read_object(text, where)
    errors = of_severity(examine(data).faults, "error")
    if errors:
        first = errors[0]
        raise ConversionError(
            f"the package would not be valid: {first.field}: {first.message}",
            where=where,
            expected=first.expected,
            found=first.found,
            hint="the configuration of the checkpoint says so; correct it there",
        )


def check_tokenizer(draft: Manifest, content: bytes | None, where: object) -> tuple[str, ...]:
    """Refuse a conversion whose package would have a tokenizer that cannot be used.

    Args:
        draft: The manifest, as far as it is known.
        content: The tokenizer's file, if there is one.
        where: The file, for messages.

    Returns:
        Notes on what is odd about it.

    Raises:
        ConversionError: It cannot be used.
    """
    findings = () if content is None else tuple(examine_tokenizer(content, draft))
    for one in findings:
        if one.severity != "warning":
            raise ConversionError(
                f"the package would not be valid: {one.message}",
                where=where,
                expected=one.expected,
                found=one.found,
                hint="take the tokenizer.json that the model was published with, or remove it",
            )
    return tuple(f"tokenizer.json: {one.message}" for one in findings)


def _with_shards(draft: Manifest, plan: ConversionPlan) -> Manifest:
    """The manifest with the shards of the plan, whose hashes nobody knows yet."""
    shards, offset = [], 0
    for index, size in enumerate(plan.shard_sizes):
        shards.append(
            Shard(
                index=index,
                filename=shard_name(index),
                size=size,
                hash=_PLACEHOLDER_HASH,
                offset=offset,
            )
        )
        offset += size
    return draft.model_copy(update={"shards": tuple(shards), "total_size": offset})
