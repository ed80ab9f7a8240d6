"""What browsers cannot run, of the packages and the programs that `web` writes for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rdrr_format.errors import FormatError

if TYPE_CHECKING:
    from rdrr_manifests.models.inference import Output
    from rdrr_manifests.package import Package
    from rdrr_runtime.program.schema import Program

DECODED = ("F32", "F16", "BF16", "Q8_0", "Q4_K", "Q4_K_M", "Q6_K")
"""Types that a browser decodes when it loads a tensor which no kernel reads as it is stored."""


def refuse_package(package: Package) -> None:
    """Refuse a package that the runtime in the browser does not read.

    Raises:
        FormatError: It is one.
    """
    manifest, hint = package.manifest, "convert the model again with `rdrr convert`"
    if package.generation != "current":
        raise FormatError(
            "browsers read manifests of the current generation only",
            where=package.where,
            found=package.generation,
            hint=hint,
        )
    for shard in manifest.shards:
        if shard.compression is not None:
            raise FormatError(
                "browsers read shards that are not compressed",
                where=shard.filename,
                found=shard.compression,
                hint=f"{hint}, without `compress`",
            )
    _refuse_tokenizer(package)


def _refuse_tokenizer(package: Package) -> None:
    """Refuse a package whose tokenizer browsers would read differently.

    A manifest alone, whose tokenizer is not beside it, is accepted: prompts are token ids then.

    Raises:
        FormatError: It is one.
    """
    from rdrr_format.bounded_json import parse_json
    from rdrr_format.bounded_tokenizer import JSON_BOUNDS

    from rdrr._web_text import unread_in_browsers

    named = package.manifest.tokenizer and package.manifest.tokenizer.file
    # Only a manifest alone can lack it: `open_package` refuses a folder whose files are missing.
    if not named or not package.store.exists(named):
        return
    content = package.tokenizer_bytes()
    tokenizer = None if content is None else parse_json(content, JSON_BOUNDS)
    unread = unread_in_browsers(tokenizer) if isinstance(tokenizer, dict) else None
    if unread is not None:
        raise FormatError(
            "browsers would read texts as other token ids than Python does",
            where=package.where,
            found=unread,
            hint="browsers run models with other tokenizers only",
        )


POOLINGS = ("cls", "last", "mean")
ACTIVATIONS = ("gelu", "identity", "relu", "silu", "tanh")
"""What browsers make embeddings with, as `web/src/engine/pooling.ts` does."""


def check_serves(package: Package, program: Program) -> None:
    """Refuse a program that neither generates text nor makes embeddings.

    Raises:
        FormatError: It is that of a model of labels, or of embeddings that browsers do not make.
    """
    output = package.manifest.inference.output
    if program.passes or _makes_embeddings(output):
        return
    raise FormatError(
        "browsers run models that generate text or make embeddings only",
        where=package.where,
        expected=f"pooling by {', '.join(POOLINGS)}; projections with {', '.join(ACTIVATIONS)}",
        found="a model of labels or masks" if output.classifier else "other embeddings",
        hint="rdrr runs it in Python",
    )


def _makes_embeddings(output: Output) -> bool:
    block = output.embedding_postprocessor
    return (
        output.classifier is None
        and block is not None
        and block.pooling_mode in POOLINGS
        and block.normalize in (None, "none", "l2")
        and all(
            projection.activation in ACTIVATIONS and projection.norm_tensor is None
            for projection in block.projections
        )
    )


def check_loads(program: Program) -> None:
    """Refuse a program whose tensors a browser cannot decode.

    Raises:
        FormatError: There is such a tensor.
    """
    from rdrr_runtime.program.steps import Rows, Vector

    for step in program.load:
        if isinstance(step, Vector):
            decoded = [(part.tensor, part.dtype) for part in step.parts]
        elif isinstance(step, Rows) and step.decoded is not None:
            decoded = [(step.tensor, step.dtype)]
        else:
            continue
        for tensor, dtype in decoded:
            if dtype.upper() not in DECODED:
                raise FormatError(
                    "browsers cannot decode the tensor when they load it",
                    where=tensor,
                    expected=f"{', '.join(DECODED)}, or a type that kernels read as it is stored",
                    found=dtype,
                    hint="convert the model to another type, or without the kernel hint",
                )
