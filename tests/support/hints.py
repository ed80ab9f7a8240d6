"""What the tests of hints share: a small package, and what was decided for it."""

from __future__ import annotations

from rdrr_runtime.compile.choice.hints import Policy, resolve
from support.packages import llama_manifest, write_random_package

CONTEXT = 96

EXACT = 1e-5
"""Largest relative error of logits with unchanged weights."""


def policy(source: str = "run flag", **hints: str) -> Policy:
    return resolve({source: hints})


def served(choices) -> dict[str, str]:
    """Return the name and first variant of each op's kernel, and whether it multiplies in int8."""
    kernels = {f"{choice.step} {choice.op}": choice.kernel for choice in choices}
    return {
        op: ".".join(label.split(".")[:2]) + ".int8" * label.endswith(".int8")
        for op, label in kernels.items()
    }


def package_of(tmp_path, rng, dtype="Q4_K", layout="row", **options):
    manifest = llama_manifest(dtype, layout, **options)
    return write_random_package(tmp_path / "package", manifest, rng)
