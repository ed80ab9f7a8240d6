"""Packages are the same, byte for byte, from one version of the converter to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest
from rdrr_converter.options import PackageOptions
from rdrr_converter.recipes import DEFAULT_RECIPE, PROFILES, RECIPES, TAILS
from rdrr_format.dtypes import QUALITIES
from rdrr_format.integrity import ALGORITHMS
from rdrr_format.layouts import Layout
from support.golden_checkpoints import digest_of
from support.golden_packages import CASES, Case, convert_case, recorded_digests, write_checkpoints

DEFAULTS = {field.name: field.default for field in fields(PackageOptions)}
CHANGED_ON_PURPOSE = "`python -m support.golden_packages` records digests that are meant to change"


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return write_checkpoints(tmp_path_factory.mktemp("checkpoints"))


NIGHTLY = {
    "gemma3 k_tail=ggml",
    "gemma3 k_tail=pad",
    "llama compress=zstd:19",
    "llama imatrix=sensitivity bits_per_weight=7 transpose_weights=True",
    "llama q4k_layout=row fuse_gate_up=False",
    "llama quantize=q4_k_s",
    "llama quantize=q5_k_s",
    "llama-192 k_tail=ggml transpose_weights=True",
    "llama-192 k_tail=pad transpose_weights=True",
    "small-llama",
    "small-llama transpose_weights=True fuse_gate_up=True",
}
"""Cases whose options other cases have, in other combinations or with other models."""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=pytest.mark.thorough if case.name in NIGHTLY else ())
        for case in CASES
    ],
)
def test_a_package_has_its_recorded_digest(tmp_path, checkpoints, case):
    digest = convert_case(case, checkpoints[case.checkpoint], tmp_path / "made")
    assert digest == recorded_digests()[case.name], CHANGED_ON_PURPOSE


def test_exactly_the_cases_have_recorded_digests():
    assert list(recorded_digests()) == [case.name for case in CASES]


def test_one_changed_option_gives_another_digest(tmp_path, checkpoints):
    case = Case("llama", {"quantize": "q4_k_m", "align": 512})
    digest = convert_case(case, checkpoints["llama"], tmp_path / "made")
    assert digest not in recorded_digests().values()


@pytest.mark.parametrize("change", ["content", "name"])
def test_one_changed_file_gives_another_digest(tmp_path, change):
    (tmp_path / "shard").write_bytes(b"abc")
    before = digest_of(tmp_path)
    assert digest_of(tmp_path) == before
    if change == "content":
        (tmp_path / "shard").write_bytes(b"abd")
    else:
        (tmp_path / "shard").rename(tmp_path / "other")
    assert digest_of(tmp_path) != before


def test_different_conversions_give_different_packages():
    """Two sets of options give the same package only if they differ by stated defaults."""
    defaults = {field.name: field.default for field in fields(PackageOptions)} | {
        "q4k_layout": "row",
        "quantize": DEFAULT_RECIPE,
    }
    digests = recorded_digests()
    by_meaning: dict[tuple[object, ...], set[str]] = {}
    for case in CASES:
        stated = {key: value for key, value in case.options.items() if value != defaults[key]}
        meaning = (case.checkpoint, repr(sorted(stated.items())))
        by_meaning.setdefault(meaning, set()).add(digests[case.name])
    assert all(len(found) == 1 for found in by_meaning.values())
    assert len(set(digests.values())) == len(by_meaning)


SHOWN_ELSEWHERE = {"mmproj", "plan", "text"}
"""Options that name files: see test_mmproj.py and test_allocation.py."""


@pytest.mark.parametrize("name", sorted({f.name for f in fields(PackageOptions)} - SHOWN_ELSEWHERE))
def test_every_option_that_decides_bytes_has_a_case(name):
    assert any(name in case.options for case in CASES)


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("quantize", tuple(RECIPES)),
        ("q4k_layout", tuple(layout.value for layout in Layout)),
        ("k_tail", TAILS),
        ("profile", tuple(PROFILES)),
        ("quality", QUALITIES),
        ("hash_algorithm", tuple(ALGORITHMS)),
    ],
)
def test_every_value_of_a_choice_has_a_case(option, values):
    assert {case.options.get(option, DEFAULTS[option]) for case in CASES} >= set(values)
