"""Files of torch.save are read without torch; none makes more of its bytes than it may."""

from __future__ import annotations

import pickle
from collections import OrderedDict

import numpy as np
import pytest
import torch
from rdrr_converter.sources import _inert_pickle, open_source
from rdrr_converter.sources._inert_pickle import read_pickle
from rdrr_format.errors import SourceError
from support.torch_archives import Called, Named, Stored, archive, tensor, write_checkpoint

FOUR = np.arange(4, dtype="<f4").tobytes()


def read(folder, value, storages=None, **more):
    content = archive(value, {"0": FOUR} if storages is None else storages, **more)
    return open_source(write_checkpoint(folder / "m", content)).tensors


def test_a_pickle_assembled_by_hand_is_read_as_torch_reads_it(tmp_path):
    values = {"w": tensor("0", (2, 2), (1, 2)), "v": tensor("0", (2,), (1,), offset=2)}
    tensors = read(tmp_path, values)
    theirs = torch.load(tmp_path / "m" / "pytorch_model.bin", weights_only=True)
    assert tensors.keys() == theirs.keys()
    for name, one in theirs.items():
        np.testing.assert_array_equal(tensors[name].read().reshape(one.shape), one.numpy())


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_what_torch_saves_is_read_whatever_wraps_it(tmp_path, rng, protocol):
    values = torch.from_numpy(rng.standard_normal((3, 5)).astype(np.float32))
    noted = values.clone()
    noted.note = "of the owner"
    layer = torch.nn.Linear(5, 3)
    state = OrderedDict(layer.state_dict(), p=torch.nn.Parameter(values), noted=noted)
    state |= {"scalar": torch.tensor(3.0), "empty": torch.zeros(0, 4), "step": 3}
    state |= {"f8": values.to(torch.float8_e4m3fn), "half": values.to(torch.bfloat16).T}
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    torch.save(state, tmp_path / "pytorch_model.bin", pickle_protocol=protocol)
    tensors = open_source(tmp_path).tensors
    assert set(tensors) == set(state) - {"step"}
    for name in set(tensors) - {"f8"}:
        wanted = state[name].detach().float().numpy()
        np.testing.assert_array_equal(tensors[name].read().reshape(wanted.shape), wanted)
    assert tensors["f8"].dtype == "F8_E4M3"
    stored = state["f8"].view(torch.uint8).numpy()
    np.testing.assert_array_equal(tensors["f8"].native(), stored)
    again = pickle.loads(pickle.dumps(tensors["half"].native))
    np.testing.assert_array_equal(again(), tensors["half"].native())


def test_strides_of_zero_make_no_terabytes(tmp_path):
    strides = {"repeated": (4, 1 << 2), "terabytes": (1 << 20, 1 << 20)}
    tensors = read(tmp_path, {name: tensor("0", shape, (0, 0)) for name, shape in strides.items()})
    assert tensors["repeated"].read().shape == (4, 4)
    with pytest.raises(SourceError, match=r"terabytes: weights .*found 4398046511104 bytes of 16"):
        tensors["terabytes"].read()


def test_tensors_may_share_a_storage_but_not_without_end(tmp_path):
    plenty = np.zeros(1 << 14, "<f4").tobytes()
    values = {str(number): tensor("0", (1 << 14,), (1,)) for number in range(60)}
    assert len(read(tmp_path, values, {"0": plenty})) == 60
    values |= {str(number): tensor("0", (1 << 14,), (1,)) for number in range(120)}
    with pytest.raises(SourceError, match="share storages too often"):
        read(tmp_path, values, {"0": plenty})


def test_meta_tensors_are_listed_and_refused_when_they_are_read(tmp_path):
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    state = {"w": torch.ones(2), "meta": torch.zeros(3, 4, device="meta")}
    torch.save(state, tmp_path / "pytorch_model.bin")
    tensors = open_source(tmp_path).tensors
    assert tensors["w"].read().tolist() == [[1, 1]]
    assert tensors["meta"].shape == (3, 4)
    with pytest.raises(SourceError, match=r"tensor meta: weights .*found meta tensor no storage"):
        tensors["meta"].read()


def test_nesting_costs_nothing():
    key, nested = b"X\x01\0\0\0w", b")" + b"\x85" * 100_000
    assert read_pickle(b"\x80\x02}" + key + nested + b"s.")["w"]
    with pytest.raises(ValueError, match="a key is a tuple"):  # hashing it would recurse
        read_pickle(b"\x80\x02}" + nested + b"Ns.")


