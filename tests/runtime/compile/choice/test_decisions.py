"""The reason of every decision names the kernel that runs, and no hint is ignored silently.

Dry runs cover every op, layout, type, hint and number of rows on four made-up adapters. Nothing is
loaded, so this is fast. What the kernels compute is tested elsewhere.
"""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
from rdrr_device.capabilities import Capabilities
from rdrr_device.dry_run import DryRunArena
from rdrr_manifests.models import HINT_VALUES
from rdrr_manifests.package import Package
from rdrr_runtime.compile.choice.decision import Chosen, Reason, Unmet, Wish, choose, unhonoured
from rdrr_runtime.compile.choice.hints import Hint, resolve
from rdrr_runtime.compile.lowering.ops import LOWERINGS, check_fields
from rdrr_runtime.compile.pass_spec import (
    BATCHES,
    DECODE,
    PREFILL,
    SCORE,
    SMALL_WINDOW,
    WINDOW,
    Logits,
)
from rdrr_runtime.exec.plan import Plan
from rdrr_runtime.phases.products.linear import GEMV_ROWS
from support.packages import llama_manifest, write_random_package

SPECS = (DECODE, SMALL_WINDOW, WINDOW, SCORE, PREFILL, BATCHES[1])
MOE = {
    "numExperts": 6,
    "numExpertsPerToken": 2,
    "expertIntermediateSize": 256,
    "normTopkProb": True,
}
LIMITS = {
    "max-compute-workgroup-storage-size": 49_152,
    "max-compute-invocations-per-workgroup": 1024,
    "max-storage-buffers-per-shader-stage": 16,
    "max-storage-buffer-binding-size": 1 << 30,
    "max-buffer-size": 1 << 30,
}
SMALL_LIMITS = LIMITS | {
    "max-compute-workgroup-storage-size": 16_384,
    "max-compute-invocations-per-workgroup": 256,
    "max-storage-buffers-per-shader-stage": 8,
}
FEATURES = frozenset({"subgroup", "shader-f16"})
ADAPTERS = {
    "hardware": (False, FEATURES, LIMITS),
    "hardware, default limits, no features": (False, frozenset(), SMALL_LIMITS),
    "software": (True, FEATURES, LIMITS),
    "software, default limits, no features": (True, frozenset(), SMALL_LIMITS),
}

# The words of a reason for each kind of product kernel, and the pattern of its label.
NAMED = {
    "one-row product, int8 activations": r"matvec\..*\.int8",
    "one-row product, float activations": r"matvec\.(?!.*\.int8)",
    "small batch, int8 activations": r"matvec_rows\.(?!experts)|quantize_small_batch|requantize",
    "tiles of many rows, int8 activations": r"matmul_int8\.|quantize_rows|requantize",
    "tiles of many rows (": r"matmul_tiled\.",
    "general product": r"gemv_row\.",
    "experts, int8 activations": r"(matvec_rows|matmul_int8)\.experts|quantize_(small_batch|rows)",
    "experts: the rows": r"matmul_tiled\.experts",
    "experts: each route": r"gemv_row\.experts",
    "attention in large tiles": r"attention_tiled\.16|attention_combine",
    "attention in small tiles": r"attention_tiled\.8|attention_combine",
    "attention with the keys in splits": r"attention\.split_kv|attention_combine",
    "streaming attention": r"attention\.streaming",
    "attention fused": r"attention_decode",
    "norms, rope and the cache in one": r"norm_rope_store",
    "the only kernel": r"",
}
PRODUCTS = re.compile(r"(matvec|matvec_rows|matmul_int8|matmul_tiled|gemv_row)\.")
IN_INT8 = re.compile(r"\.int8\b|^matmul_int8\.")
BLOCKS = re.compile(r"\bq\d_[k01]\b")


def adapter(name: str) -> Capabilities:
    software, features, limits = ADAPTERS[name]
    large = {"max-storage-buffer-binding-size": 1 << 30, "max-buffer-size": 1 << 30}
    return Capabilities(features, {**large, **limits}, software=software)


