"""Every manifest, however broken, gives a list of faults or a graph, never a traceback."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fuzz.json_edits import paths_in
from hypothesis import given
from hypothesis import strategies as st
from rdrr_format.errors import ManifestError, RdrrError
from rdrr_manifests.faults import of_severity
from rdrr_manifests.graph import derive_vision
from rdrr_manifests.package import open_package
from rdrr_manifests.reading import read_manifest
from rdrr_manifests.rules import examine
from rdrr_manifests.validation import validate
from support.examples import examples
from support.manifests import valid_manifest, write_package
from support.seeds import generator_of
from support.towers import manifest_with_tower

DATA = Path(__file__).parents[1] / "data" / "manifests"
BASES = (
    valid_manifest(layers=1),
    json.loads((DATA / "tiny-model-dec2025" / "manifest.json").read_text(encoding="utf-8")),
    json.loads((DATA / "mini-model-jan2026" / "manifest.json").read_text(encoding="utf-8")),
    json.loads((DATA / "minimal-current.json").read_text(encoding="utf-8")),
    manifest_with_tower(),
)

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**19), 10**19),
    st.sampled_from([0, 1, -1, 2**31, 2**63, 10**18]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(["row", "column", "flat", "Q4_K_M", "W4A16", "llama3", "../x", "\ud800"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=6,
)


PLACES = tuple(paths_in(base) for base in BASES)


@st.composite
def mutated(draw: st.DrawFn, *bases: int) -> dict[str, Any]:
    """Generate a manifest of `BASES` with a few values overwritten, removed or duplicated."""
    which = draw(st.sampled_from(bases or range(len(BASES))))
    manifest = copy.deepcopy(BASES[which])
    for path in draw(st.lists(st.sampled_from(PLACES[which]), min_size=1, max_size=4)):
        *parents, last = path
        target: Any = manifest
        try:
            for step in parents:
                target = target[step]
            if draw(st.booleans()):
                target[last] = draw(VALUES)
            else:
                del target[last]
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change removed this path
    return manifest


@examples(150)
@given(mutated())
def test_a_mutated_manifest_can_be_examined(manifest: dict[str, Any]) -> None:
    try:
        raw = read_manifest(json.dumps(manifest).encode(), "fuzzed")
    except ManifestError:
        return  # too little is left for a manifest
    examination = examine(raw.data)
    assert all(fault.line().isprintable() for fault in examination.faults)
    if examination.manifest is not None:
        # A valid manifest must be usable: sizes agree, and there is a graph or a reason for none.
        for tensor in examination.manifest.tensors.values():
            assert sum(run.size for run in tensor.byte_spans()) == tensor.size
        _ = examination.graph
        if not of_severity(examination.faults, "error"):
            derive_vision(examination.manifest)
        json.loads(examination.manifest.to_json())


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a valid package, whose manifest is the first of `BASES`, and return its folder."""
    folder = tmp_path_factory.mktemp("package")
    write_package(folder, generator_of(request), copy.deepcopy(BASES[0]))
    assert validate(folder, deep=True).ok()
    return folder


@examples(150)
@given(mutated(0))
def test_a_package_with_a_mutated_manifest_can_be_validated(
    folder: Path, manifest: dict[str, Any]
) -> None:
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    report = validate(folder, deep=True)
    assert all(fault.line().isprintable() for fault in report.faults)
    with suppress(RdrrError), open_package(folder) as package:
        for name in package.manifest.tensors:
            package.read(name)


@pytest.mark.parametrize(("key", "value"), [("shard", -1), ("offset", -256), ("offset", -1)])
def test_a_negative_shard_or_offset_is_a_fault(folder: Path, key: str, value: int) -> None:
    manifest = copy.deepcopy(BASES[0])
    manifest["tensors"]["model.norm.weight"][key] = value
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    assert "tensor-bounds" in {fault.rule for fault in validate(folder, deep=True).faults}


@examples(150)
@given(st.binary(max_size=64) | st.text(max_size=64).map(lambda text: text.encode("utf-8")))
def test_arbitrary_bytes_are_refused_with_one_line(raw: bytes) -> None:
    with pytest.raises(ManifestError) as caught:
        read_manifest(raw, "fuzzed")
    assert str(caught.value).isprintable()


@examples(150)
@given(st.dictionaries(st.sampled_from([*valid_manifest(), "config", "groups"]), VALUES))
def test_any_object_with_the_keys_of_a_manifest_can_be_examined(data: dict[str, Any]) -> None:
    examination = examine(data)
    assert examination.faults


def test_millions_of_layers_take_no_time() -> None:
    manifest = valid_manifest()
    manifest["architecture"]["numLayers"] = 10**15
    rules = {fault.rule for fault in examine(manifest).faults}
    assert rules == {"layer-count", "graph-support"}


def test_huge_numbers_are_reported_and_not_used_in_computations() -> None:
    manifest = valid_manifest()
    entry = manifest["tensors"]["model.norm.weight"]
    entry["shape"] = [10**19] * 8
    lines = [fault.line() for fault in examine(manifest).faults]
    assert any("tensor-size" in line for line in lines)
