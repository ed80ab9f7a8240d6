"""Checks of a conversion's options that involve several options, or that parse a value."""

from __future__ import annotations

from collections.abc import Iterator

from rdrr_format.compression import parse_compression
from rdrr_format.errors import UsageError
from rdrr_format.layouts import Layout
from rdrr_format.shards import ALIGNMENT
from rdrr_manifests.doppler import TYPES as DOPPLER_TYPES
from rdrr_manifests.models import parse_hint
from rdrr_manifests.profiles import DOPPLER

from rdrr_converter.options import PackageOptions
from rdrr_converter.overrides import parse_overrides
from rdrr_converter.recipes import PROFILES


def check_options(options: PackageOptions) -> None:
    """Check the options against each other, and parse the values that have a syntax of their own.

    Raises:
        UsageError: Two options contradict each other, or a value cannot be parsed.
    """
    if options.transpose_weights and options.q4k_layout not in (None, Layout.COLUMN.value):
        raise UsageError(
            "`transpose_weights` stores weights in the column layout",
            expected="`q4k_layout` column or no `q4k_layout`",
            found=f"`q4k_layout` {options.q4k_layout}",
        )
    for name, what in (("vision_quantize", "says how to store"), ("mmproj", "names the file of")):
        if options.without_vision and getattr(options, name) is not None:
            raise UsageError(
                f"`{name}` {what} the vision tower that `without_vision` leaves out",
                expected="one of the two",
                found=f"`without_vision` and `{name}` {getattr(options, name)}",
            )
    _check_limits(options)
    # Tensors are aligned in the stream of all shards. Whoever asks for a larger alignment than the
    # default wants it in the files, which needs shards that begin at multiples of it.
    if options.align > ALIGNMENT and options.shard_size % options.align:
        raise UsageError(
            "`align` does not hold in the files unless every shard begins at a multiple of it",
            expected=f"a `shard_size` that is a multiple of {options.align}",
            found=options.shard_size,
        )
    if options.compress is not None:
        parse_compression(options.compress)
    parse_overrides(options.tensor_types)
    for key, value in options.kernel_hints.items():
        parse_hint(f"{key}={value}")
    _check_profile(options)


def _check_limits(options: PackageOptions) -> None:
    """Check what limits the size of the package.

    Raises:
        UsageError: Two options decide the types of the weights, or one cannot with the others.
    """
    ways = [name for name in ("size", "bits_per_weight", "plan") if getattr(options, name)]
    if len(ways) > 1:
        raise UsageError(
            "these options decide the types of the weights by themselves",
            expected="one of `size`, `bits_per_weight` and `plan`",
            found=" and ".join(f"`{name}`" for name in ways),
        )
    is_measured = bool(ways) and options.plan is None and options.imatrix is None
    if options.text is not None and not (is_measured or options.methods):
        raise UsageError(
            "`text` is only read where the sensitivity of the weights is measured",
            expected="`size` or `bits_per_weight`, and no `imatrix`; or `quality` gptq or distill",
            found=f"`text` {options.text}",
        )
    if ways and options.profile == DOPPLER:
        raise _contradiction(ways[0], "absent", getattr(options, ways[0]))
    if ways and options.block_layout is Layout.FLAT:
        raise UsageError(
            f"`{ways[0]}` chooses types for the rows or columns of a matrix",
            expected="`q4k_layout` row or column",
            found="flat",
        )


def check_importance(options: PackageOptions, *, has_rows: bool) -> None:
    """Check that an importance matrix has what the options need.

    Args:
        options: The options.
        has_rows: Whether the matrix has the importance of rows; False if there is no matrix.

    Raises:
        UsageError: It has not.
    """
    hint = "`rdrr imatrix` with `sensitivity` measures it"
    if options.imatrix is not None and options.block_layout is Layout.COLUMN and not has_rows:
        raise UsageError(
            "`imatrix` weighs columns only, but a block of the column layout lies within a column",
            expected="an importance matrix with sensitivities, or `q4k_layout` row or flat",
            found="column",
            hint=hint,
        )
    if (options.size or options.bits_per_weight) and not has_rows:
        raise UsageError(
            "the types of a package of limited size are chosen by the sensitivity of the weights",
            expected="an `imatrix` with sensitivities",
            found="one without" if options.imatrix else "no `imatrix`",
            hint=hint,
        )


def _check_profile(options: PackageOptions) -> None:
    recipes = PROFILES[options.profile]
    if options.quantize is not None and options.quantize not in recipes:
        raise _contradiction("quantize", " or ".join(recipes), options.quantize)
    if options.profile != DOPPLER:
        return
    for option, expected, value in _doppler_requirements(options):
        if value != expected:
            raise _contradiction(option, expected, value)
    for override in parse_overrides(options.tensor_types):
        if override.dtype.name not in DOPPLER_TYPES:
            raise _contradiction("tensor_types", ", ".join(DOPPLER_TYPES), override)


def _doppler_requirements(options: PackageOptions) -> Iterator[tuple[str, str, str]]:
    """Yield each restricted option with the value that the profile requires and the one given."""
    yield "q4k_layout", Layout.ROW.value, options.block_layout.value
    yield "transpose_weights", "absent", "given" if options.transpose_weights else "absent"
    yield "fuse_gate_up", "absent", "given" if options.fuse_gate_up else "absent"
    yield "k_tail", "pad", options.k_tail or "pad"
    yield "compress", "absent", options.compress or "absent"
    yield "hash_algorithm", "sha256", options.hash_algorithm
    yield "vision_quantize", "absent", options.vision_quantize or "absent"
    yield "mmproj", "absent", "given" if options.mmproj is not None else "absent"


def _contradiction(option: str, expected: str, found: object) -> UsageError:
    return UsageError(
        f"`profile` {DOPPLER} contradicts `{option}`",
        expected=expected,
        found=found,
        hint="omit one of the two",
    )