def decisions(package, name: str, source: str = "manifest", **hints: str):
    policy = resolve({source: hints})
    plan = Plan(package, DryRunArena(adapter(name)), policy, context=512, kv_dtype="f16")
    return plan.decisions(SPECS)


def honours(hint: tuple[str, str], decision) -> bool:
    """Return whether a decision honours a hint, judging by the label of the kernel alone."""
    key, value = hint
    label = decision.kernel
    is_product = PRODUCTS.match(label) is not None
    has_blocks = BLOCKS.search(label) is not None
    spec = next((spec for spec in SPECS if spec.name == decision.step), DECODE)
    single = decision.op == "head" and spec.logits is Logits.LAST
    few = single or spec.rows <= GEMV_ROWS
    if key == "q4kMatmul" and is_product:
        wanted = {"fused_q4k": False, "fused_q4k_int8": True}.get(value)
        if value.startswith("dequant"):
            return not has_blocks
        return not has_blocks or (IN_INT8.search(label) is not None) is wanted
    if key == "computePrecision" and (is_product or decision.step == "load"):
        return IN_INT8.search(label) is None and (decision.op != "activations" or label == value)
    if key == "f16Matmul" and is_product and not has_blocks:
        general = label.startswith(("gemv", "matvec."))
        if value == "tiled":
            return label.startswith("matmul_tiled")
        if value == "int8":
            rounded = label.startswith(("matvec_rows.q8_0", "matmul_int8.q8_0"))
            return few or rounded or ".f32" in label or "experts" in label
        return general or not few
    attention = {
        "attentionDecode": decision.step == "decode",
        "attentionPrefill": decision.step != "decode",
    }
    if attention.get(key) and label.startswith("attention"):
        fitting = {"tiled_large": "tiled.16", "tiled_small": "tiled.8"}
        wanted_label = fitting.get(value, value)
        joins = value != "streaming" and label.startswith("attention_combine")
        fused = key == "attentionPrefill" and label.startswith("attention_decode")
        return wanted_label in label or joins or fused
    return True


HINTS = [(key, value) for key, values in HINT_VALUES.items() for value in values if value != "auto"]
TYPES = {
    "dense": [
        *((dtype, "row") for dtype in ("Q4_K", "Q6_K", "F16", "F32")),
        *((dtype, layout) for dtype in ("Q4_K", "F16") for layout in ("column", "flat")),
    ],
    "mixture": [("Q4_K", "row"), ("Q4_K", "column"), ("F16", "row")],
}


def package_of(folder, form: tuple[str, str, str]) -> Package:
    """Write a package of a kind, type and layout of `TYPES`."""
    kind, dtype, layout = form
    # Only layers behind the first have experts.
    options = {"moe": MOE} if kind == "mixture" else {"layers": 1}
    manifest = llama_manifest(dtype, layout, **options)
    return write_random_package(folder / "p", manifest, np.random.default_rng(1))


@pytest.fixture(scope="module", params=TYPES)
def package(request, tmp_path_factory) -> Package:
    return package_of(tmp_path_factory.mktemp("decisions"), (request.param, "Q4_K", "row"))


@pytest.mark.cover
@pytest.mark.parametrize("name", ["hardware", "software, default limits, no features"])
@pytest.mark.parametrize("form", [(kind, *form) for kind, forms in TYPES.items() for form in forms])
def test_a_reason_names_the_kernel_that_runs_and_no_hint_is_ignored(tmp_path, form, name) -> None:
    package = package_of(tmp_path, form)
    for hint in [None, *HINTS]:
        stated = {} if hint is None else dict([hint])
        for decision in decisions(package, name, **stated):
            assert decision.step == "load" or is_named(decision), (hint, decision)
            if hint is not None:
                said = decision.unmet is not None and decision.unmet.hint.key == hint[0]
                assert said or honours(hint, decision), (hint, decision)


