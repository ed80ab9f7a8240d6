"""A checkpoint in, a package out: the order of the steps and nothing else.

open the source -> find the architecture -> match names and shapes -> scan magnitudes
-> plan -> encode and write -> verify what is on disk -> report -> manifest, last
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from rdrr_format.errors import ConversionError, ManifestError, UsageError
from rdrr_format.locations import is_url
from rdrr_format.shard_writer import ShardWriter
from rdrr_format.shards import ALIGNMENT, DEFAULT_SHARD_SIZE, ShardInfo
from rdrr_format.stores import Store, write_file
from rdrr_manifests.graph import derive_graph
from rdrr_manifests.models import MANIFEST_NAME, Manifest
from rdrr_manifests.models.conversion_report import REPORT_NAME

from rdrr_converter.architectures import find_architecture
from rdrr_converter.delivery import Delivery, Target, delivery
from rdrr_converter.devices import CPU, Opening, check_device, open_device
from rdrr_converter.engines import check_engine, open_engine
from rdrr_converter.fingerprint import fingerprint
from rdrr_converter.groups import describe_groups
from rdrr_converter.importance import importance_notes, load_importance
from rdrr_converter.lora import merge_adapter
from rdrr_converter.manifest import build_manifest
from rdrr_converter.measure import TensorError
from rdrr_converter.options import Options
from rdrr_converter.pack import write_shards
from rdrr_converter.plan import Plan, make_plan
from rdrr_converter.quantize import Workforce
from rdrr_converter.reading import Model, read_model
from rdrr_converter.report import (
    ConversionResult,
    Progress,
    ProgressCallback,
    TensorReport,
    describe_conversion,
)
from rdrr_converter.scan import scan
from rdrr_converter.sources import Source, open_source
from rdrr_converter.sources.nearby import nearby
from rdrr_converter.tokenizer import copy_files
from rdrr_converter.verify import verify

MAX_WORKERS = 8
"""Threads by default at most; each holds a few chunks in memory."""

FETCHERS = 16
"""Threads of the first pass at least, where it fetches what it reads."""


def convert(
    source: str | Path,
    destination: str | Path,
    *,
    quantize: str = "q4_k_m",
    q4k_layout: str | None = None,
    transpose_weights: bool = False,
    fuse_gate_up: bool = False,
    k_tail: str = "pad",
    quality: str = "ref",
    profile: str = "rdrr",
    imatrix: str | Path | None = None,
    tensor_types: Mapping[str, str] | None = None,
    kernel_hints: Mapping[str, str] | None = None,
    shard_size: int = DEFAULT_SHARD_SIZE,
    align: int = ALIGNMENT,
    hash_algorithm: str = "sha256",
    compress: str | None = None,
    model_id: str | None = None,
    arch: str | None = None,
    lora: str | Path | None = None,
    dry_run: bool = False,
    overwrite: bool = False,
    resume: bool = False,
    workers: int | None = None,
    engine: str = "threads",
    ray_address: str | None = None,
    device: str = CPU,
    adapter: str | None = None,
    progress: ProgressCallback | None = None,
) -> ConversionResult:
    """Convert a checkpoint to an RDRR package.

    Args:
        source: Hugging Face directory (safetensors or PyTorch), one of its files of weights, or
            a GGUF file; by its path, its URL, or `hf://org/name[@revision]`.
        destination: Folder to make, or its URL on an object store. The package appears when it is
            complete.
        quantize: Name of a recipe: `q4_k_m`, `q4_k_s`, `q5_k_m`, `q5_k_s`, `q6_k`, `q4_0`,
            `q5_0`, `q8_0`, `f16` or `f32`.
        q4k_layout: `row`, `column` or `flat` for block-quantized matmul weights.
        transpose_weights: Store every matmul weight of any dtype as [K, N].
        fuse_gate_up: Store gate and up projections as one matrix.
        k_tail: `pad`, `ggml` or `auto`: what becomes of rows that are not whole blocks.
        quality: `ref` for ggml's blocks bit for bit, `best` for less error at the same size.
        profile: `rdrr`, or `doppler` for what the public runtime loads today.
        imatrix: File with an importance matrix (GGUF or .dat of llama.cpp): how much the error in
            each column of each tensor counts.
        tensor_types: Storage types by regular expressions that are searched in the names of the
            package's tensors; the last that matches wins.
        kernel_hints: Hints to write into the manifest, by their public names.
        shard_size: Bytes of a full shard.
        align: Tensors begin at multiples of it; a power of two.
        hash_algorithm: `sha256` or `blake3`, of the shards.
        compress: `zstd` or `zstd:LEVEL` (1 to 22) compresses every shard.
        model_id: Name of the package; derived from the source's folder when None.
        arch: Architecture to use whatever the configuration says.
        lora: Folder of a PEFT adapter to merge into the weights, or its URL.
        dry_run: Decide everything and write nothing.
        overwrite: Replace a package that is there, once the new one is complete.
        resume: Go on with a conversion that was killed, re-using the shards whose bytes still
            have the hashes they were written with; the package is the same as without the kill.
            An interruption or a full disk then leaves what is finished for another try.
        workers: Threads; the bytes do not depend on it.
        engine: Who encodes: `threads`, or `ray` for the workers of a Ray cluster.
        ray_address: Of the cluster; without it `workers` Ray workers are started here.
        device: Who encodes blocks: `cpu`, or `wgpu` or `cuda` for a GPU, with the same bytes. It
            takes Q4_K, Q5_K and Q6_K of the quality `ref`; the rest is the CPU's.
        adapter: Part of the adapter's name for `wgpu`; None for the best that is hardware.
        progress: Called as the work goes on, from the calling thread.

    Raises:
        UsageError: An option is wrong.
        DeviceError: There is no such device, or it fails.
        SourceError: The checkpoint cannot be read.
        ConversionError: It cannot be packaged as asked.
        StoreError: The destination exists or cannot be written, or holds an unfinished
            conversion of something else.
    """
    options = Options(
        quantize=quantize,
        q4k_layout=q4k_layout,
        transpose_weights=transpose_weights,
        fuse_gate_up=fuse_gate_up,
        k_tail=k_tail,
        quality=quality,
        profile=profile,
        imatrix=None if imatrix is None else str(imatrix),
        tensor_types=dict(tensor_types or {}),
        kernel_hints=dict(kernel_hints or {}),
        shard_size=shard_size,
        align=align,
        hash_algorithm=hash_algorithm,
        compress=compress,
        model_id=model_id,
        arch=arch,
        lora=None if lora is None else str(lora),
    )
    options.check()
    if workers is not None and workers < 1:
        raise UsageError("workers", expected="at least 1", found=workers)
    check_engine(engine, ray_address)
    check_device(device, adapter, engine)
    target = Target(source, destination, overwrite=overwrite, resume=resume)
    if not dry_run:
        target.check()
    with (
        open_device(CPU if dry_run else device, adapter) as encoder,
        nearby(source) as path,
        _adapter(options) as merged,
    ):
        crew = _Crew(
            threads=workers or min(os.cpu_count() or 1, MAX_WORKERS),
            fetchers=FETCHERS if is_url(source) else 0,
            engine=engine,
            ray_address=ray_address,
            device=encoder,
            device_name=device,
        )
        counter = Progress(progress, encoder.check)
        return _convert(path, merged, target, options, crew, counter, dry_run=dry_run)


def _adapter(options: Options) -> AbstractContextManager[Path | None]:
    return nullcontext() if options.lora is None else nearby(options.lora)


@dataclass(frozen=True)
class _Crew:
    """Who works: threads here, those that wait for a network, and who encodes."""

    threads: int
    fetchers: int
    engine: str
    ray_address: str | None
    device: Opening
    device_name: str

    @contextmanager
    def workforce(self) -> Iterator[Workforce]:
        """The engine and the device, as long as the engine is open."""
        with open_engine(self.engine, self.threads, self.ray_address) as engine:
            yield Workforce(engine, self.device.wait(), self.device_name)


def _convert(
    source: Path,
    adapter: Path | None,
    target: Target,
    options: Options,
    crew: _Crew,
    counter: Progress,
    *,
    dry_run: bool,
) -> ConversionResult:
    threads = crew.threads
    opened = open_source(source)
    if adapter is not None:
        opened = merge_adapter(opened, adapter)
    rule = find_architecture(opened.config, options.arch, opened.config_place)
    model = read_model(opened, rule)
    matrix = None if options.imatrix is None else load_importance(Path(options.imatrix))
    magnitudes = scan(model, max(threads, crew.fetchers), counter)
    plan = make_plan(model, options, magnitudes, matrix)
    draft, notes = build_manifest(opened, model, plan, options, ())
    notes = (*opened.notes, *model.notes, *plan.origins(), *notes, *_check_graph(draft))
    if matrix is not None:
        notes = (*notes, *importance_notes(plan, matrix))
    errors: dict[str, TensorError] = {}
    reused, blocks = 0, Counter[str]()
    if not dry_run:
        job = _Job(opened, model, plan, options, notes, counter)
        made = fingerprint(opened, plan, options, magnitudes)
        with (
            crew.workforce() as workforce,
            delivery(target, made, threads, options.hash_algorithm) as package,
        ):
            shards = job.write(package, workforce, threads)
            draft, errors = job.finish(package.store, shards, threads)
            reused, blocks = len(package.done), workforce.blocks
    return ConversionResult(
        destination=target.place,
        model_id=draft.model_id,
        architecture=model.name,
        dry_run=dry_run,
        total_size=draft.total_size,
        plan=plan,
        tensors=tuple(TensorReport.of(t, errors.get(t.name)) for t in plan.tensors),
        overflowed=tuple(tensor.name for tensor in plan.tensors if tensor.overflowed),
        notes=notes,
        reused_shards=reused,
        encoded_blocks=blocks,
    )


@dataclass(frozen=True)
class _Job:
    """A conversion about which everything is decided."""

    source: Source
    model: Model
    plan: Plan
    options: Options
    notes: Sequence[str]
    progress: Progress

    def write(self, package: Delivery, workforce: Workforce, workers: int) -> tuple[ShardInfo, ...]:
        """Write the shards that are not done, and return them all."""
        writer = ShardWriter(
            package.store,
            self.options.shard_size,
            self.options.hash_algorithm,
            self.options.compression,
            workers,
            done=package.done,
            position=sum(self.plan.shard_sizes[: len(package.done)]),
            finished=package.finished,
        )
        return write_shards(self.plan, writer, self.options, workforce, self.progress)

    def finish(
        self, store: Store, shards: Sequence[ShardInfo], workers: int
    ) -> tuple[Manifest, dict[str, TensorError]]:
        """Verify, write the other files, manifest last; return it and what each tensor lost."""
        algorithm = self.options.hash_algorithm
        errors = verify(self.plan, store, shards, algorithm, workers, self.progress)
        copy_files(self.source, store)
        groups = describe_groups(self.plan, store, shards) if self.model.moe else None
        manifest, _ = build_manifest(
            self.source, self.model, self.plan, self.options, shards, groups
        )
        report = describe_conversion(manifest, self.model.name, self.plan, errors, self.notes)
        for name, text in ((REPORT_NAME, report.to_json()), (MANIFEST_NAME, manifest.to_json())):
            write_file(store, name, text.encode())
        return manifest, errors


def _check_graph(manifest: Manifest) -> tuple[str, ...]:
    """A note if the package cannot be run yet.

    Raises:
        ConversionError: The graph and the tensors disagree, which is a fault of the
            architecture's file.
    """
    try:
        graph = derive_graph(manifest)
    except ManifestError as error:
        return (f"not runnable here yet: {error}",)
    for use in graph.weights():
        tensor = manifest.tensors.get(use.name)
        found = None if tensor is None else list(tensor.shape)
        if found != list(use.shape):
            raise ConversionError(
                "the graph calls for another tensor than the architecture gave",
                where=use.name,
                expected=list(use.shape),
                found=found,
            )
    return ()
