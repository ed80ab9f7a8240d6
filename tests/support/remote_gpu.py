"""A `GPUDevice` of wgpu-py's interface whose calls another program runs (`tests/dawn/player.mjs`).

With it, `rdrr_device.Device` and all that is above it run unchanged on Dawn and in a browser. Only
what `Device` calls is there. Calls wait until a result is needed, so that one round trip serves
many of them.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Protocol

import wgpu
from rdrr_device.adapters import AdapterInfo
from rdrr_device.device import Device
from rdrr_device.implementations.interface import Implementation
from rdrr_device.shaders import WgslCompiler, for_compiler

Call = dict[str, Any]

BROWSER_FEATURES = {"shader-f16": "shader-f16", "subgroup": "subgroups"}
"""The features that shaders may use, in wgpu's and in WebGPU's spelling."""

MAX_WAITING_BYTES = 4 << 20
"""Bytes of base64 after which waiting calls are sent."""


class Player(Protocol):
    """A program that runs calls on a device."""

    def play(self, calls: Sequence[Call]) -> tuple[list[bytes], str | None]:
        """Run calls in order; return the bytes of each `read` and the first error."""
        ...

    def close(self) -> None:
        """End the program."""
        ...


class Channel:
    """The calls that wait to be sent to a player.

    Args:
        player: Runs the calls.
        recorded: A list to which every call is appended as well; None records nothing.
    """

    def __init__(self, player: Player, recorded: list[Call] | None = None) -> None:
        self._player = player
        self._recorded = recorded
        self._waiting: list[Call] = []
        self._bytes = 0
        self._ids = count(1)

    def create(self, call: str, **facts: Any) -> int:
        """Send a call that creates an object, and return the number of the object."""
        number = next(self._ids)
        self.send(call, id=number, **facts)
        return number

    def send(self, call: str, **facts: Any) -> None:
        """Let a call wait, or send those that wait if they have become many."""
        self._waiting.append({"call": call, **facts})
        self._bytes += len(facts.get("data", ""))
        if self._bytes > MAX_WAITING_BYTES:
            self.flush()

    def flush(self) -> list[bytes]:
        """Send the calls that wait, and return what they read.

        Raises:
            GPUValidationError: One of them is invalid.
        """
        calls, self._waiting, self._bytes = self._waiting, [], 0
        if self._recorded is not None:
            self._recorded += calls
        read, error = self._player.play(calls)
        if error is not None:
            raise wgpu.GPUValidationError(error)
        return read

    def close(self) -> None:
        """End the player."""
        self._player.close()


class RemoteBuffer:
    """A `GPUBuffer`."""

    def __init__(self, channel: Channel, label: str, size: int, usage: int) -> None:
        # A buffer that the host fills by mapping is filled by a write here.
        if usage & wgpu.BufferUsage.MAP_WRITE:
            usage = wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC
        self.label, self.size = label, size
        self.id = channel.create("buffer", size=size, usage=int(usage))
        self._channel = channel
        self._mapped = b""

    def map_async(self, mode: str, offset: int = 0, size: int = 0) -> RemoteBuffer:
        if mode.startswith("READ"):
            self._channel.send("read", buffer=self.id, offset=offset, size=size)
            (self._mapped,) = self._channel.flush()
        return self

    def sync_wait(self) -> None:
        pass

    def read_mapped(self, offset: int, size: int, copy: bool = True) -> bytes:
        del copy
        return self._mapped[offset : offset + size]

    def write_mapped(self, data: Any, offset: int = 0) -> None:
        self.write(offset, data)

    def unmap(self) -> None:
        self._mapped = b""

    def write(self, offset: int, data: Any) -> None:
        text = base64.b64encode(memoryview(data).cast("B")).decode()
        self._channel.send("write", buffer=self.id, offset=offset, data=text)

    def destroy(self) -> None:
        self._channel.send("free", id=self.id)


class RemoteEncoder:
    """A `GPUCommandEncoder` and the `GPUComputePassEncoder` that it begins."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, list[int]]] = []
        self._pipeline = self._group = 0

    def begin_compute_pass(self, *, label: str, timestamp_writes: Any) -> RemoteEncoder:
        del label
        assert timestamp_writes is None, "the time of passes is not measured here"
        return self

    def set_pipeline(self, pipeline: int) -> None:
        self._pipeline = pipeline

    def set_bind_group(self, index: int, group: int) -> None:
        assert index == 0
        self._group = group

    def dispatch_workgroups(self, x: int, y: int, z: int) -> None:
        self.commands.append(("dispatch", [self._pipeline, self._group, x, y, z]))

    def end(self) -> None:
        pass

    def copy_buffer_to_buffer(
        self, source: RemoteBuffer, start: int, target: RemoteBuffer, at: int, size: int
    ) -> None:
        self.commands.append(("copy", [source.id, start, target.id, at, size]))

    def clear_buffer(self, buffer: RemoteBuffer, offset: int, size: int) -> None:
        self.commands.append(("clear", [buffer.id, offset, size]))

    def finish(self) -> RemoteEncoder:
        return self


