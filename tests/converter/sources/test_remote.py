"""Convert checkpoints from URLs and to URLs, with a local S3 server."""

from __future__ import annotations

import json
from contextlib import ExitStack
from uuid import uuid4

import pytest
from rdrr_converter.checkpoint import sparse_files
from rdrr_converter.convert import convert
from rdrr_converter.sources import open_source
from rdrr_converter.sources import staging as staging_module
from rdrr_converter.sources.staging import stage_locally
from rdrr_format.errors import RdrrError, SourceError, StoreError, UsageError
from rdrr_format.remote_stores import FsspecStore
from rdrr_manifests.package import open_package, validate
from support.gguf_files import write_gguf
from support.object_store import contents, files, s3_server, upload
from support.range_server import QuietHandler, RangeHandler, served
from support.safetensor_files import from_stored, llama_tensors, write_llama, write_safetensors
from support.sentence_checkpoints import add_modules


@pytest.fixture(scope="module")
def bucket():
    with s3_server() as url:
        yield url


@pytest.fixture
def url(bucket):
    """Return the URL of a folder on the server that no other test uses."""
    return f"{bucket}/{uuid4().hex}"


LAYER = {"num_hidden_layers": 1}


@pytest.fixture
def tensors(rng):
    return llama_tensors(rng, **LAYER)


@pytest.fixture
def folder(tmp_path, tensors):
    return write_llama(tmp_path / "tiny-llama", tensors, **LAYER)


@pytest.fixture
def reads(monkeypatch):
    """Record every read of a remote file: its name, the first byte and the number of bytes."""
    seen = []
    read = FsspecStore.read

    def recorded(self, name, offset=0, size=None):
        result = read(self, name, offset, size)
        seen.append((name, offset, len(result)))
        return result

    monkeypatch.setattr(FsspecStore, "read", recorded)
    return seen


def pickled(folder, tensors):
    import torch

    for path in folder.glob("*.safetensors*"):
        path.unlink()
    state = {name: torch.from_numpy(from_stored(array)) for name, array in tensors.items()}
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "training_args.bin").write_bytes(b"nothing to do with weights")
    return folder


def test_a_checkpoint_on_s3_gives_the_bytes_of_a_local_one(folder, tmp_path, url, reads):
    convert(folder, tmp_path / "local")
    source = upload(folder, f"{url}/tiny-llama")
    convert(source, tmp_path / "out", workers=3)
    assert files(tmp_path / "out") == files(tmp_path / "local")
    weights = [read for read in reads if read[0] == "model.safetensors"]
    assert sum(size for _, _, size in weights) == (folder / "model.safetensors").stat().st_size


def test_an_embedding_model_is_read_with_its_modules(folder, tensors, tmp_path, url, rng):
    hidden = from_stored(tensors["model.norm.weight"]).size
    layers = [rng.normal(0, 0.1, (48, hidden))]
    add_modules(folder, hidden, "mean", layers=layers, biases=[rng.normal(0, 0.1, 48)])
    convert(folder, tmp_path / "local")
    convert(upload(folder, f"{url}/tiny-llama"), tmp_path / "out")
    assert files(tmp_path / "out") == files(tmp_path / "local")
    block = open_package(tmp_path / "out").manifest.inference.output.embedding_postprocessor
    assert [projection.output_size for projection in block.projections] == [48]


def test_chat_templates_in_a_folder_of_their_own_are_read(folder, tmp_path, url):
    templates = folder / "additional_chat_templates"
    templates.mkdir()
    for name in ("tool_use", "rag"):
        (templates / f"{name}.jinja").write_text(name, encoding="utf-8")
    convert(folder, tmp_path / "local")
    settings = json.loads(
        (tmp_path / "local" / "tokenizer_config.json").read_text(encoding="utf-8")
    )
    named = {entry["name"]: entry["template"] for entry in settings["chat_template"]}
    assert named == {"rag": "rag", "tool_use": "tool_use"}
    convert(upload(folder, f"{url}/tiny-llama"), tmp_path / "s3")
    with served(folder) as server:
        convert(server, tmp_path / "http")
    for copy in ("s3", "http"):
        assert (
            json.loads((tmp_path / copy / "tokenizer_config.json").read_text(encoding="utf-8"))
            == settings
        )


