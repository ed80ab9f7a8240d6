"""`bench_llama_cpp.py` without llama.cpp lists what is missing and still measures rdrr."""

from __future__ import annotations

import pytest
from support.scripts import script

SHORT = ("--prompt-tokens", 4, "--tokens", 5, "--repeat", 1)


def test_missing_arguments_are_listed_as_reasons_and_are_no_error():
    done = script("bench_llama_cpp")
    answer = done.json()
    assert done.code == 0
    assert answer["runners"] == {}
    assert answer["not_run"] == {
        "llama.cpp, GPU": "--llama-cpp is not given; --gguf is not given",
        "llama.cpp, CPU": "--llama-cpp is not given; --gguf is not given",
        "rdrr": "--package is not given",
    }


@pytest.mark.thorough
def test_a_folder_without_libraries_is_a_reason_and_rdrr_is_still_measured(random_folder, tmp_path):
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    words = ("--llama-cpp", tmp_path, "--gguf", model, "--package", random_folder)
    answer = script("bench_llama_cpp", *SHORT, *words).json()
    assert list(answer["runners"]) == ["rdrr"]
    assert "no libllama" in answer["not_run"]["llama.cpp, GPU"]
    assert answer["runners"]["rdrr"]["decode_tokens_per_second"]["median"] > 0
