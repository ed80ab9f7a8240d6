"""The choice of a replica: the one that has read the longest beginning of a prompt has its keys."""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import (
    FIFOMixin,
    PendingRequest,
    ReplicaID,
    RequestRouter,
    RunningReplica,
)

from rdrr.serve.ray.beginnings import Beginnings
from rdrr.serve.ray.replica import ReadRequest
from rdrr.serve.responses import keeper_of


class BeginningsRouter(FIFOMixin, RequestRouter):
    """Prefers the replica that has read the beginning of a request, unless another one waits.

    A replica whose slots are all taken gets no request that one with fewer could run; so a
    beginning that all requests share is read once by each replica and fills none of them.
    """

    def initialize_state(self, **kwargs: Any) -> None:
        """Begin without knowledge.

        Args:
            **kwargs: `slots`, the requests that a replica runs at a time.
        """
        self._beginnings, self._slots = Beginnings(), int(kwargs["slots"])

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Return the replicas in ranks: a rank is tried when those before it take no more."""
        ranked = sorted(candidate_replicas, key=self._length)
        request = _request_of(pending_request)
        if request is None or not ranked:
            return [ranked]
        by_name = {_name(replica.replica_id): replica for replica in ranked}
        keeper = by_name.get(keeper_of(request.path, request.body))
        if keeper is not None:
            return [[keeper]]
        reader = by_name.get(self._beginnings.reader(request.body, by_name) or "")
        if reader is None or self._length(reader) >= max(self._slots, self._length(ranked[0]) + 1):
            return [[replica] for replica in ranked]
        return [[reader], *([replica] for replica in ranked if replica is not reader)]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """Note what a replica reads."""
        del result  # which Ray hands over, and which is not there yet
        request = _request_of(pending_request)
        if request is not None:
            self._beginnings.add(request.body, _name(replica_id))

    def _length(self, replica: RunningReplica) -> int:
        return self.replica_queue_len_cache.get(replica.replica_id) or 0


def _name(replica_id: ReplicaID) -> str:
    return replica_id.unique_id


def _request_of(pending: PendingRequest | None) -> ReadRequest | None:
    """Return the request that waits; None for calls that are none, such as those of health."""
    arguments = () if pending is None else (*pending.args, *pending.kwargs.values())
    return next((value for value in arguments if isinstance(value, ReadRequest)), None)
