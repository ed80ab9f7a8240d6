"""The decode pass's fused products against the arithmetic that they stand for, in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from rdrr_format.dtypes import DTYPES
from rdrr_format.layouts import Layout
from rdrr_runtime.phases.formats import FORMATS
from rdrr_runtime.phases.gpu_weight import GpuWeight
from rdrr_runtime.phases.matvec import (
    MAX_OUTPUT_GROUPS,
    Input,
    Output,
    leaves_int8,
    matvec,
    refusal,
)
from rdrr_runtime.phases.matvec_tuning import MatvecTuning
from rdrr_runtime.phases.packing import upload_weight
from support.gpu import Bench, normal, random_tensor, relative_error

TYPES = tuple(FORMATS)
INT8_TYPES = tuple(name for name, form in FORMATS.items() if not form.values)
ALIKE = ("Q4_0", "Q5_0", "Q5_1", "Q5_K")
"""Types of which only the codes and factors differ from those of others."""
INPUTS = ("plain", "norm", "combine")
OUTPUTS = ("store", "add", "gate", "best")
EPS = 1e-5


@dataclass
class Operands:
    """Random operands of a launch, on the device and as arrays."""

    bench: Bench
    rng: np.random.Generator
    layout: Layout = Layout.ROW

    def weight(self, name: str, n: int, k: int) -> tuple[GpuWeight, np.ndarray]:
        raw, values = random_tensor(self.rng, name, self.layout, (n, k))
        made = upload_weight(self.bench.arena, DTYPES[name], self.layout, (n, k), raw, "w")
        return made, values.astype(np.float64)

    def source(self, kind: str, k: int) -> tuple[Input, np.ndarray]:
        x, gain = normal(self.rng, k), normal(self.rng, k)
        upload = self.bench.upload
        if kind == "plain":
            return Input(upload(x)), x.astype(np.float64)
        if kind == "norm":
            root = np.sqrt(np.mean(x.astype(np.float64) ** 2) + EPS)
            return Input(upload(x), upload(gain), EPS, 1.0), x / root * (1.0 + gain)
        return self.combined(k, head_dim=32, splits=5, live=3)

    def combined(
        self, k: int, *, head_dim: int, splits: int, live: int
    ) -> tuple[Input, np.ndarray]:
        heads = k // head_dim
        parts = normal(self.rng, heads, splits, head_dim)
        stats = np.abs(normal(self.rng, heads, splits, 2)) + 0.1
        stats[:, live:] = (-3e38, 0.0)
        most = stats[:, :live, 0].max(1, keepdims=True)
        fade = np.exp(stats[:, :live, 0].astype(np.float64) - most)
        mass = (fade * stats[:, :live, 1]).sum(1)
        joined = (parts[:, :live] * fade[..., None]).sum(1) / mass[:, None]
        parts[:, live:] = np.nan  # what was there before must not matter
        upload = self.bench.upload
        source = Input(upload(parts), stats=upload(stats), splits=splits, head_dim=head_dim)
        return source, joined.reshape(-1)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def launch_error(
    bench: Bench,
    rng: np.random.Generator,
    name: str,
    kind: str,
    source: str,
    *,
    int8: bool,
    layout: Layout = Layout.ROW,
) -> float:
    """Largest relative error of one launch with random sizes."""
    operands, ctx = Operands(bench, rng, layout), bench.context(1)
    column = layout is Layout.COLUMN
    k, n = int(rng.choice([256, 384, 576])), 2 * int(rng.integers(3, 40))
    if column and kind == "gate":
        n = 32 * int(rng.integers(1, 12))
    one_matrix = kind != "gate" or rng.random() < 0.5
    made = [operands.weight(name, 2 * n if kind == "gate" and one_matrix else n, k)]
    if not one_matrix:
        made.append(operands.weight(name, n, k))
    if kind == "store":
        made += [operands.weight("Q6_K", n, k), operands.weight(name, 10, k)]
    weights = tuple(weight for weight, _ in made)
    operand, x = operands.source(source, k)
    products = np.concatenate([values for _, values in made]) @ x
    scale = np.float32(np.abs(products).max())
    before, bias = scale * normal(rng, len(products)), scale * normal(rng, len(products))
    gated = products[: len(products) // 2], products[len(products) // 2 :]
    expected = {
        "store": products + bias,
        "add": products + before,
        "gate": silu(gated[0]) * gated[1],
        "best": products,
    }[kind]
    partials = operand.partials(k)
    assert refusal(ctx, weights, int8=int8, partials=partials, gate=kind == "gate") is None
    y = bench.upload(before if kind == "add" else np.full(len(products), np.nan, np.float32))
    best = bench.poisoned(2 * MAX_OUTPUT_GROUPS) if kind == "best" else None
    output = Output(y, kind, bench.upload(bias) if kind == "store" else None, "silu", best)
    launches = matvec(ctx, weights, operand, output, int8=int8, label="case")
    bench.run(launches, 1)
    found = bench.download(y, len(expected))
    if best is not None:
        groups = launches[0].work.items
        values = bench.download(best, groups, 2)[:, 0]
        ids = bench.words(best)[1 : 2 * groups : 2]
        assert ids[int(np.argmax(values))] == int(np.argmax(found))
    return relative_error(found, expected)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, kind) for name in TYPES if name not in ALIKE for kind in OUTPUTS),
        *((name, "store") for name in ALIKE),
    ],
)
def test_a_product_equals_its_formula(
    bench: Bench, rng: np.random.Generator, name: str, kind: str
) -> None:
    source = str(rng.choice(INPUTS))
    print(source)
    assert launch_error(bench, rng, name, kind, source, int8=False) < 1e-4


@pytest.mark.parametrize("name", TYPES)
def test_it_does_so_without_optional_features(
    plain_bench: Bench, rng: np.random.Generator, name: str
) -> None:
    kind, source = str(rng.choice(OUTPUTS)), str(rng.choice(INPUTS))
    print(kind, source)
    assert launch_error(plain_bench, rng, name, kind, source, int8=False) < 1e-4


@pytest.mark.parametrize(
    ("name", "source"),
    [
        *((name, source) for name in sorted(set(INT8_TYPES) - set(ALIKE)) for source in INPUTS),
        *((name, "norm") for name in ALIKE),
    ],
)
def test_int8_activations_cost_about_a_hundredth(
    any_bench: Bench, rng: np.random.Generator, name: str, source: str
) -> None:
    kind = str(rng.choice(OUTPUTS))
    print(kind)
    found = launch_error(any_bench, rng, name, kind, source, int8=True)
    assert 1e-5 < found < 5e-2  # above the rounding of f32, so int8 was really used


@pytest.mark.parametrize("int8", [False, True], ids=["f32", "int8"])
@pytest.mark.parametrize("names", [("Q5_1", "Q4_K", "Q5_0"), ("Q4_0", "Q5_K", "Q8_0")], ids=str)
def test_matrices_of_different_types_share_a_launch(
    bench: Bench, rng: np.random.Generator, names: tuple[str, ...], int8: bool
) -> None:
    operands, k = Operands(bench, rng), 384
    made = [operands.weight(name, 12 + index, k) for index, name in enumerate(names)]
    source, x = operands.source("plain", k)
    expected = np.concatenate([values @ x for _, values in made])
    y = bench.poisoned(len(expected))
    weights = tuple(weight for weight, _ in made)
    bench.run(matvec(bench.context(1), weights, source, Output(y), int8=int8, label="t"), 1)
    error = relative_error(bench.download(y, len(expected)), expected)
    assert (1e-5 < error < 5e-2) if int8 else error < 1e-4


@pytest.mark.parametrize("int8", [False, True], ids=["f32", "int8"])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, kind) for name in ("Q4_K", "Q6_K", "Q8_0") for kind in OUTPUTS),
        *((name, "store") for name in ALIKE),
    ],
)
def test_blocks_along_the_outputs_cost_no_more(
    any_bench: Bench, rng: np.random.Generator, name: str, kind: str, int8: bool
) -> None:
    source = str(rng.choice(INPUTS))
    print(source)
    found = launch_error(any_bench, rng, name, kind, source, int8=int8, layout=Layout.COLUMN)
    assert (1e-5 < found < 5e-2) if int8 else found < 1e-4


def test_a_gate_can_hand_its_outputs_on_in_int8(any_bench: Bench, rng: np.random.Generator) -> None:
    operands, ctx = Operands(any_bench, rng), any_bench.context(1)
    hidden, inner, outputs = 256, 512, 96
    assert leaves_int8(ctx, inner)
    assert not leaves_int8(ctx, inner + 8)
    gate, gate_values = operands.weight("Q4_K", inner, hidden)
    up, up_values = operands.weight("Q4_K", inner, hidden)
    down, down_values = operands.weight("Q6_K", outputs, inner)
    operand, x = operands.source("norm", hidden)
    expected = down_values @ (silu(gate_values @ x) * (up_values @ x))
    words, scales, y = (any_bench.poisoned(size) for size in (inner, inner, outputs))
    handed = Output(words, "gate", activation="silu", scales=scales)
    taken = Input(words, scales=scales)
    launches = [
        *matvec(ctx, (gate, up), operand, handed, int8=True, label="gate"),
        *matvec(ctx, (down,), taken, Output(y), int8=True, label="down"),
    ]
    any_bench.run(launches, 1)
    assert relative_error(any_bench.download(y, outputs), expected) < 5e-2


def test_a_product_says_what_stands_in_its_way(bench: Bench, rng: np.random.Generator) -> None:
    operands, ctx = Operands(bench, rng), bench.context(1)
    weight, _ = operands.weight("Q4_K", 8, 256)
    half, _ = operands.weight("F16", 8, 256)
    columns = Operands(bench, rng, Layout.COLUMN)
    column, _ = columns.weight("Q4_K", 8, 256)
    other, _ = columns.weight("Q8_0", 8, 256)
    assert refusal(ctx, (weight,), int8=True) is None
    assert refusal(ctx, (half,), int8=False) is None
    assert refusal(ctx, (column,), int8=True) is None

    def refused(*weights: GpuWeight, ctx=ctx, **wanted) -> str:
        return refusal(ctx, weights, int8=True, **wanted) or "not refused"

    assert refused(half) == "F16 has no codes that could be multiplied in int8"
    assert "others column-major" in refused(weight, column)
    assert "8 outputs, no multiple of the 32" in refused(column, column, gate=True)
    assert "Q4_K and Q8_0" in refused(column, other, gate=True)
    assert "the pass has 2" in refused(weight, ctx=bench.context(2))
    small = replace(ctx, workgroup_storage=1024)
    assert "exceeds the device's 1024 bytes of workgroup memory" in refused(weight, ctx=small)
    assert "exceeds the device's" in refused(weight, partials=1 << 16)
    assert refused(replace(weight, k=254)) == "K is 254, no multiple of 4"


@pytest.mark.parametrize("layout", [Layout.ROW, Layout.COLUMN])
@pytest.mark.parametrize("team", [4, 8, 16])
def test_teams_of_any_width_give_the_same_sums(
    any_bench: Bench, rng: np.random.Generator, layout: Layout, team: int, monkeypatch
) -> None:
    """Narrower than a subgroup, as wide, and wider: by shuffles, by one sum, through memory."""
    monkeypatch.setattr("rdrr_runtime.phases.matvec_tuning.SOFTWARE", MatvecTuning(64, team))
    operands, ctx = Operands(any_bench, rng, layout), any_bench.context(1)
    ctx = replace(ctx, software=True)
    weight, values = operands.weight("Q4_K", 70, 576)
    source, x = operands.source("norm", 576)
    y = any_bench.poisoned(70)
    any_bench.run(matvec(ctx, (weight,), source, Output(y), label="t"), 1)
    assert relative_error(any_bench.download(y, 70), values @ x) < 1e-4
