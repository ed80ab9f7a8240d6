"""The commands on valid input: what they print on which stream, and which files they write."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import EXAMPLE, environment, error_line, rdrr
from support.deadlines import HANGS
from support.safetensor_files import llama_tensors, write_llama
from support.seeds import generator_of

PROMPT = "And it came to pass"
EXACT = ("--kv-dtype", "f32", "--kernel-hint", "computePrecision=f32")


@pytest.fixture(scope="module")
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that takes less time than the bundled one."""
    return write_llama(tmp_path_factory.mktemp("small"), llama_tensors(generator_of(request)))


def _digests(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
    }


def _generate(package: Path, *words: object, **options: object) -> str:
    done = rdrr("generate", package, "--max-tokens", 12, *words, **options, code=0)
    return done.out


def test_convert_prints_how_the_tensors_are_stored(tmp_path):
    done = rdrr("convert", EXAMPLE, tmp_path / "out", code=0)
    for word in ("Q4_K", "Q6_K", "F32", "6.8 million weights", "1 shard", str(tmp_path / "out")):
        assert word in done.out
    assert "weights/s" in done.err


def test_convert_cli_is_rdrr_convert_and_the_bytes_are_the_same_each_time(
    shallow_checkpoint, shallow_package, tmp_path
):
    words = (shallow_checkpoint, tmp_path / "small-llama", "--transpose-weights", "--fuse-gate-up")
    assert rdrr(*words, program="convert-cli").code == 0
    assert _digests(tmp_path / "small-llama") == _digests(shallow_package)


def test_another_quantization_gives_other_bytes(small, tmp_path):
    for name in ("q8_0", "q4_k_m", "again"):
        words = ("--quantize", name.replace("again", "q8_0"), "--model-id", "small", "--quiet")
        assert rdrr("convert", small, tmp_path / name, *words).code == 0
    assert _digests(tmp_path / "q8_0") != _digests(tmp_path / "q4_k_m")
    assert _digests(tmp_path / "q8_0") == _digests(tmp_path / "again")


def test_a_dry_run_prints_every_tensor_and_writes_nothing(tmp_path):
    done = rdrr("convert", EXAMPLE, tmp_path / "out", "--dry-run", "--fuse-gate-up", code=0)
    assert done.out.count("model.layers.") == 6 * 8
    assert "mlp.gate_up_proj.weight" in done.out
    assert "would be" in done.out
    assert list(tmp_path.iterdir()) == []


def test_convert_as_json_is_one_object_that_agrees_with_the_package(small, tmp_path):
    out = tmp_path / "out"
    data = rdrr("convert", small, out, "--json", "--model-id", "my-llama").json()
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert data["model_id"] == manifest["modelId"] == "my-llama"
    assert data["total_size"] == manifest["totalSize"]
    assert [tensor["name"] for tensor in data["tensors"]] == list(manifest["tensors"])
    assert data["overflowed"] == []


def test_kernel_hints_are_written_into_the_manifest(small, tmp_path):
    hint = ("--kernel-hint", "q4kMatmul=fused_q4k")
    assert rdrr("convert", small, tmp_path / "out", *hint, "--quiet").code == 0
    data = rdrr("inspect", tmp_path / "out", "--json").json()
    assert data["kernel hints"]["q4kMatmul"] == "fused_q4k"
    assert data["kernel hints"]["f16Matmul"] == "auto"


