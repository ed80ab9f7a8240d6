"""What `rdrr web` writes for browsers, beside a package or apart from it."""

from __future__ import annotations

import json
import shutil
from hashlib import sha256
from pathlib import Path

import pytest
import rdrr
from rdrr_format.errors import FormatError, ManifestError, UsageError
from rdrr_format.integrity import hash_bytes
from rdrr_runtime.program.files import at_context, read_program
from support import tiny_tokenizers as tiny
from support.commands import error_line
from support.commands import rdrr as command
from support.fake_hub import fake_hub
from support.packages import llama_manifest, write_random_package
from support.program_models import embedding_manifest
from support.seeds import generator_of

DEVICE = {"features": ["subgroup"], "language": ["packed_4x8_integer_dot_product"]}


@pytest.fixture(scope="module")
def original(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("web") / "package"
    manifest = llama_manifest("Q8_0", layers=1)
    manifest["architecture"]["maxSeqLen"] = 2560
    write_random_package(folder, manifest, generator_of(request))
    return folder


@pytest.fixture
def package(original, tmp_path):
    return shutil.copytree(original, tmp_path / "package")


@pytest.fixture(scope="module")
def for_all(original, tmp_path_factory):
    """A package, its files before, and what was written for all kinds of browsers."""
    package = shutil.copytree(original, tmp_path_factory.mktemp("all") / "package")
    before = contents(package)
    return package, before, rdrr.web(package)


def describe(path, device):
    path.write_text(json.dumps(device), encoding="utf-8")
    return path


@pytest.fixture
def device(tmp_path):
    return describe(tmp_path / "device.json", DEVICE)


def read_index(folder):
    return json.loads((folder / "index.json").read_text(encoding="utf-8"))


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def change_manifest(folder, **values):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8")) | values
    path.write_text(json.dumps(manifest), encoding="utf-8")


def test_programs_and_an_index_are_written_beside_a_package_that_stays_as_it_is(for_all):
    package, before, written = for_all
    assert contents(package) == before
    index = read_index(package / "web")
    assert (package / "web" / index["package"]).resolve() == package.resolve()
    assert index["manifest"] == sha256(before["manifest.json"]).hexdigest()
    assert index["size"] == len(before["shard_00000.bin"])
    assert "shards" not in index  # the manifest has their SHA-256
    assert len(index["programs"]) == len(written.programs) > 1
    for entry in index["programs"]:
        content = (package / "web" / entry["file"]).read_bytes()
        assert sha256(content).hexdigest() == entry["sha256"]
        at_end = at_context(read_program(content), entry["contexts"]["most"])
        assert sum(buffer.size for buffer in at_end.buffers) == entry["memory"][1]
        assert max(part.size for part in at_end.ranges) == entry["binding"][1]


SEEING = Path(__file__).parents[1] / "data" / "small-qwen3-vl"


def test_a_model_that_sees_has_programs_of_its_tower(tmp_path, device):
    folder = tmp_path / "package"
    rdrr.convert(SEEING, folder, quantize="f16", shard_size=1 << 19)
    written = rdrr.web(folder, targets=[device])
    index = read_index(folder / "web")
    (tower,) = index["towers"]
    (program,) = written.programs
    assert [entry.file for entry in written.towers] == [tower["file"]]
    assert read_program((folder / "web" / tower["file"]).read_bytes()).tower is not None
    assert program.file != tower["file"]
    # Texts do not wait for the weights of the tower.
    assert index["loads"] == [0]
    assert index["size"] == (folder / "shard_00000.bin").stat().st_size


def test_every_kind_of_browser_has_a_program_and_equal_ones_are_written_once(for_all):
    package, _, written = for_all
    targets = [name for program in written.programs for name in program.targets]
    assert len(targets) == len(set(targets)) > len(written.programs)
    last = read_index(package / "web")["programs"][-1]["needs"]
    assert not last["features"]  # what WebGPU guarantees is enough
    assert not last["limits"]
    assert "subgroups" in written.programs[0].needs


def test_a_second_call_writes_the_same_and_removes_what_is_not_named_any_more(
    package, device, tmp_path
):
    targets = [device, describe(tmp_path / "least.json", {"features": []})]
    assert len(rdrr.web(package, targets=targets).programs) == 2
    first = contents(package / "web"), contents(package / "web" / "programs")
    rdrr.web(package, targets=targets)
    assert (contents(package / "web"), contents(package / "web" / "programs")) == first
    written = rdrr.web(package, targets=[device])
    (only,) = written.programs
    assert only.targets == ("device.json",)
    assert [path.name for path in (package / "web" / "programs").iterdir()] == [
        only.file.rpartition("/")[2]
    ]


def test_an_index_of_another_program_is_not_replaced(package, tmp_path, device):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.json").write_text('{"format": "other"}', encoding="utf-8")
    with pytest.raises(UsageError, match="another program"):
        rdrr.web(package, tmp_path / "site", targets=[device])
    rdrr.web(package, tmp_path / "elsewhere", targets=[device])
    rdrr.web(package, tmp_path / "elsewhere", targets=[device])
    index = read_index(tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere" / index["package"]).resolve() == package.resolve()


@pytest.mark.parametrize(
    ("name", "url"), [("plain", "plain/"), ("ä #1?:100%", "%C3%A4%20%231%3F%3A100%25/")]
)
def test_the_path_to_a_package_is_that_of_a_url(package, tmp_path, device, name, url):
    """A browser reads what is behind `#` or `?` as no part of the path."""
    package.rename(tmp_path / name)
    rdrr.web(tmp_path / name, tmp_path / "site", targets=[device])
    rdrr.web(tmp_path / name, targets=[device])
    assert read_index(tmp_path / "site")["package"] == f"../{url}"
    assert read_index(tmp_path / name / "web")["package"] == "../"


def test_a_package_on_the_hub_is_not_downloaded(package, tmp_path, device, monkeypatch):
    change_manifest(package, hashAlgorithm="blake3")
    constants = "huggingface_hub.constants"
    with fake_hub() as hub:
        monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        monkeypatch.setattr(f"{constants}.ENDPOINT", hub.url)
        template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(f"{constants}.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(f"{constants}.HF_HUB_CACHE", str(tmp_path / "home"))
        hub.add("org/name", contents(package) | {"tokenizer.json": b"{}"})
        words = ("web", "hf://org/name", tmp_path / "site", "--target", device, "--json")
        facts = command(*words).json()
        small = {"manifest.json", "generation_config.json", "tokenizer.json"}
        assert set(hub.downloads()) <= small
    index = read_index(tmp_path / "site")
    assert index["package"] == facts["package"] == f"{hub.url}/org/name/resolve/main/"
    assert index["text"] == {"tokenizer": "tokenizer.json"}
    shard = (package / "shard_00000.bin").read_bytes()
    assert index["shards"] == [hash_bytes("sha256", shard)]


def test_a_browser_gets_the_sha256_of_shards_that_have_another_hash(package, device):
    change_manifest(package, hashAlgorithm="blake3")
    rdrr.web(package, targets=[device])
    shard = (package / "shard_00000.bin").read_bytes()
    assert read_index(package / "web")["shards"] == [hash_bytes("sha256", shard)]


def test_a_tokenizer_that_browsers_read_differently_is_refused_by_its_step(package, device):
    change_manifest(package, tokenizer={"type": "bundled", "file": "tokenizer.json"})
    for kind in ("Nmt", "NFC"):
        content = tiny.content(tiny.byte_level(normalizer={"type": kind}))
        (package / "tokenizer.json").write_bytes(content)
        if kind == "NFC":
            assert rdrr.web(package, targets=[device]).programs
        else:
            with pytest.raises(FormatError, match="the normalizer Nmt"):
                rdrr.web(package, targets=[device])


def test_a_manifest_without_its_tokenizer_has_programs_for_token_ids(package, device, tmp_path):
    manifest = tmp_path / "alone" / "manifest.json"
    manifest.parent.mkdir()
    shutil.copy(package / "manifest.json", manifest)
    assert rdrr.web(manifest, targets=[device]).programs
    index = json.loads((manifest.parent / "web" / "index.json").read_text(encoding="utf-8"))
    assert index["text"] == {}
    (package / "tokenizer.json").unlink()
    with pytest.raises(ManifestError, match=r"tokenizer\.json"):
        rdrr.web(package, targets=[device])


def test_compressed_shards_are_refused(package, device):
    manifest = json.loads((package / "manifest.json").read_text(encoding="utf-8"))
    (shard,) = manifest["shards"]
    compressed = shard | {"compression": "zstd", "uncompressedSize": shard["size"]}
    change_manifest(package, shards=[compressed])
    with pytest.raises(FormatError, match="not compressed"):
        rdrr.web(package / "manifest.json", targets=[device])


@pytest.mark.parametrize("dtype", ["Q5_K", "Q4_K"])
def test_tensors_that_a_browser_cannot_decode_are_refused(tmp_path, rng, device, dtype):
    package = tmp_path / "decoded"
    write_random_package(package, llama_manifest(dtype), rng)
    options = {"targets": [device], "kernel_hints": {"q4kMatmul": "dequant_f16"}}
    if dtype == "Q4_K":
        rdrr.web(package, **options)
        return
    with pytest.raises(FormatError, match="cannot decode") as caught:
        rdrr.web(package, **options)
    assert dtype in str(caught.value)
    assert not (package / "web").exists()
    rdrr.web(package, targets=[device])  # kernels read it as it is stored


def test_wrong_options_are_refused(package, device):
    with pytest.raises(UsageError, match="max_context"):
        rdrr.web(package, targets=[device], max_context=9999)
    assert "--max-context" in error_line(command("web", package, "--max-context", "9999"))
    assert "a DIR" in error_line(command("web", "https://localhost:1/package"))


def test_the_command_prints_sizes(package, device):
    done = command("web", package, "--target", device, "--max-context", "2048")
    assert "device.json" in done.out
    assert " by gzip" in done.out


PROJECTED = {"inputSize": 2, "outputSize": 2, "weightTensor": "w", "activation": "gelu_erf"}


LABELS = {"labels": ["a", "b"], "activation": "softmax"}


@pytest.mark.parametrize(
    ("block", "classifier", "served"),
    [
        ({"poolingMode": "mean"}, None, True),
        ({"poolingMode": "none"}, None, False),
        ({"poolingMode": "mean", "projections": [PROJECTED]}, None, False),
        ({"poolingMode": "mean"}, LABELS, False),
    ],
    ids=["pooled", "masks", "projected", "labels"],
)
def test_a_model_that_generates_no_text_is_refused_unless_it_makes_embeddings(
    block, classifier, served, device, request, tmp_path
):
    folder, manifest = tmp_path / "embedding", embedding_manifest(causal=False)
    output = {"embeddingPostprocessor": block, "classifier": classifier}
    manifest["inference"]["output"] |= {key: value for key, value in output.items() if value}
    write_random_package(folder, manifest, generator_of(request))
    if served:
        rdrr.web(folder, targets=[device])
        return
    with pytest.raises(FormatError, match="generate text or make embeddings only"):
        rdrr.web(folder, targets=[device])
    assert not (folder / "web").exists()