class RemoteQueue:
    """A `GPUQueue`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def write_buffer(self, buffer: RemoteBuffer, offset: int, data: Any) -> None:
        buffer.write(offset, data)

    def submit(self, encoders: Iterable[RemoteEncoder]) -> None:
        for encoder in encoders:
            self._channel.send("submit", commands=encoder.commands)


class RemoteGpu:
    """A `GPUDevice`.

    Args:
        channel: Where its calls go.
        features: Enabled features, in wgpu's spelling.
        limits: Limits in force, by name with dashes.
    """

    def __init__(
        self, channel: Channel, features: Iterable[str], limits: Mapping[str, int]
    ) -> None:
        self.features, self.limits = frozenset(features), dict(limits)
        self.queue = RemoteQueue(channel)
        self._channel = channel

    def create_buffer(self, *, label: str, size: int, usage: int) -> RemoteBuffer:
        return RemoteBuffer(self._channel, label, size, usage)

    def create_shader_module(self, *, label: str, code: str) -> int:
        return self._channel.create("module", label=label, source=code)

    def create_bind_group_layout(self, *, label: str, entries: Sequence[Mapping[str, Any]]) -> int:
        del label
        return self._channel.create(
            "layout", bindings=[entry["buffer"]["type"] for entry in entries]
        )

    def create_pipeline_layout(self, *, bind_group_layouts: Sequence[int]) -> int:
        (layout,) = bind_group_layouts
        return layout

    def create_compute_pipeline(
        self, *, label: str, layout: int, compute: Mapping[str, Any]
    ) -> int:
        module, entry, constants = (compute[key] for key in ("module", "entry_point", "constants"))
        facts = {"module": module, "layout": layout, "entry": entry, "constants": constants}
        number = self._channel.create("pipeline", label=label, **facts)
        self._channel.flush()  # so that an error names the kernel that is being built
        return number

    def create_bind_group(
        self, *, label: str, layout: int, entries: Sequence[Mapping[str, Any]]
    ) -> int:
        del label
        parts = [entry["resource"] for entry in entries]
        buffers = [[part["buffer"].id, part["offset"], part["size"]] for part in parts]
        return self._channel.create("group", layout=layout, buffers=buffers)

    def create_command_encoder(self, *, label: str) -> RemoteEncoder:
        del label
        return RemoteEncoder()

    def destroy(self) -> None:
        self._channel.close()


def wgpu_names(offered: Mapping[str, Any]) -> tuple[frozenset[str], dict[str, int]]:
    """Return the features and limits that a player names, in wgpu's spelling."""
    features = {ours for ours, theirs in BROWSER_FEATURES.items() if theirs in offered["features"]}
    limits = {_with_dashes(name): value for name, value in offered["limits"].items()}
    return frozenset(features), limits


def request(features: Iterable[str], limits: Mapping[str, int]) -> dict[str, Any]:
    """Return the descriptor of a device in WebGPU's spelling."""
    wanted = {_in_camel_case(name): value for name, value in limits.items()}
    return {
        "requiredFeatures": [BROWSER_FEATURES[name] for name in sorted(features)],
        "requiredLimits": wanted,
    }


class RemoteImplementation(Implementation):
    """The implementation of a `RemoteGpu`, without raw calls."""

    api = wgpu

    def adapters(self) -> Sequence[Any]:
        return ()

    def features(self, adapter: Any) -> frozenset[str]:
        return frozenset(adapter.features)

    def request_device(self, *_: object) -> Any:
        raise RuntimeError("a player opens its device itself")

    def module(self, gpu: Any, label: str, source: str, *, trusted: bool) -> Any:
        del trusted
        code = for_compiler(source, WgslCompiler.TINT)
        return gpu.create_shader_module(label=label, code=code)


def open_remote_device(info: AdapterInfo, gpu: RemoteGpu) -> Device:
    """Return a `Device` on a remote GPU."""
    return Device(info, gpu, through=RemoteImplementation())


def _with_dashes(name: str) -> str:
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name)


def _in_camel_case(name: str) -> str:
    first, *rest = name.split("-")
    return first + "".join(word.capitalize() for word in rest)