@pytest.mark.parametrize(
    "wrong",
    [
        tensor("0", (2, 3), (3, 1)),
        tensor("0", (2, 2), (2, 1), offset=1),
        tensor("0", (2, 2), (2, 1), offset=-1),
        tensor("0", (2, -2), (2, 1)),
        tensor("0", (2, 2), (2, -1)),
        tensor("0", (2, 2), (2,)),
        tensor("0", (1 << 62,), (0,)),
        tensor("0", (1,) * 65, (0,) * 65),
        tensor("0", (True,), (1,)),
        tensor("0", 2, 1),
        tensor("1", (2,), (1,)),
        tensor(3, (2,), (1,)),  # type: ignore[arg-type]
        Called("torch._utils._rebuild_tensor_v2", None, 0, (2,), (1,)),
        Called("torch._utils._rebuild_tensor_v2", Named("torch.FloatStorage"), 0, (2,), (1,)),
    ],
)
def test_a_tensor_that_does_not_fit_its_storage_is_refused(tmp_path, wrong):
    sound = tensor("0", (2, 2), (2, 1))
    assert read(tmp_path, {"w": sound})
    with pytest.raises(SourceError, match=r"tensor w: (the file is damaged|impossible shape)"):
        read(tmp_path, {"w": wrong})


@pytest.mark.parametrize(
    "path", ["os.system", "builtins.eval", "torch.hub.load", "numpy.zeros", "builtins.getattr"]
)
def test_functions_that_weights_do_not_need_are_refused_by_name(tmp_path, path):
    inert = Called("torch.load", "x")  # of a module that weights name; nothing is called
    assert list(read(tmp_path, {"w": tensor("0", (4,), (1,)), "x": inert})) == ["w"]
    with pytest.raises(SourceError, match=f"never run .found {path}"):
        read(tmp_path, {"w": tensor("0", (4,), (1,)), "x": Called(path, "x")})


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "exhausted"),
        (b"\x80\x02.", "damaged"),
        (b"\x80\x02h\x05.", "damaged"),
        (b"\x80\x02NNu.", "damaged"),
        (b"\x80\x02}(NNNu.", "argument 2 is shorter"),
        (b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f.", "bytearray8"),
        (b"(ios\nsystem\n.", "the operation INST"),
        (b"\x80\x02Pstorage\n.", "the operation PERSID"),
    ],
)
def test_a_damaged_pickle_is_refused(tmp_path, raw, words):
    with pytest.raises(SourceError, match=f"damaged or truncated .*{words}"):
        read(tmp_path, None, raw=raw)


def test_a_pickle_of_too_many_operations_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(_inert_pickle, "MAX_OPERATIONS", 100)
    assert read_pickle(b"\x80\x02" + b"N" * 98 + b".") is None  # these are 100
    with pytest.raises(SourceError, match=r"damaged or truncated .*more than 100 operations"):
        read(tmp_path, None, raw=b"\x80\x02" + b"N" * 99 + b".")


def test_a_chain_of_wrappers_is_not_followed_without_end(tmp_path):
    def wrapped(times: int) -> object:
        value: object = tensor("0", (4,), (1,))
        for _ in range(times):
            value = Called("torch._utils._rebuild_parameter", value, True, {})
        return value

    assert read(tmp_path, {"w": wrapped(2)})["w"].read().size == 4
    with pytest.raises(SourceError, match="found parameter"):
        read(tmp_path, {"w": wrapped(20)})["w"].read()


def test_the_archive_must_be_as_torch_writes_it(tmp_path):
    import io
    import zipfile

    def packed(names, compression=zipfile.ZIP_STORED):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", compression) as file:
            for name in names:
                file.writestr(name, archive_pickle if name.endswith("pkl") else FOUR)
        return write_checkpoint(tmp_path / "m", buffer.getvalue())

    from support.torch_archives import pickled

    archive_pickle = pickled({"w": tensor("0", (4,), (1,))})
    assert open_source(packed(["a/data.pkl", "a/data/0"])).tensors
    for names, words in (
        (["a/data.pkl", "b/data.pkl", "a/data/0"], "2 pickles"),
        (["a/other.pkl", "a/data/0"], "0 pickles"),
    ):
        with pytest.raises(SourceError, match=words):
            open_source(packed(names))
    with pytest.raises(SourceError, match="compressed"):
        open_source(packed(["a/data.pkl", "a/data/0"], zipfile.ZIP_DEFLATED))


def test_a_storage_that_is_another_type_is_refused_when_it_is_read(tmp_path):
    tensors = read(tmp_path, {"d": tensor("0", (2,), (1,), kind="Double"), "w": Stored("0")} | {
        "f": tensor("0", (4,), (1,))
    })  # fmt: skip
    assert list(tensors) == ["d", "f"]
    with pytest.raises(SourceError, match="found float64"):
        tensors["d"].read()