def is_named(decision) -> bool:
    """Return whether the reason of a decision names the kind of kernel that runs."""
    labels = [label for phrase, label in NAMED.items() if phrase in decision.reason]
    return any(re.match(label, decision.kernel) for label in labels)


def test_the_check_finds_a_hint_that_is_ignored(package) -> None:
    """The control: without the hint, some kernel does not do what the hint requests."""
    plain = decisions(package, "hardware")
    for hint in (("q4kMatmul", "fused_q4k"), ("attentionPrefill", "streaming")):
        assert not all(honours(hint, decision) for decision in plain)
    assert all(decision.unmet is None for decision in plain)


def test_without_hints_no_decision_reports_an_unhonoured_hint(package) -> None:
    for name in ADAPTERS:
        assert unhonoured(decisions(package, name)) == ()


def test_the_head_of_a_prompt_uses_int8_if_a_hint_requests_it(tmp_path, rng) -> None:
    """A regression: the head ran in f32 without reporting the hint as not honoured."""
    manifest = llama_manifest("Q4_K", embedding="Q6_K")
    package = write_random_package(tmp_path / "package", manifest, rng)
    choices = decisions(package, "software", q4kMatmul="fused_q4k_int8")
    heads = {decision.step: decision for decision in choices if decision.op == "head"}
    assert heads["prefill"].kernel == heads["decode"].kernel
    assert heads["prefill"].kernel.endswith(".int8")
    assert "int8 activations" in heads["prefill"].reason
    assert unhonoured(choices) == ()


class Named(SimpleNamespace):
    """A candidate for the tests of `choose`."""


FAST, EXACT, ANY = (Named(title=title) for title in ("fast", "exact", "any"))
HINT = Hint("q4kMatmul", "fused_q4k_int8", "run flag")


def chosen(refused: dict[str, str], *wishes: Wish) -> Chosen:
    return choose((FAST, EXACT, ANY), lambda candidate: refused.get(candidate.title), wishes)


def test_the_first_candidate_that_can_serve_and_satisfies_the_wishes_wins() -> None:
    assert chosen({}).candidate is FAST
    assert chosen({}).reason == Reason("fast (auto)")
    wish = Wish("x=exact", lambda candidate: candidate is EXACT, HINT)
    assert chosen({}, wish).candidate is EXACT
    assert chosen({}, wish).reason == Reason("exact (x=exact)")


def test_a_wish_that_no_candidate_can_satisfy_is_dropped_and_reported() -> None:
    wish = Wish("x=exact", lambda candidate: candidate is EXACT, HINT)
    choice = chosen({"exact": "it is too large"}, wish)
    assert choice.candidate is FAST
    assert choice.reason.unmet == Unmet(HINT, "it is too large")
    assert "x=exact is not honoured: it is too large" in choice.reason.text


def test_the_weaker_of_two_conflicting_wishes_is_dropped() -> None:
    strong = Wish("a", lambda candidate: candidate is not FAST)
    weak = Wish("b", lambda candidate: candidate is FAST, HINT)
    choice = chosen({}, strong, weak)
    assert choice.candidate is EXACT
    assert choice.reason.unmet == Unmet(HINT, "a excludes it")


def test_a_dropped_default_is_not_reported_as_an_unhonoured_hint() -> None:
    wish = Wish("auto on a hardware adapter", lambda candidate: candidate is FAST)
    choice = chosen({"fast": "it serves one row"}, wish)
    assert choice.reason.unmet is None
    assert "it serves one row" in choice.reason.text


def test_an_op_with_a_field_that_the_lowering_does_not_know_is_refused(package) -> None:
    from dataclasses import make_dataclass

    from rdrr_format.errors import FormatError
    from rdrr_manifests.graph.ops import Norm

    graph = package.graph
    check_fields(graph.ops)
    known = LOWERINGS[Norm].fields
    newer = make_dataclass("Norm", [*known, "shifted"], frozen=True)
    with pytest.raises(FormatError, match=r"cannot compute the op Norm.*newer rdrr"):
        check_fields([*graph.ops, newer(*range(len(known) + 1))])
