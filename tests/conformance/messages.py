"""Requests of the kubelet, and what later releases, odd encoders and attackers make of them."""

from __future__ import annotations

import json
from collections.abc import Mapping

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing.builders import container_config, create_container_request, pod_sandbox_config

RUNTIME = "/runtime.v1.RuntimeService"
IMAGE = "/runtime.v1.ImageService"
CREATE = f"{RUNTIME}/CreateContainer"
RUN = f"{RUNTIME}/RunPodSandbox"
STATUS = f"{RUNTIME}/Status"
VERSION = f"{RUNTIME}/Version"
LIST = f"{RUNTIME}/ListContainerStats"
"""A list that the daemon itself never asks for."""
EVENTS = f"{RUNTIME}/GetContainerEvents"
EXEC = f"{RUNTIME}/ExecSync"

UNKNOWN_NUMBER = 1999
UNKNOWN = b"\xfa\x7c\x05later"
"""A field with the number above, as a later release of the CRI may have it."""

UNPARSABLE = b"\x0a\xff\xff"
"""A field that is longer than the message."""

BATCH_ANNOTATIONS = {
    "node.koordinator.sh/extended-resource-spec": json.dumps(
        {
            "containers": {
                "main": {
                    "requests": {"kubernetes.io/batch-cpu": 500, "kubernetes.io/batch-memory": "64Mi"},
                    "limits": {"kubernetes.io/batch-cpu": 1000, "kubernetes.io/batch-memory": "128Mi"},
                }
            }
        }
    )
}
"""With the QoS class BE: the batch resource policy changes the container `main`."""

BATCH_SHARES = 512
"""cpu.shares of the container above. Source: Kubernetes, 1024 shares for a CPU."""


def plain_create(sandbox_id: str = "sandbox", name: str = "main") -> api_pb2.CreateContainerRequest:
    """A container that no policy changes."""
    pod = pod_sandbox_config("plain", uid="plain")
    return create_container_request(sandbox_id, container_config(name, pod=pod), pod)


def batch_create(sandbox_id: str = "sandbox") -> api_pb2.CreateContainerRequest:
    """A container that the batch resource policy changes."""
    pod = pod_sandbox_config("batch", uid="batch", qos="BE", annotations=BATCH_ANNOTATIONS)
    return create_container_request(sandbox_id, container_config("main", pod=pod), pod)


def asking_create(
    annotations: Mapping[str, str], name: str = "main", uid: str = "asking", sandbox_id: str = "sandbox"
) -> api_pb2.CreateContainerRequest:
    """A container that the test's policy decides on."""
    pod = pod_sandbox_config("asking", uid=uid, annotations=annotations)
    return create_container_request(sandbox_id, container_config(name, pod=pod), pod)


def with_unknown(message: Message) -> None:
    """Adds an unknown field to a message and to all messages in it."""
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for inner in [value] if isinstance(value, Message) else value:
            with_unknown(inner)
    message.MergeFromString(UNKNOWN)


def unknown_places(message: Message, path: str = "") -> list[str]:
    """Where a message holds the unknown field."""
    unknown = UnknownFieldSet(message)
    numbers = [unknown[place].field_number for place in range(len(unknown))]
    places = [path] * numbers.count(UNKNOWN_NUMBER)
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        inner = [value] if isinstance(value, Message) else value
        for number, each in enumerate(inner):
            places += unknown_places(each, f"{path}.{field.name}[{number}]")
    return places


def backwards(message: Message) -> bytes:
    """The message in an encoding that no library makes: fields in the opposite order, each by itself."""
    pieces = []
    for field, _ in message.ListFields():
        only = type(message)()
        only.CopyFrom(message)
        for other, _ in message.ListFields():
            if other.name != field.name:
                only.ClearField(other.name)
        pieces.append(only.SerializeToString())
    return b"".join(reversed(pieces))