def test_each_piece_of_a_shard_is_fetched_once_and_other_weights_never(
    tmp_path, tensors, url, reads, monkeypatch
):
    monkeypatch.setattr(sparse_files, "PIECE_BYTES", 100_000)
    folder = write_llama(tmp_path / "tiny-llama", tensors, shards=3, **LAYER)
    convert(folder, tmp_path / "local")
    (folder / "consolidated.safetensors").write_bytes(bytes(10**5))
    source = upload(folder, f"{url}/tiny-llama/")
    convert(source, tmp_path / "out", workers=4)
    assert files(tmp_path / "out") == files(tmp_path / "local")
    weights = [read for read in reads if read[0].endswith(".safetensors")]
    sizes = {path.name: path.stat().st_size for path in folder.glob("model-*.safetensors")}
    assert {name for name, _, _ in weights} == set(sizes)
    assert len(weights) == len({(name, first) for name, first, _ in weights})
    assert sum(size for _, _, size in weights) == sum(sizes.values())


def test_reading_one_tensor_fetches_no_other_tensor(folder, tensors, url, reads, monkeypatch):
    monkeypatch.setattr(sparse_files, "PIECE_BYTES", 2**15)
    with stage_locally(upload(folder, f"{url}/tiny-llama")) as path:
        source = open_source(path)
        del reads[:]
        name = "model.layers.0.mlp.down_proj.weight"
        result = source.tensors[name].read()
        assert (result == from_stored(tensors[name])).all()
        fetched = sum(size for _, _, size in reads)
        assert tensors[name].nbytes <= fetched <= tensors[name].nbytes + 2 * 2**15
        source.tensors[name].read()
        assert sum(size for _, _, size in reads) == fetched
    assert not path.exists()


def test_a_single_file_and_a_gguf_on_s3_give_the_bytes_of_local_ones(folder, tmp_path, url):
    gguf = write_gguf(folder, tmp_path / "tiny.gguf")
    upload(folder, f"{url}/tiny-llama")
    (tmp_path / "ggufs").mkdir()
    gguf.rename(tmp_path / "ggufs" / gguf.name)
    upload(tmp_path / "ggufs", f"{url}/ggufs")
    for local, remote in (
        (folder / "model.safetensors", f"{url}/tiny-llama/model.safetensors"),
        (tmp_path / "ggufs" / gguf.name, f"{url}/ggufs/{gguf.name}"),
        (tmp_path / "ggufs", f"{url}/ggufs"),
    ):
        options = {"overwrite": True, "quantize": "f16"}
        convert(local, tmp_path / "local", **options)
        convert(remote, tmp_path / "out", **options)
        assert files(tmp_path / "out") == files(tmp_path / "local")


def test_pytorch_weights_are_fetched_whole_and_nothing_else_is(
    folder, tensors, tmp_path, url, reads
):
    pickled(folder, tensors)
    convert(folder, tmp_path / "local")
    convert(upload(folder, f"{url}/tiny-llama"), tmp_path / "out")
    assert files(tmp_path / "out") == files(tmp_path / "local")
    assert "training_args.bin" not in {name for name, _, _ in reads}


@pytest.fixture
def web(tmp_path):
    """Return a function that starts a web server for the test's folder, given its handler."""
    with ExitStack() as stack:
        yield lambda handler: stack.enter_context(served(tmp_path, handler))


def test_a_web_server_serves_checkpoints_too(tmp_path, tensors, web):
    folder = write_llama(tmp_path / "tiny-llama", tensors, shards=2, **LAYER)
    convert(folder, tmp_path / "local")
    convert(f"{web(RangeHandler)}/tiny-llama", tmp_path / "out")
    assert files(tmp_path / "out") == files(tmp_path / "local")


def test_a_web_server_without_range_requests_is_refused_if_it_would_resend_files(
    folder, tmp_path, web, monkeypatch
):
    whole, parts = web(QuietHandler), web(RangeHandler)
    convert(f"{whole}/{folder.name}", tmp_path / "small")  # one piece each
    monkeypatch.setattr(staging_module, "PIECE_BYTES", 10_000)
    with pytest.raises(SourceError, match="does not support range requests"):
        convert(f"{whole}/{folder.name}", tmp_path / "out")
    convert(f"{parts}/{folder.name}", tmp_path / "out")
    assert files(tmp_path / "out") == files(tmp_path / "small")


