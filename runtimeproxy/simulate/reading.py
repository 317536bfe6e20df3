"""From a text to the requests for its pods: manifests, or recorded requests of the CRI. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.cgroups.pace import rest
from runtimeproxy.documents.reading import InputError, parse_documents, printable, shortened
from runtimeproxy.simulate.kubelet import ContainerCreation, PodCalls, calls_of
from runtimeproxy.simulate.manifests import ContainerKind, read_pods
from runtimeproxy.simulate.webhook import mutated

if TYPE_CHECKING:
    from runtimeproxy.node.snapshot import Node

_OF_CONTAINERS: Final = ("sandbox_config", "sandboxConfig", "pod_sandbox_id", "podSandboxId")
"""Keys of a CreateContainerRequest that a RunPodSandboxRequest does not have."""

MessageT = TypeVar("MessageT", api_pb2.RunPodSandboxRequest, api_pb2.CreateContainerRequest)


def pod_calls(data: bytes, source: str, node: Node, *, webhook: bool = False) -> list[PodCalls]:
    """Returns the requests for all pods of a text.

    `data`: Kubernetes objects as YAML or JSON, or a RunPodSandboxRequest or CreateContainerRequest in JSON.
    `source`: name of the text, for people. `webhook`: whether Koordinator's webhook changes the pods of
    manifests first.

    Raises:
        InputError: there is no pod in it, or it cannot be read.
    """
    documents = parse_documents(data)
    if _is_recorded(documents):
        return [_recorded(each, source) for each in documents]
    calls: list[PodCalls] = []
    for pod in read_pods(documents):
        rest()
        added: tuple[str, ...] = ()
        if webhook:
            pod, added = mutated(pod)  # noqa: PLW2901 - the same pod, as it reaches the node
        found = calls_of(pod, node)
        calls.append(found._replace(source=f"{printable(source)}: {found.source}", added=added))
    return calls


def _is_recorded(documents: Sequence[object]) -> bool:
    # Requests have a configuration, and Kubernetes objects have a kind.
    return bool(documents) and all(
        isinstance(each, dict) and "kind" not in each and isinstance(each.get("config"), dict)
        for each in documents
    )


def _recorded(document: Mapping[str, Any], source: str) -> PodCalls:
    if any(key in document for key in _OF_CONTAINERS):
        return recorded_call(_message(api_pb2.CreateContainerRequest(), _with_bytes(document)), source)
    return recorded_call(_message(api_pb2.RunPodSandboxRequest(), document), source)


def recorded_call(
    request: api_pb2.RunPodSandboxRequest | api_pb2.CreateContainerRequest, source: str
) -> PodCalls:
    """Returns a request as the one for its pod. Raises InputError if the pod or container has no name."""
    kind = type(request).__name__
    if not request.config.metadata.name:
        raise InputError(f"is a {kind} without config.metadata.name")
    source = f"{printable(source)}: {kind}"
    if isinstance(request, api_pb2.RunPodSandboxRequest):
        return PodCalls(source=source, config=request.config, runtime_handler=request.runtime_handler)
    container = ContainerCreation(ContainerKind.REGULAR, request.config)
    return PodCalls(source=source, config=request.sandbox_config, containers=(container,), runs_sandbox=False)


def _message(message: MessageT, document: Mapping[str, Any]) -> MessageT:
    from google.protobuf import json_format

    try:
        json_format.ParseDict(dict(document), message, ignore_unknown_fields=True)
    except (json_format.ParseError, ValueError, TypeError) as error:
        reason = shortened(" ".join(str(error).split()))
        raise InputError(f"is not a {type(message).__name__} in JSON: {reason}") from None
    return message


def _with_bytes(document: Mapping[str, Any]) -> dict[str, Any]:
    """The request with the values of variables as JSON has bytes: they are texts in the CRI."""
    config = dict(document["config"])
    variables = config.get("envs")
    if isinstance(variables, list):
        config["envs"] = [_with_bytes_value(each) for each in variables]
    return {**document, "config": config}


def _with_bytes_value(variable: object) -> object:
    if not isinstance(variable, dict) or not isinstance(variable.get("value"), str):
        return variable
    return {**variable, "value": base64.b64encode(variable["value"].encode()).decode()}