@pytest.mark.parametrize("largest", [60_000.0, 70_000.0])
def test_a_tensor_that_f16_cannot_hold_is_kept_in_f32_and_named(tmp_path, rng, largest):
    name = "model.layers.1.self_attn.q_proj.weight"
    tensors = llama_tensors(rng, "F32")
    tensors[name][3, 5] = largest
    write_llama(tmp_path / "source", tensors)
    words = ("convert", tmp_path / "source", tmp_path / "out", "--quantize", "f16", "--overwrite")
    done, data = rdrr(*words), rdrr(*words, "--json").json()
    overflows = largest > 65_504
    assert data["overflowed"] == ([name] if overflows else [])
    assert (f"{name}: a value of " in " ".join(done.out.split())) == overflows


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--no-such-flag",), "--no-such-flag"),
        (("--quantize", "q3_k_s"), "q4_k_m"),
        (("--transpose-weights", "--q4k-layout", "row"), "--q4k-layout"),
        (("--kernel-hint", "q4kMatmul"), "KEY=VALUE"),
        (("--kernel-hint", "q4kMatmul=warp_speed"), "fused_q4k"),
        (("--shard-size", "a lot"), "64MiB"),
        (("--align", "96"), "a power of two"),
        (("--align", "4096", "--shard-size", "100000"), "multiple of 4096"),
        (("--hash", "md5"), "blake3"),
        (("--compress", "zstd:23"), "zstd:22"),
        (("--workers", "0"), "--workers"),
        (("--model-id", "My Llama"), "--model-id"),
        (("--json", "--quiet"), "contradict"),
    ],
)
def test_wrong_usage_of_convert_is_one_line_and_exit_code_2(
    shallow_checkpoint, words, said, tmp_path
):
    done = rdrr("convert", shallow_checkpoint, tmp_path / "out", *words)
    assert done.code == 2
    message = done.json()["message"] if "--json" in words else error_line(done)
    assert said in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ("--max-tokens", 0),
        ("--temperature", -1),
        ("--top-p", 2),
        ("--context", 10**6),
        ("--adapter", "x"),
    ],
)
def test_wrong_usage_of_generate_is_one_line_and_exit_code_2(words, shallow_package):
    done = rdrr("generate", shallow_package, "--prompt", "x", "--backend", "cpu", *words)
    assert error_line(done, 2)


def test_validate_says_what_it_checked(made_package):
    plain, deep = rdrr("validate", made_package), rdrr("validate", made_package, "--deep")
    assert (plain.code, deep.code) == (0, 0)
    assert plain.out.startswith("valid small-llama: 1 shard, 50 tensors")
    assert "--deep" in plain.out
    assert "hashes" in deep.out
    bare = rdrr("validate", made_package / "manifest.json", "--json").json()
    assert (bare["valid"], bare["level"]) == (True, "structure")


def test_validate_lists_all_faults_with_rule_field_expected_and_found(package):
    path = package / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["modelId"] = "Not An Id"
    manifest["shards"][0]["hash"] = "beef"
    manifest["tensors"]["model.norm.weight"]["dtype"] = "Q11_Z"
    path.write_text(json.dumps(manifest), encoding="utf-8")
    text = rdrr("validate", package)
    data = rdrr("validate", package, "--json")
    assert text.code == data.code == 1
    fields = {error["field"] for error in data.json()["errors"]}
    assert {"modelId", "shards[0].hash"} <= fields
    assert any("model.norm.weight" in field for field in fields)
    for error in data.json()["errors"]:
        assert error["rule"] in text.out
        assert error["field"] in text.out


def test_a_warning_fails_validation_only_when_strict(package):
    path = package / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    del manifest["inference"]["output"]["logitInputScale"]
    path.write_text(json.dumps(manifest), encoding="utf-8")
    plain, strict = rdrr("validate", package), rdrr("validate", package, "--strict")
    assert (plain.code, strict.code) == (0, 1)
    assert "warning" in plain.out
    assert "logitInputScale" in plain.out


def test_inspect_counts_what_the_manifest_holds(made_package):
    manifest = json.loads((made_package / "manifest.json").read_text(encoding="utf-8"))
    data = rdrr("inspect", made_package, "--tensors", "--memory", "--context", 100, "--json").json()
    sizes = [tensor["size"] for tensor in manifest["tensors"].values()]
    assert sum(group["bytes"] for group in data["by_dtype"]) == sum(sizes)
    assert sum(group["tensors"] for group in data["by_role"]) == len(sizes)
    assert [one["size"] for one in data["tensors"]] == sizes
    assert data["identity"]["model"] == "small-llama"
    # 6 layers, 2 key-value heads with a head dimension of 64, keys and values, 2 bytes each.
    assert data["memory"]["kv_f16"] == 2 * 6 * 2 * 64 * 100 * 2
    assert data["memory"]["kv_f32"] == 2 * data["memory"]["kv_f16"]
    assert 2 * 32 * data["memory"]["kv_q8_0"] == 34 * data["memory"]["kv_f16"]
    assert data["memory"]["weights"] == sum(sizes)
    assert data["memory"]["rows"] == 100


