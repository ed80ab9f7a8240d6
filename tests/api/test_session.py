"""Sessions that are interrupted, saved and resumed."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import rdrr
from rdrr_format.errors import FormatError, StoreError, UsageError
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

PROMPT = "And it came to pass"


@pytest.fixture(scope="module")
def folder(shallow_checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("session") / "package"
    rdrr.convert(shallow_checkpoint, folder)
    return folder


@pytest.fixture(scope="module")
def model(folder):
    with rdrr.load(folder, backend="cpu", context=96) as loaded:
        yield loaded


@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "seed": 4, "presence_penalty": 0.3}])
def test_interruptions_and_saving_do_not_change_the_ids(model, folder, tmp_path, options):
    whole = model.session(PROMPT, **options)
    whole.generate(max_tokens=14).read()
    alone = model.generate(PROMPT, max_tokens=14, **options)
    alone.read()
    assert whole.ids == alone.prompt_ids + alone.token_ids
    parted = model.session(PROMPT, **options)
    parted.generate(max_tokens=3).read()
    model.generate("Something else", max_tokens=2).read()  # which takes the cache
    pieces = parted.generate(max_tokens=50, interval=1)
    for _ in range(3):
        next(pieces)
    parted.save(tmp_path / "a.session")
    done = len(parted.ids) - len(model.encode(PROMPT))
    assert 3 < done < 14
    with rdrr.load(folder, backend="cpu", context=80) as other:
        taken = other.restore(tmp_path / "a.session")
        assert (taken.ids, taken.text) == (parted.ids, parted.text)
        going = taken.generate(max_tokens=14 - done)
        going.read()
        assert taken.ids == whole.ids
        assert going.stats.cached_tokens == going.stats.prompt_tokens - 1
        taken.append(" and")
        assert taken.text.endswith(" and")


def test_a_file_that_is_no_session_of_this_package_and_cache_type_is_refused(
    model, folder, tmp_path
):
    session = model.session(PROMPT)
    session.generate(max_tokens=2).read()
    path = tmp_path / "one.session"
    session.save(path)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    other = shutil.copytree(folder, tmp_path / "other")
    manifest = json.loads((other / "manifest.json").read_text("utf-8"))
    manifest["modelId"] = "another"
    (other / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    with (
        rdrr.load(other, backend="cpu", context=16) as another,
        pytest.raises(FormatError, match="another package"),
    ):
        another.restore(path)
    tensors = load_file(path)
    save_file(tensors, tmp_path / "bare.session")
    (tmp_path / "cut.session").write_bytes(path.read_bytes()[:-5])
    for name in ("bare.session", "cut.session"):
        with pytest.raises(FormatError, match="session"):
            model.restore(tmp_path / name)
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
    save_file(tensors, tmp_path / "same.session", metadata)
    assert model.restore(tmp_path / "same.session").ids == session.ids
    ids = np.append(tensors["tokens"], np.uint32(1 << 20))
    save_file(tensors | {"tokens": ids}, tmp_path / "foreign.session", metadata)
    with pytest.raises(FormatError, match="not in the vocabulary"):
        model.restore(tmp_path / "foreign.session")
    with pytest.raises(StoreError):
        model.restore(tmp_path / "missing.session")
    with pytest.raises(StoreError):
        session.save(tmp_path / "missing" / "a.session")
    with pytest.raises(UsageError, match="warmth"):
        model.session(PROMPT, warmth=1.0)
    assert np.array_equal(tensors["tokens"], session.ids)
    assert model.restore(path).ids == session.ids
