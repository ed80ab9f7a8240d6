"""A killed conversion can be resumed, and gives the same bytes as one without interruption."""

from __future__ import annotations

import json
import shutil
import sys

import numpy as np
import pytest
from rdrr_converter import convert as convert_module
from rdrr_converter.convert import convert
from rdrr_converter.engines import WorkerError
from rdrr_format.errors import ConversionError, ShardError, StoreError, UsageError
from rdrr_manifests.package import validate
from support.killing import Converters
from support.safetensor_files import llama_tensors, write_llama, write_safetensors

SHARD = 2**16
SIZES = {"num_hidden_layers": 1}  # which fill several shards
OPTIONS = (
    {"quantize": "q8_0"},
    {"quantize": "q8_0", "q4k_layout": "column", "fuse_gate_up": True},
    {"quantize": "q4_k_m", "transpose_weights": True, "compress": "zstd:1"},
)


@pytest.fixture
def folder(tmp_path, rng):
    return write_llama(tmp_path / "source", llama_tensors(rng, **SIZES), **SIZES)


@pytest.fixture
def packages(tmp_path):
    """The folder for packages, with nothing else in it."""
    (tmp_path / "packages").mkdir()
    return tmp_path / "packages"


@pytest.fixture(scope="module")
def converters():
    with Converters() as running:
        yield running


class Killed(BaseException):
    """Simulates a kill at a chosen moment; with `resume` it leaves the same files."""


def cut_short(stage, fraction=0.0):
    """Return a progress callback that ends the conversion in the middle of a stage."""

    def end(event):
        if event.stage == stage and event.done >= fraction * event.total:
            raise Killed

    return end


def interrupted(folder, out, stage="verify", fraction=0.0, **options):
    with pytest.raises(Killed):
        convert(
            folder,
            out,
            shard_size=SHARD,
            resume=True,
            progress=cut_short(stage, fraction),
            **options,
        )


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def listing(folder):
    return sorted(path.name for path in folder.iterdir())


def go_on(converters, folder, out, options):
    """Resume, unless the kill came after the final rename and the package is already complete."""
    work = out.with_name(f".{out.name}.partial")
    complete = out.exists() and not (work / "journal.jsonl").exists()
    outcome = converters.convert(folder, out, resume=True, **options)
    assert not outcome.killed
    if complete and not options.get("overwrite"):
        assert "exists already" in outcome.error
    else:
        assert outcome.error is None
    return outcome.reused


@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=pytest.mark.thorough)])
def test_a_conversion_killed_at_any_moment_resumes_to_the_same_bytes(
    folder, packages, tmp_path, converters, rng, kills
):
    """Kills at random times and before random file operations, some of them twice."""
    reused = []
    whole = {}
    for number in range(kills):
        choice = number % len(OPTIONS)
        options = {**OPTIONS[choice], "shard_size": SHARD, "workers": int(rng.integers(1, 4))}
        if choice not in whole:
            whole[choice] = converters.convert(folder, tmp_path / f"whole-{choice}", **options)
            assert whole[choice].error is None
        out = packages / f"out-{number}"
        for _ in range(rng.integers(1, 3)):
            moment = {"kill_after": float(rng.uniform(0, 1.1 * whole[choice].seconds))}
            if number % 2:
                moment = {"kill_at": int(rng.integers(1, whole[choice].events + 1))}
            print(number, options, moment)
            converters.convert(folder, out, resume=True, **options, **moment)
        reused.append(go_on(converters, folder, out, options))
        assert contents(out) == contents(tmp_path / f"whole-{choice}")
        assert [name for name in listing(packages) if name.startswith(".")] == []
    assert max(reused) > 0 or kills < 40


@pytest.mark.parametrize(
    ("earliest", "latest"), [(11, 7), pytest.param(14, 0, marks=pytest.mark.thorough)]
)
def test_a_kill_during_the_final_renames_loses_no_package(
    folder, packages, tmp_path, converters, earliest, latest
):
    """Around the two renames, the old or the new package exists or is restored by the next run."""
    options = {"quantize": "f16", "overwrite": True}
    out = packages / "out"
    convert(folder, out, quantize="q8_0")
    old = contents(out)
    shutil.copytree(out, tmp_path / "old")
    first = converters.convert(folder, out, **options)
    new = contents(out)
    assert first.error is None
    states = set()
    for step in range(first.events - earliest, first.events - latest + 1):
        shutil.rmtree(out)
        shutil.copytree(tmp_path / "old", out)
        converters.convert(folder, out, kill_at=step, resume=True, **options)
        states.add("none" if not out.exists() else "old" if contents(out) == old else "new")
        go_on(converters, folder, out, options)
        assert contents(out) == new
        assert [name for name in listing(packages) if name != "out"] == []
    assert states == {"old", "none", "new"}