def test_inspect_shows_what_the_runtime_would_allocate_under_the_given_hints(shallow_package):
    words = ("inspect", shallow_package, "--memory", "--context", 100, "--json")
    plain = rdrr(*words).json()["memory"]
    wide = rdrr(*words, "--kernel-hint", "q4kMatmul=dequant_f32").json()["memory"]
    assert plain["loaded"]["kv"] == plain["kv_f16"] == wide["loaded"]["kv"]
    assert plain["weights"] <= plain["loaded"]["weights"] < 1.2 * plain["weights"]
    assert wide["loaded"]["weights"] > 3 * plain["loaded"]["weights"]
    assert wide["weights"] == plain["weights"]
    for memory in (plain["loaded"], wide["loaded"]):
        assert memory["total"] == memory["weights"] + memory["kv"] + memory["rest"]
    unknown = rdrr(*words, "--adapter", "no such adapter")
    assert unknown.code == 1
    assert unknown.json()["message"] == "no such adapter"


def test_inspect_prints_the_same_facts_as_text(shallow_package):
    done = rdrr("inspect", shallow_package, "--tensors", "--memory", code=0)
    for word in ("small-llama", "Q4_K, column", "embedding", "memory for 2048", "gate_up_proj"):
        assert word in done.out
    assert re.search(r"rope base +[\d,]+ *$", done.out, re.MULTILINE)
    assert done.out.count("Q4_K_M") == 1  # the mix, which is no type of a tensor


def test_inspect_describes_a_manifest_without_its_shards():
    folder = Path(__file__).parents[1] / "data" / "manifests"
    name = "gemma-4-12b-it-text-w4a16-ct-ehf16-af16"
    done = rdrr("inspect", folder / f"{name}.json", "--tensors", code=0)
    for word in (name, "W4A16", "not runnable", "down_proj"):
        assert word in done.out
    runnable = rdrr("inspect", folder / "gemma-3-270m-it-q4k-ehf16-af32.json", "--memory", "--json")
    data = runnable.json()
    assert data["memory"]["weights"] == sum(entry["bytes"] for entry in data["by_dtype"])
    assert "not_runnable_because" not in data


def test_generated_text_alone_is_on_stdout_and_the_backend_on_stderr(shallow_package):
    done = rdrr(
        "generate", shallow_package, "--prompt", PROMPT, "--max-tokens", 12, "--backend", "cpu"
    )
    data = rdrr(
        "generate",
        shallow_package,
        "--prompt",
        PROMPT,
        "--max-tokens",
        12,
        "--backend",
        "cpu",
        "--json",
    )
    assert done.out == data.json()["text"] + "\n"
    assert "backend cpu" in done.err
    assert "--backend wgpu" in done.err


@pytest.mark.thorough
def test_greedy_text_is_the_same_on_both_backends(shallow_package):
    words = ("--prompt", PROMPT, "--json", *EXACT)
    gpu = json.loads(_generate(shallow_package, "--backend", "wgpu", *words))
    cpu = json.loads(_generate(shallow_package, "--backend", "cpu", *words))
    assert gpu["token_ids"] == cpu["token_ids"]
    assert gpu["text"] == cpu["text"]
    assert (gpu["backend"], cpu["backend"]) == ("wgpu", "cpu")
    assert gpu["adapter"]
    assert cpu["adapter"] is None
    assert gpu["prompt_tokens"] == cpu["prompt_tokens"] > 1
    assert gpu["stats"]["new_tokens"] == len(gpu["token_ids"]) == 12


def test_a_seed_gives_the_same_text_again_and_another_seed_another(shallow_package):
    def once(seed: int) -> str:
        words = ("--temperature", 1.5, "--top-k", 50, "--seed", seed, "--backend", "cpu")
        return _generate(shallow_package, "--prompt", PROMPT, *words)

    first = once(1)
    assert once(1) == first
    assert once(2) != first


def test_a_stop_string_ends_the_text_before_it(shallow_package):
    whole = _generate(shallow_package, "--prompt", PROMPT, "--backend", "cpu").rstrip("\n")
    stop = whole.split()[2]
    cut = _generate(shallow_package, "--prompt", PROMPT, "--backend", "cpu", "--stop", stop)
    assert cut.rstrip("\n") == whole[: whole.index(stop)].rstrip("\n")


def test_a_prompt_comes_from_standard_input(shallow_package):
    words = ("--backend", "cpu")
    given = _generate(shallow_package, "--prompt", PROMPT, *words)
    assert _generate(shallow_package, *words, stdin=PROMPT) == given
    assert _generate(shallow_package, "--prompt", "-", *words, stdin=PROMPT) == given


