"""Tests of records and phases: parameters, buffers, and independence from the launch."""

from __future__ import annotations

import re
from dataclasses import dataclass, make_dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import rdrr_runtime.phases
from rdrr_device.buffers import BufferSlice
from rdrr_runtime.phases.norms.norm import NormForm, normalize
from rdrr_runtime.phases.phase import Phase, Record, Work, choice
from rdrr_runtime.phases.rows.copy import Copy
from support.gpu import Bench, normal

FOLDER = Path(rdrr_runtime.phases.__file__).parent
SHADERS = sorted(path for path in FOLDER.glob("**/*.wgsl") if path.name != "launch.wgsl")
LAUNCHED = re.compile(
    r"@compute|@workgroup_size|@group|@binding|workgroup_id|num_workgroups|global_invocation_id"
)


X, Y = (BufferSlice(None, offset, 64) for offset in (0, 64))


def copy_phase(groups: int) -> Phase:
    return Phase(Copy(threads=64, words=4, groups=groups), {"x": X, "y": Y}, Work(groups), "t")


@dataclass(frozen=True)
class _Planes:
    high: int
    scales: int | None


@dataclass(frozen=True, kw_only=True)
class _Example(Record):
    shader = "example"

    kind: str = choice()
    width: int
    has_bias: bool
    n: tuple[int, ...]
    planes: tuple[_Planes, ...]


def test_the_fields_of_a_record_become_constants_and_template_variables():
    record = _Example(
        threads=64, kind="norm", width=8, has_bias=True, n=(3, 4), planes=(_Planes(7, None),)
    )
    assert record.constants == {"WIDTH": 8, "HAS_BIAS": True, "N0": 3, "N1": 4, "HIGH0": 7}
    assert record.choices == {"KIND": "norm"}


def test_phases_share_a_record_only_where_their_shader_is_the_same():
    first, same, typed, other = (copy_phase(groups).record for groups in (1, 1, True, 2))
    assert same is first
    assert other.constants["GROUPS"] == 2
    # True == 1, but a program says which of them it is.
    assert typed == first
    assert type(typed.constants["GROUPS"]) is bool
    assert type(copy_phase(1).record.constants["GROUPS"]) is int


@pytest.mark.parametrize(
    ("work", "rows", "calls"),
    [
        (Work(), 5, 1),
        (Work(7), 5, 7),
        (Work(7, 1), 5, 35),
        (Work(7, 4), 5, 14),
        (Work(7, 2, 3), 5, 14),
        (Work(7, 2, 9), 5, 21),
    ],
)
def test_work_gives_the_number_of_calls(work, rows, calls):
    assert work.count(rows) == calls


def test_work_names_the_passes_that_include_it():
    rows = range(1, 8)
    assert all(Work(7, 2).serves(row) for row in rows)
    assert [row for row in rows if Work(7, 2, above=3).serves(row)] == [4, 5, 6, 7]
    assert [row for row in rows if Work(7, 2, up_to=3).serves(row)] == [1, 2, 3]
    assert [row for row in rows if Work(7, 2, above=3, up_to=5).serves(row)] == [4, 5]


@pytest.mark.parametrize("rows", [2, 3, 4])
def test_a_dispatch_is_left_out_of_passes_that_do_not_include_it(bench, rows):
    """The one norm serves passes of up to 3 rows, the other those of more."""
    phases = [_norm(bench, 4), _norm(bench, 4)]
    for phase, limits in zip(phases, ({"up_to": 3}, {"above": 3}), strict=True):
        limited = replace(phase, work=replace(phase.work, **limits))
        bench.device.write(limited.buffers["x"], np.ones((4, 64), np.float32))
        bench.device.write(limited.buffers["weight"], np.ones(64, np.float32))
        before = bench.device.counters.dispatches
        bench.run([limited], rows)
        assert bench.device.counters.dispatches - before == limited.work.serves(rows)
        result = bench.download(limited.buffers["y"], 4, 64)
        assert np.isfinite(result[:rows]).all() == limited.work.serves(rows)
        assert np.isnan(result[rows:]).all()


@pytest.mark.parametrize("shader", SHADERS, ids=lambda path: path.stem)
def test_no_phase_depends_on_how_it_is_launched(shader):
    assert not LAUNCHED.search(shader.read_text(encoding="utf-8"))


def test_the_check_for_launch_code_finds_it_in_the_launcher():
    assert LAUNCHED.search((FOLDER / "launch.wgsl").read_text(encoding="utf-8"))


def _norm(bench: Bench, rows: int, width: int = 64) -> Phase:
    ctx = bench.context(rows)
    x, y = bench.poisoned(rows, width), bench.poisoned(rows, width)
    form = NormForm(width=width, eps=1e-6, weight=bench.poisoned(width))
    (one,) = normalize(ctx, x, y, form, label="norm")
    return one


def test_a_phase_is_described_as_json_values(bench):
    data = _norm(bench, 3).as_data()
    assert data["function"] == "rmsnorm.out"
    assert data["constants"]["WIDTH"] == 64
    assert data["work"] == {"items": 1, "rows": 1}
    assert [(buffer["name"], buffer["writes"]) for buffer in data["buffers"]] == [
        ("weight", False),
        ("x", False),
        ("y", True),
    ]


def test_an_unknown_buffer_is_refused() -> None:
    phase = copy_phase(1)
    for wrong in ({"x": X}, {"x": X, "z": Y}, {"x": X, "y": Y, "z": Y}):
        with pytest.raises(ValueError, match=r"copy binds \['x', 'y'\]"):
            replace(phase, buffers=wrong)


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [({"words": 4, "widht": 4}, "WIDHT"), ({"words": 4}, "GROUPS")],
    ids=["unknown", "missing"],
)
def test_a_record_whose_constants_are_not_those_of_its_shader_is_refused(fields, wrong) -> None:
    kinds = [(name, int) for name in fields]
    record_type = make_dataclass("Made", kinds, bases=(Record,), frozen=True, kw_only=True)
    record_type.shader = "rows/copy"
    with pytest.raises(ValueError, match=f"differ in {wrong}"):
        Phase(record_type(threads=64, **fields), {"x": X, "y": Y}, Work(1), "t")


def test_more_items_than_one_launch_dimension_allows_use_two_dimensions(bench, rng):
    """The launch has more workgroups than items; the surplus workgroups must do nothing."""
    vectors, width = 65_536 + 3, 4
    ctx = bench.context(1)
    values = normal(rng, vectors, width)
    x, y = bench.upload(values), bench.poisoned(vectors + 8, width)
    weight = bench.upload(normal(rng, width))
    form = NormForm(width=width, eps=1e-6, weight=weight, per_row=vectors)
    made = normalize(ctx, x, y, form, label="norm")
    assert made[0].work.counts(1)[1] == 2
    bench.run(made, 1)
    found = bench.download(y, vectors + 8, width)
    assert not (found[:vectors] != found[:vectors]).any()
    assert (found[vectors:] != found[vectors:]).all()
