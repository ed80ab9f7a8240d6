"""PyTorch checkpoints give the same tensors as safetensors, and their code is never run."""

from __future__ import annotations

import json
import pickle
import re

import numpy as np
import pytest
import torch
from rdrr_converter.checkpoint.magnitudes import measure
from rdrr_converter.convert import convert
from rdrr_converter.sources import open_source
from rdrr_format.errors import SourceError
from support.checkpoints import write_tokenizer
from support.safetensor_files import LLAMA_CONFIG, llama_tensors, write_llama

SINGLE, INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


def to_torch(stored):
    """A stored array of `support.safetensor_files` (uint16 means BF16) as a tensor."""
    if stored.dtype == np.uint16:
        return torch.from_numpy(stored.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(stored.copy())


def write_torch(folder, tensors, *, shards=1):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LLAMA_CONFIG), encoding="utf-8")
    write_tokenizer(folder)
    state = {name: to_torch(stored) for name, stored in tensors.items()}
    if shards == 1:
        torch.save(state, folder / SINGLE)
        return folder
    weight_map = {}
    for index in range(shards):
        file = f"pytorch_model-{index + 1:05d}-of-{shards:05d}.bin"
        part = dict(list(state.items())[index::shards])
        torch.save(part, folder / file)
        weight_map.update(dict.fromkeys(part, file))
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    return folder


def shards_of(folder):
    return [path.read_bytes() for path in sorted(folder.glob("shard_*.bin"))]


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("shards", [1, 3])
def test_the_package_equals_that_of_safetensors(tmp_path, rng, dtype, shards):
    tensors = llama_tensors(rng, dtype)
    convert(write_torch(tmp_path / "t", tensors, shards=shards), tmp_path / "a", quantize="q8_0")
    convert(write_llama(tmp_path / "s", tensors), tmp_path / "b", quantize="q8_0")
    assert shards_of(tmp_path / "a") == shards_of(tmp_path / "b")
    ours, theirs = (
        json.loads((tmp_path / name / "manifest.json").read_text(encoding="utf-8")) for name in "ab"
    )
    for key in ("architecture", "inference"):
        assert ours[key] == theirs[key]
    # Converters order tensors by architecture, not by file, so shards agree down to the hash.
    assert [shard["hash"] for shard in ours["shards"]] == [
        shard["hash"] for shard in theirs["shards"]
    ]
    assert ours["metadata"]["sourceFormat"] == "pytorch"


@pytest.mark.parametrize("value", [np.nan, 1.0])
def test_a_value_that_is_not_finite_is_named_with_the_path_of_its_shard(tmp_path, rng, value):
    tensors = llama_tensors(rng, "F32")
    name = list(tensors)[1]
    tensors[name].flat[0] = value
    folder = write_torch(tmp_path / "t", tensors, shards=2)
    if np.isfinite(value):
        convert(folder, tmp_path / "out")
        return
    where = re.escape(f"{folder / 'pytorch_model-00002-of-00002.bin'}, tensor {name}: ")
    with pytest.raises(SourceError, match=f"^{where}the weights are not finite"):
        convert(folder, tmp_path / "out")


@pytest.mark.parametrize("name", ["weights.pt", "weights.pth", "weights.bin"])
@pytest.mark.parametrize("wrap", [None, "state_dict", "model"])
def test_a_single_file_is_read_with_the_configuration_beside_it(tmp_path, rng, name, wrap):
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    values = torch.from_numpy(rng.standard_normal((3, 4)).astype(np.float32))
    state = {"w": values, "step": 3}
    torch.save({wrap: state, "epoch": 1} if wrap else state, tmp_path / name)
    source = open_source(tmp_path / name)
    assert list(source.tensors) == ["w"]
    np.testing.assert_array_equal(source.tensors["w"].read(), values.numpy())
    (tmp_path / "config.json").unlink()
    with pytest.raises(SourceError, match=r"config\.json"):
        open_source(tmp_path / name)