def test_a_package_on_s3_has_the_bytes_of_a_local_one_and_its_manifest_comes_last(
    folder, tmp_path, url
):
    convert(folder, tmp_path / "local", shard_size=2**18)
    seen = {}

    def look(event):
        if event.done == event.total:
            seen[event.stage] = set(contents(url))

    convert(folder, url, shard_size=2**18, progress=look)
    assert contents(url) == files(tmp_path / "local")
    assert "shard_00000.bin" in seen["verify"]
    assert "manifest.json" not in seen["verify"]
    assert validate(url, deep=True).faults == ()
    package = open_package(url)
    local = open_package(tmp_path / "local")
    for name in local.manifest.tensors:
        assert bytes(package.read(name)) == bytes(local.read(name))


def test_converting_from_url_to_url_writes_nothing_to_the_working_folder(
    folder, tmp_path, url, monkeypatch
):
    convert(folder, tmp_path / "local", quantize="q8_0")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    upload(folder, f"{url}/tiny-llama")
    convert(f"{url}/tiny-llama", f"memory://{uuid4().hex}/a", quantize="q8_0")
    result = convert(f"{url}/tiny-llama", f"{url}/out", quantize="q8_0")
    assert result.as_dict()["destination"] == f"{url}/out"
    assert contents(f"{url}/out") == files(tmp_path / "local")
    assert files(tmp_path / "empty") == {}


def test_overwriting_removes_the_old_manifest_first_and_stale_shards_at_the_end(
    folder, tmp_path, url
):
    convert(folder, url, quantize="f32", shard_size=2**20)
    before = set(contents(url))
    with pytest.raises(StoreError, match="exists already"):
        convert(folder, url, quantize="f16")
    assert set(contents(url)) == before
    seen = {}

    def look(event):
        if event.stage not in seen:
            seen[event.stage] = set(contents(url))

    convert(folder, url, quantize="f16", overwrite=True, progress=look)
    assert "manifest.json" in seen["scan"]
    assert "manifest.json" not in seen["write"]
    convert(folder, tmp_path / "local", quantize="f16")
    assert contents(url) == files(tmp_path / "local")
    assert len(before) > len(contents(url))


@pytest.mark.parametrize("stage", ["write", pytest.param("verify", marks=pytest.mark.thorough)])
def test_an_interruption_leaves_no_manifest_and_nothing_new(folder, url, stage):
    def interrupt(event):
        if event.stage == stage and event.done > event.total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(folder, url, progress=interrupt, shard_size=2**17)
    assert contents(url) == {}
    convert(folder, url)
    with pytest.raises(KeyboardInterrupt):
        convert(folder, url, progress=interrupt, overwrite=True)
    assert "manifest.json" not in contents(url)


def test_the_leftovers_of_a_killed_conversion_are_replaced_and_nothing_else(folder, url):
    upload(folder, f"{url}/strange")
    with pytest.raises(StoreError, match="not an RDRR package"):
        convert(folder, f"{url}/strange", overwrite=True)
    assert contents(f"{url}/strange") == files(folder)
    convert(folder, f"{url}/out")
    store = FsspecStore(f"{url}/out")
    store.delete("manifest.json")
    with pytest.raises(StoreError, match="exists already"):
        convert(folder, f"{url}/out")
    convert(folder, f"{url}/out", overwrite=True)
    assert validate(f"{url}/out").errors == ()


def test_the_source_is_never_replaced(folder, url):
    upload(folder, url)
    with pytest.raises(StoreError, match="holds the source"):
        convert(url, url, overwrite=True)
    assert contents(url) == files(folder)


def test_damaged_uploads_are_found_before_the_manifest_is_written(folder, url, monkeypatch):
    close = FsspecStore.open_write

    def damaging(self, name):
        file = close(self, name)
        if name == "shard_00000.bin":
            written = file.write
            file.write = lambda data: written(bytes(len(memoryview(data).cast("B"))))
        return file

    monkeypatch.setattr(FsspecStore, "open_write", damaging)
    with pytest.raises(Exception, match="wrong hash"):
        convert(folder, url)
    assert contents(url) == {}