def test_finished_shards_are_not_encoded_again(folder, packages, monkeypatch):
    interrupted(folder, packages / "out", quantize="q8_0")
    calls = []
    encode = convert_module.write_shards.__globals__["encode_chunks"]

    def counted(work, engine):
        listed = list(work)
        calls.extend(listed)
        return encode(listed, engine)

    monkeypatch.setitem(convert_module.write_shards.__globals__, "encode_chunks", counted)
    result = convert(folder, packages / "out", quantize="q8_0", shard_size=SHARD, resume=True)
    assert result.reused_shards == len(result.plan.shard_sizes) > 5
    assert calls == []
    convert(folder, packages / "other", quantize="q8_0", shard_size=SHARD)
    assert calls
    assert contents(packages / "out") == contents(packages / "other")


def test_the_number_of_workers_may_change_on_resume(folder, packages):
    interrupted(folder, packages / "out", "write", 0.5, workers=3)
    result = convert(folder, packages / "out", shard_size=SHARD, resume=True, workers=1)
    assert result.reused_shards > 0
    convert(folder, packages / "whole", shard_size=SHARD, workers=2)
    assert contents(packages / "out") == contents(packages / "whole")


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "journal torn", "journal garbage"])
def test_only_intact_shards_are_reused(folder, packages, damage):
    interrupted(folder, packages / "out")
    work = packages / ".out.partial"
    shard = work / "package/shard_00003.bin"
    journal = work / "journal.jsonl"
    if damage == "remove":
        shard.unlink()
    elif damage == "journal torn":
        lines = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(b"".join(lines[:4]) + lines[4][:-5])
    elif damage == "journal garbage":
        lines = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(b"".join([*lines[:4], b"\xff\x00[]\n", *lines[4:]]))
    else:
        data = bytearray(shard.read_bytes())
        data[100] ^= 1
        shard.write_bytes(data if damage == "flip" else data[:-1])
    result = convert(folder, packages / "out", shard_size=SHARD, resume=True)
    assert result.reused_shards == 3
    convert(folder, packages / "whole", shard_size=SHARD)
    assert contents(packages / "out") == contents(packages / "whole")


def test_other_options_are_refused_by_name_and_nothing_is_lost(folder, packages):
    interrupted(folder, packages / "out", quantize="q8_0")
    before = contents(packages / ".out.partial/package")
    with pytest.raises(StoreError, match="other options") as caught:
        convert(folder, packages / "out", quantize="f16", shard_size=SHARD, resume=True)
    assert (caught.value.expected, caught.value.found) == ("quantize q8_0", "quantize f16")
    assert "`resume`" in caught.value.line()
    assert contents(packages / ".out.partial/package") == before
    convert(folder, packages / "out", quantize="q8_0", shard_size=SHARD, resume=True)
    assert listing(packages) == ["out"]


@pytest.mark.parametrize("change", ["weights", "time", "config.json", "tokenizer.json"])
def test_a_source_that_changed_is_refused(folder, packages, rng, change):
    interrupted(folder, packages / "out")
    if change == "weights":
        write_llama(folder, llama_tensors(rng, **SIZES), **SIZES)
    elif change == "time":
        (folder / "model.safetensors").touch()
    else:
        content = json.loads((folder / change).read_text(encoding="utf-8"))
        note = {"_name_or_path": "changed"} if change == "config.json" else {"truncation": None}
        (folder / change).write_text(json.dumps({**content, **note}), encoding="utf-8")
    with pytest.raises(StoreError, match="unfinished conversion with other"):
        convert(folder, packages / "out", shard_size=SHARD, resume=True)
    convert(folder, packages / "out", shard_size=SHARD)
    assert listing(packages) == ["out"]
    assert validate(packages / "out", deep=True).errors == ()