def test_stats_go_to_stderr(shallow_package):
    words = ("generate", shallow_package, "--prompt", PROMPT, "--max-tokens", 3, "--backend", "cpu")
    data = rdrr(*words, "--stats")
    assert "time to first token" in data.err
    assert "tokens/s" in data.err
    assert data.out == rdrr(*words).out


def test_a_hint_that_is_not_honoured_is_a_warning_and_with_strict_hints_an_error(shallow_package):
    words = ("generate", shallow_package, "--prompt", "x", "--max-tokens", 1, "--backend", "cpu")
    hint = ("--kernel-hint", "q4kMatmul=fused_q4k_int8")
    said = rdrr(*words, *hint, code=0)
    assert "q4kMatmul=fused_q4k_int8 is not honoured" in said.err
    strict = rdrr(*words, *hint, "--strict-hints")
    assert "q4kMatmul" in error_line(strict, 1)
    followed = ("--kernel-hint", "computePrecision=f32", "--strict-hints")
    assert rdrr(*words, *followed).code == 0


def test_devices_lists_the_adapter_that_the_gpu_tests_use():
    done, data = rdrr("devices"), rdrr("devices", "--json").json()
    assert done.code == 0
    names = [adapter["name"] for adapter in data["adapters"]]
    assert names
    assert all(name in done.out for name in names)
    assert all(adapter["limits"]["max-buffer-size"] > 0 for adapter in data["adapters"])


def test_a_closed_pipe_ends_the_command_quietly(shallow_package):
    words = ["inspect", str(shallow_package), "--tensors", "--json"]
    call = "from rdrr.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", call, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        process.stdout.close()
        err = process.stderr.read().decode()
        process.wait(timeout=HANGS)
    assert err == ""


def test_the_version_is_printed():
    from rdrr import __version__

    assert rdrr("--version").out == f"rdrr {__version__}\n"
    assert rdrr("--version", own_process=True).out == f"rdrr {__version__}\n"


def test_the_help_lists_every_command_once_and_cuts_no_sentence_off():
    from rdrr.cli.app import COMMANDS

    lines = rdrr("--help").out.splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("  ") and line[2:3].isalpha()]
    for command in COMMANDS:
        assert listed.count(command.name) == 1, command.name
        assert f"{command.heading}:" in lines
    assert not [line for line in lines[1:] if line.endswith("...")]


def test_wrong_usage_points_to_the_help_of_its_command():
    assert "see `rdrr bench --help`" in error_line(rdrr("bench", "--no-such-option"))
    assert "see `rdrr --help`" in error_line(rdrr("no-such-command"))


@pytest.mark.parametrize(
    "words", [("convert", "", "out"), ("convert", EXAMPLE, ""), ("validate", ""), ("inspect", "")]
)
def test_an_empty_path_is_not_taken_for_this_folder(words, shallow_package, monkeypatch):
    monkeypatch.chdir(shallow_package)
    assert rdrr("validate", ".").code == 0
    done = rdrr(*words)
    assert "the path is empty" in error_line(done, 2)


def test_architectures_lists_all_that_convert_and_claims_what_was_recorded():
    from rdrr_converter.architectures import ARCHITECTURES
    from rdrr_converter.architectures.checked import read_checked

    checked = read_checked()
    rows = rdrr("architectures", "--json").json()["architectures"]
    assert {row["name"] for row in rows} == {rule.name for rule in ARCHITECTURES}
    for row in rows:
        errors = dict(checked[row["name"]].errors) if row["name"] in checked else {}
        assert row["errors"] == errors
        assert ("to GGUF" in row["forms"]) == ("gguf_out" in errors)
    text = rdrr("architectures").out
    assert all(rule.name in text for rule in ARCHITECTURES)
    assert "LlamaForCausalLM" in text  # the width of a pipe folds no cell
    assert "`rdrr architectures NAME`" not in text
    result = rdrr("architectures", "Qwen2ForCausalLM")
    assert "deepseek-r1-distill-qwen" in result.out
    wrong = rdrr("architectures", "quen3")
    assert wrong.code == 2
    assert "did you mean qwen3?" in wrong.err


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        ("generate", 'a prompt is given by -p: -p "TEXT"'),
        ("chat", "for one answer: rdrr generate 'a package' -p 'hi there'"),
        ("validate", "see `rdrr validate --help`"),
    ],
)
def test_a_prompt_without_its_flag_is_answered_with_the_command_that_works(command, advice):
    assert error_line(rdrr(command, "a package", "hi there")).endswith(advice)
