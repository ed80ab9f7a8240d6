"""The WebGPU calls of a run of our runtime, recorded without a GPU, to be played elsewhere.

Between two tokens the host of the runtime does not depend on what the GPU computes, so a run can be
recorded by a player that computes nothing and answers every read with zeros. The same run with the
bytes that a real device has read returns what that device generated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rdrr_device.adapters import AdapterInfo
from rdrr_device.capabilities import DEFAULT_LIMITS
from rdrr_device.device import Device
from support.remote_gpu import BROWSER_FEATURES, Call, Channel, RemoteGpu, open_remote_device


class Answers:
    """A player that computes nothing.

    Args:
        read: The bytes of each read, in order; with none, a read returns zeros.
    """

    def __init__(self, read: Iterable[bytes] = ()) -> None:
        self._read = iter(read)

    def play(self, calls: Sequence[Call]) -> tuple[list[bytes], str | None]:
        """See `Player.play`."""
        sizes = [call["size"] for call in calls if call["call"] == "read"]
        return [next(self._read, bytes(size)) for size in sizes], None

    def close(self) -> None:
        """See `Player.close`."""


@dataclass(frozen=True)
class RecordedRun:
    """A run, which may be repeated.

    Attributes:
        run: The run: it generates on a device and returns ids.
        features: Optional features that the device has, in wgpu's spelling.
    """

    run: Callable[[Device], list[int]]
    features: frozenset[str] = frozenset()

    def recording(self) -> dict[str, Any]:
        """Return the calls with the features that they need, as JSON values."""
        calls: list[Call] = []
        self._generate(Answers(), calls)
        features = [BROWSER_FEATURES[name] for name in sorted(self.features)]
        return {"features": features, "limits": {}, "calls": calls}

    def ids(self, read: Sequence[bytes]) -> list[int]:
        """Return what a device generated that played the recording and read these bytes."""
        return self._generate(Answers(read), [])

    def _generate(self, player: Answers, calls: list[Call]) -> list[int]:
        gpu = RemoteGpu(Channel(player, calls), self.features, DEFAULT_LIMITS)
        info = AdapterInfo(
            "recorded", "recorded", "CPU", "", self.features, DEFAULT_LIMITS, software=True
        )
        return self.run(open_remote_device(info, gpu))
