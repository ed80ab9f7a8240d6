"""Devices on Dawn: a Node process that runs the calls of a `RemoteGpu` (`tests/dawn/serve.mjs`)."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from rdrr_device.adapters import AdapterInfo
from rdrr_device.capabilities import DEFAULT_LIMITS, WANTED_FEATURES
from rdrr_device.device import Device
from support.dawn import FOLDER, ROOT, dawn_environment
from support.remote_gpu import (
    Call,
    Channel,
    RemoteGpu,
    open_remote_device,
    request,
    wgpu_names,
)

SERVER = ROOT / "tests" / "dawn" / "serve.mjs"


class DawnPlayer:
    """A Node process with a device of Dawn's."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["node", str(SERVER), str(FOLDER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dawn_environment(),
        )
        self.adapter: Mapping[str, Any] = self._answer()

    def open(self, features: frozenset[str], limits: Mapping[str, int]) -> None:
        """Open the device.

        Raises:
            RuntimeError: Dawn refuses to open it; the message is its own.
        """
        error = self._ask(request(features, limits))["error"]
        if error is not None:
            raise RuntimeError(error)

    def play(self, calls: Sequence[Call]) -> tuple[list[bytes], str | None]:
        """See `Player.play`."""
        reply = self._ask(calls)
        return [base64.b64decode(text) for text in reply["read"]], reply["error"]

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _ask(self, message: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"Dawn in {FOLDER} ended with code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def open_dawn_device(
    without: frozenset[str] = frozenset(),
    limits: Mapping[str, int] | None = None,
    recorded: list[Call] | None = None,
) -> Device:
    """Open a device on Dawn in Node, see `rdrr_device.device.open_device`.

    Args:
        without: Features that stay disabled even if supported.
        limits: Limits to request instead of the adapter's own, by name with dashes.
        recorded: A list to which every call is appended.

    Raises:
        RuntimeError: Dawn does not run on this machine, or does not open the device.
    """
    player = DawnPlayer()
    supported, most = wgpu_names(player.adapter)
    features = (WANTED_FEATURES & supported) - without
    asked = {name: most[name] for name in DEFAULT_LIMITS if name in most} | dict(limits or {})
    player.open(features, asked)
    info = AdapterInfo(
        name=player.adapter["name"],
        backend="Dawn",
        type="CPU",
        driver="Node",
        features=supported,
        limits=most,
        software=True,
    )
    # What was not asked for has WebGPU's default, which no kernel goes by.
    return open_remote_device(info, RemoteGpu(Channel(player, recorded), features, most | asked))
