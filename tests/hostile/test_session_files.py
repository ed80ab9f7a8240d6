"""A session file is checked as a package is, and refused with a `FormatError`."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from rdrr._session import restored_sampling
from rdrr_format.errors import FormatError, StoreError
from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.text.session_file import SavedSession, read_session, write_session
from safetensors.numpy import load_file, save_file
from support.session_files import IDENTITY, PARTS, VOCABULARY, content_of, read_whole

SAMPLING = {"temperature": 0.5, "logit_bias": {"3": 1.5}, "seed": 4, "sampled_tokens": 2}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "a.session").write_bytes(content_of(SAMPLING))
    return tmp_path / "a.session"


def test_a_sound_session_is_read(path):
    saved = read_whole(path)
    assert saved.ids == [5, 3, 1]
    assert saved.slots == 2
    assert {name: part.tobytes() for name, part in saved.cache.items()} == {
        name: part.tobytes() for name, part in PARTS.items()
    }
    sampling = restored_sampling(saved.sampling, VOCABULARY, path)
    assert sampling == SamplingParams(
        temperature=0.5, logit_bias={3: 1.5}, seed=4, sampled_tokens=2
    )


def rewritten(path: Path, tensors: dict[str, np.ndarray], **metadata: str) -> Path:
    stated = {"format": "rdrr-session", "version": "2", "slots": "2", **IDENTITY}
    save_file(tensors, path, {**stated, "sampling": json.dumps(SAMPLING), **metadata})
    return path


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("tokens", np.zeros((1, 3), np.uint32)),
        ("tokens", np.uint32(3)),
        ("tokens", np.zeros(3, np.int64)),
        ("tokens", np.zeros(3, np.float32)),
        ("keys.0", np.zeros((1, 2, 4), np.float32)),
        ("keys.0", np.uint8(3)),
        ("keys.0", np.full((1, 2, 2), np.inf, np.float16).view(np.uint8)),
        ("values.0", np.full((1, 2, 2), np.nan, np.float16).view(np.uint8)),
        ("values.0", np.zeros((1, 1, 3), np.uint8)),
        ("state.0", np.full(2, np.nan, np.float32).view(np.uint8)),
    ],
)
def test_a_tensor_of_another_type_or_rank_or_that_is_not_finite_is_refused(path, name, wrong):
    tensors = load_file(path)
    read_whole(rewritten(path, tensors))
    with pytest.raises(FormatError, match="not a saved session"):
        read_whole(rewritten(path, tensors | {name: np.asarray(wrong)}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("slots", "4"),
        ("slots", "-1"),
        ("slots", " 2"),
        ("slots", "1_0"),
        ("slots", "9" * 5000),
        ("slots", "NaN"),
        ("sampling", ""),
        ("sampling", "[" * 100),
        ("sampling", "3"),
        ("sampling", '{"temperature": NaN, "logit_bias": {}}'),
        ("sampling", '{"temperature": Infinity, "logit_bias": {}}'),
        ("sampling", '{"temperature": 1e999, "logit_bias": {}}'),
        ("sampling", '{"temperature": "1", "logit_bias": {}}'),
        ("sampling", '{"warmth": 1, "logit_bias": {}}'),
        ("sampling", '{"logit_bias": []}'),
        ("sampling", '{"logit_bias": {"x": 1}}'),
        ("sampling", '{"logit_bias": {"-1": 1}}'),
        ("sampling", f'{{"logit_bias": {{"{VOCABULARY}": 1}}}}'),
        ("sampling", '{"logit_bias": {"1": 1e999}}'),
        ("sampling", f'{{"seed": {"9" * 30}, "logit_bias": {{}}}}'),
        ("sampling", '{"sampled_tokens": 1.5, "logit_bias": {}}'),
        ("sampling", '{"seed": 1, "seed": 2, "logit_bias": {}}'),
    ],
)
def test_slots_and_sampling_parameters_are_checked(path, key, value):
    tensors = load_file(path)
    read_whole(rewritten(path, tensors, slots="3"))
    with pytest.raises(FormatError, match="not a saved session"):
        read_whole(rewritten(path, tensors, **{key: value}))


def test_a_header_is_held_to_the_rules_of_safetensors(path):
    content = path.read_bytes()
    for wrong in (b"", content[:-1], content + b"x", content[:40], b"\xff" * 8 + content):
        path.write_bytes(wrong)
        with pytest.raises(FormatError, match="not a saved session"):
            read_whole(path)
    path.unlink()
    with pytest.raises(StoreError):
        read_whole(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_pipes_devices_and_folders_are_no_sessions(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for special in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(FormatError, match="not a saved session"):
            read_whole(special)


def test_a_session_of_another_package_is_refused_before_its_tensors_are_read(path):
    with pytest.raises(FormatError, match="another package"):
        read_session(path, IDENTITY | {"package": "2"})
    shutil.copy(path, path.with_name("b"))
    saved = SavedSession([1], 0, {}, {"logit_bias": {}})
    write_session(path, saved, IDENTITY)
    assert read_whole(path).ids == [1]