def test_bad_locations_are_errors_of_one_clear_line(folder, tmp_path, url):
    out = tmp_path / "out"
    upload(write_llama(tmp_path / "empty", {}), f"{url}/truncated")
    content = (folder / "model.safetensors").read_bytes()
    FsspecStore(f"{url}/truncated")._fs.pipe_file(
        f"{url}/truncated/model.safetensors", content[:-10]
    )
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "config.json").write_text(json.dumps({}), encoding="utf-8")
    upload(tmp_path / "notes", f"{url}/notes")
    for source, error, words in (
        (f"{url}/nowhere", SourceError, "nowhere: no such checkpoint"),
        ("s3://no-such-bucket/a", SourceError, "no such checkpoint"),
        (f"{url}/notes", SourceError, "notes: not a checkpoint.*config.json"),
        (
            f"{url}/truncated",
            SourceError,
            rf"^{url}/truncated/model.safetensors.*the file is truncated",
        ),
        ("nosuch://a/b", StoreError, "nosuch"),
        ("http://127.0.0.1:9/a", StoreError, "cannot be reached"),
    ):
        with pytest.raises(error, match=words) as caught:
            convert(source, out)
        assert "\n" not in str(caught.value)
        assert not out.exists()
    for destination, words in (
        ("hf://org/name", "rdrr push"),
        ("http://127.0.0.1:9/a", "cannot be written"),
        ("s3://no-such-bucket/a", "bucket does not exist"),
    ):
        with pytest.raises(StoreError, match=words):
            convert(folder, destination)
    convert(folder, out)  # the control


def test_a_conversion_from_a_url_resumes_after_an_interruption(folder, tmp_path, url):
    upload(folder, f"{url}/tiny-llama")
    options = {"shard_size": 2**17, "resume": True}

    def interrupt(event):
        if event.stage == "write" and event.done > event.total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(f"{url}/tiny-llama", tmp_path / "out", progress=interrupt, **options)
    assert convert(f"{url}/tiny-llama", tmp_path / "out", **options).reused_shards > 0
    convert(folder, tmp_path / "local", shard_size=2**17)
    assert files(tmp_path / "out") == files(tmp_path / "local")
    with pytest.raises(UsageError, match="folders only"):
        convert(folder, f"{url}/out", resume=True)


def test_a_checkpoint_that_cannot_be_converted_is_refused_before_its_weights_are_fetched(
    folder, tmp_path, url, reads, monkeypatch
):
    monkeypatch.setattr(sparse_files, "PIECE_BYTES", 2**17)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(
        json.dumps(config | {"intermediate_size": 640}), encoding="utf-8"
    )
    upload(folder, url)
    with pytest.raises(RdrrError, match="640"):
        convert(url, tmp_path / "out")
    assert sum(size for name, _, size in reads if name == "model.safetensors") <= 2**17
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    convert(upload(folder, url), tmp_path / "out")
    weights = sum(size for name, _, size in reads if name == "model.safetensors")
    assert weights > (folder / "model.safetensors").stat().st_size


def test_an_adapter_can_be_a_url_too(folder, tmp_path, url, rng):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4}
    (adapter / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    module = "base_model.model.model.layers.0.mlp.down_proj"
    parts = {
        f"{module}.lora_A.weight": rng.standard_normal((2, 512), "float32"),
        f"{module}.lora_B.weight": rng.standard_normal((256, 2), "float32"),
    }
    write_safetensors(adapter / "adapter_model.safetensors", parts)
    convert(folder, tmp_path / "local", lora=adapter, quantize="f32")
    convert(folder, tmp_path / "out", lora=upload(adapter, url), quantize="f32")
    assert files(tmp_path / "out") == files(tmp_path / "local")
    convert(folder, tmp_path / "plain", quantize="f32")
    plain, merged = (tmp_path / name / "shard_00000.bin" for name in ("plain", "out"))
    assert plain.read_bytes() != merged.read_bytes()