def test_an_adapter_is_identified_by_its_files_and_not_by_its_path(folder, packages, tmp_path, rng):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(
        '{"peft_type": "LORA", "r": 2, "lora_alpha": 4}', encoding="utf-8"
    )
    module = "base_model.model.model.layers.0.mlp.down_proj"
    parts = {"lora_A": (2, 512), "lora_B": (256, 2)}
    tensors = {
        f"{module}.{name}.weight": rng.standard_normal(shape, np.float32)
        for name, shape in parts.items()
    }
    write_safetensors(adapter / "adapter_model.safetensors", tensors)
    interrupted(folder, packages / "out", lora=adapter)
    shutil.copytree(adapter, tmp_path / "moved")
    (adapter / "adapter_model.safetensors").touch()
    with pytest.raises(StoreError, match="other options"):
        convert(folder, packages / "out", shard_size=SHARD, resume=True, lora=adapter)
    moved = tmp_path / "moved"
    assert convert(
        folder, packages / "out", shard_size=SHARD, resume=True, lora=moved
    ).reused_shards


def test_a_remote_source_can_be_resumed_with_a_new_local_copy(folder, packages, rng):
    import fsspec

    url = f"memory://resume-{rng.integers(1 << 60)}/model"
    fsspec.filesystem("memory").put(str(folder), url, recursive=True)
    interrupted(url, packages / "out")
    result = convert(url, packages / "out", shard_size=SHARD, resume=True)
    assert result.reused_shards == len(result.plan.shard_sizes)
    convert(folder, packages / "whole", shard_size=SHARD, model_id=result.model_id)
    assert (
        contents(packages / "out")["shard_00000.bin"]
        == contents(packages / "whole")["shard_00000.bin"]
    )


def test_without_resume_the_same_options_continue(folder, packages):
    options = {"quantize": "q8_0", "shard_size": SHARD}
    with pytest.raises(Killed) as stop:
        convert(folder, packages / "out", progress=cut_short("write", 0.7), **options)
    (told,) = stop.value.__notes__
    assert "finished shard" in told
    assert str(packages / ".out.partial") in told
    result = convert(folder, packages / "out", **options)
    assert 0 < result.reused_shards < len(result.plan.shard_sizes)
    assert listing(packages) == ["out"]
    convert(folder, packages / "whole", **options)
    assert contents(packages / "out") == contents(packages / "whole")


def test_without_resume_other_options_start_again_and_remove_leftovers(folder, packages):
    interrupted(folder, packages / "out", quantize="q8_0")
    assert listing(packages) == [".out.partial"]
    result = convert(folder, packages / "out", quantize="f16", shard_size=SHARD)
    assert result.reused_shards == 0
    assert listing(packages) == ["out"]


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (StoreError("the disk is full"), True),
        (WorkerError("a worker was lost"), True),
        (KeyboardInterrupt(), True),
        (ValueError("a caller's own"), True),
        (ConversionError("what was written to disk differs from the source"), False),
        (ShardError("wrong hash"), False),
    ],
)
def test_finished_shards_are_kept_if_a_retry_can_succeed(folder, packages, error, kept):
    def fail(event):
        if event.stage == "verify":
            raise error

    for resume in (False, True):
        with pytest.raises(type(error)):
            convert(folder, packages / "out", shard_size=SHARD, resume=resume, progress=fail)
        is_kept = kept and (resume or isinstance(error, (KeyboardInterrupt, ValueError)))
        assert listing(packages) == ([".out.partial"] if is_kept else [])
    assert (
        convert(folder, packages / "out", shard_size=SHARD, resume=True).reused_shards > 0
    ) == kept


def test_an_unreachable_cluster_keeps_the_finished_shards(folder, packages, monkeypatch):
    interrupted(folder, packages / "out")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match="Ray"):
        convert(folder, packages / "out", shard_size=SHARD, resume=True, engine="ray")
    assert convert(folder, packages / "out", shard_size=SHARD, resume=True).reused_shards > 0


def test_resume_without_leftovers_converts_normally(folder, packages):
    assert convert(folder, packages / "out", resume=True).reused_shards == 0
    with pytest.raises(StoreError, match="exists already"):
        convert(folder, packages / "out", resume=True)
    assert listing(packages) == ["out"]


@pytest.mark.cover
@pytest.mark.parametrize("resume", [True, False])
def test_a_concurrent_conversion_to_the_same_destination_is_refused_without_harm(
    folder, packages, resume
):
    refused = []

    def try_as_well(event):
        if event.stage == "write" and not refused:
            with pytest.raises(StoreError, match="another conversion") as caught:
                convert(folder, packages / "out", resume=resume)
            refused.append(caught.value)

    convert(folder, packages / "out", shard_size=SHARD, progress=try_as_well)
    assert refused
    convert(folder, packages / "whole", shard_size=SHARD)
    assert contents(packages / "out") == contents(packages / "whole")
    assert listing(packages) == ["out", "whole"]