def test_views_and_shared_storage_are_read_correctly(tmp_path, rng):
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    values = torch.from_numpy(rng.standard_normal((6, 8)).astype(np.float32))
    views = {"all": values, "transposed": values.T, "part": values[1:5:2, 2:7], "row": values[3]}
    halves = {f"{name}16": view.to(torch.bfloat16) for name, view in views.items()}
    torch.save({**views, **halves}, tmp_path / "w.pt")
    source = open_source(tmp_path / "w.pt")
    for name, view in {**views, **halves}.items():
        tensor = source.tensors[name]
        assert tensor.shape == tuple(view.shape)
        wanted = view.float().numpy()
        np.testing.assert_array_equal(tensor.read().reshape(tensor.shape), wanted)
        assert measure(tensor).largest == np.abs(wanted).max()


class Runs:
    """A hostile pickle, which calls a function when it is loaded."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return open, (str(self.target), "w")


def test_code_in_a_checkpoint_is_refused_and_not_run(tmp_path, rng):
    folder = write_torch(tmp_path / "m", llama_tensors(rng))
    assert open_source(folder).kind == "pytorch"
    target = tmp_path / "ran"
    torch.save({"w": torch.zeros(2), "x": Runs(target)}, folder / SINGLE)
    with pytest.raises(SourceError, match=r"code in a checkpoint is never run.*open.*safetensors"):
        open_source(folder)
    assert not target.exists()
    # Control: without `weights_only` the same file does run its code.
    torch.load(folder / SINGLE, weights_only=False)
    assert target.exists()


def test_a_bare_pickle_is_refused_and_not_run(tmp_path):
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    target = tmp_path / "ran"
    (tmp_path / SINGLE).write_bytes(pickle.dumps(Runs(target)))
    with pytest.raises(SourceError, match=r"not a file written by torch\.save"):
        open_source(tmp_path)
    assert not target.exists()


def test_a_file_truncated_anywhere_is_refused(tmp_path, rng):
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    path = tmp_path / SINGLE
    torch.save({"w": torch.from_numpy(rng.standard_normal((40, 50)))}, path)
    whole = path.read_bytes()
    for length in [0, 3, 40, len(whole) // 2, len(whole) - 100, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(
            SourceError, match=r"damaged or truncated|not a file written by torch\.save"
        ):
            open_source(tmp_path)
    path.write_bytes(whole)
    assert list(open_source(tmp_path).tensors) == ["w"]


@pytest.mark.parametrize("content", [[1, 2], {"w": 3}, {}, "text"])
def test_a_file_without_weights_is_refused(tmp_path, content):
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    torch.save(content, tmp_path / SINGLE)
    with pytest.raises(SourceError, match="holds no weights"):
        open_source(tmp_path)


@pytest.mark.parametrize(
    ("tensor", "found"),
    [
        (torch.zeros(2, 2, dtype=torch.float64), "float64"),
        (torch.zeros(2, 2, dtype=torch.int8), "I8"),
        (torch.zeros(2, 2).to_sparse(), "sparse_coo"),
    ],
)
def test_weights_of_another_kind_are_refused_when_read(tmp_path, tensor, found):
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    torch.save({"w": tensor, "v": torch.ones(2)}, tmp_path / SINGLE)
    tensors = open_source(tmp_path).tensors
    assert tensors["v"].read().tolist() == [[1.0, 1.0]]
    with pytest.raises(SourceError, match=f"tensor w.*expected F32, F16, BF16, found {found}"):
        tensors["w"].read()


def test_a_missing_shard_is_named(tmp_path, rng):
    folder = write_torch(tmp_path / "m", llama_tensors(rng), shards=2)
    assert len(open_source(folder).tensors) > 0
    (folder / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(SourceError, match=r"shard is missing.*pytorch_model-00002-of-00002\.bin"):
        open_source(folder)


def test_safetensors_are_preferred_if_both_exist(tmp_path, rng):
    tensors = llama_tensors(rng)
    folder = write_torch(tmp_path / "m", tensors)
    assert open_source(folder).kind == "pytorch"
    write_llama(folder, tensors)
    assert open_source(folder).kind == "safetensors"
