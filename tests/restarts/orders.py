"""Orders for callers: which calls, how many at a time, for which pod."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from cri_api.runtime.v1 import api_pb2
from tests.e2e.koordinator import extended_resources, qos
from tests.e2e.values import BATCH_500, HALF_A_CORE
from tests.lab.pods import PodSpec, container_config, sandbox_config

NAME_LABEL = "load.test/name"
"""The label by which a caller finds what it has created."""
BATCH_SHARES = HALF_A_CORE.cpu_shares
"""The CPU shares that the policies give to each container of the load."""
PLAIN_SHARES = 2
"""What the load asks for. Source: the kubelet's MinShares, for containers without requests."""


@dataclass(frozen=True)
class Workers:
    """How many of each kind call at a time, and for how long each rests between two turns."""

    lists: int = 2
    statuses: int = 2
    creates: int = 3
    pace_ms: int = 20
    events: bool = False

    @property
    def names(self) -> list[str]:
        """The names of all but the one with the event stream."""
        counts = {"list": self.lists, "status": self.statuses, "create": self.creates}
        return [f"{kind}-{number + 1}" for kind, count in counts.items() for number in range(count)]


@dataclass(frozen=True)
class Order:
    """One caller's work in one pod that is there already."""

    name: str
    sandbox_id: str
    sandbox: api_pb2.PodSandboxConfig
    container: api_pb2.ContainerConfig
    workers: Workers = dataclasses.field(default_factory=Workers)

    def line(self) -> str:
        """The line that a caller reads first."""
        fields = {
            "name": self.name,
            "label": NAME_LABEL,
            "sandbox_id": self.sandbox_id,
            "sandbox": as_json(self.sandbox),
            "container": as_json(self.container),
            **dataclasses.asdict(self.workers),
        }
        return json.dumps(fields) + "\n"


def batch_pod(name: str) -> PodSpec:
    """A pod whose containers the policies change."""
    return PodSpec(name, "besteffort", qos("BE"), extended_resources({"main": BATCH_500}))


def order_of(pod: PodSpec, sandbox_id: str, logs: str, workers: Workers) -> Order:
    """The order to create containers in this pod."""
    config = sandbox_config(pod, logs)
    return Order(pod.name, sandbox_id, config, container_config(pod, pod.containers[0]), workers)


def as_json(message: Message) -> Any:
    """A message for Go's decoder, which knows the names of no enum."""
    return json_format.MessageToDict(message, use_integers_for_enums=True)
