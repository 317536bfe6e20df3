"""How a hook server of the tests answers, and what it lays over an answer. All functions are pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self, TypeAlias

from cri_api.koordinator.v1alpha1 import api_pb2

Request: TypeAlias = api_pb2.PodSandboxHookRequest | api_pb2.ContainerResourceHookRequest
Response: TypeAlias = api_pb2.PodSandboxHookResponse | api_pb2.ContainerResourceHookResponse

OVERLAY = "hooks.test/overlay"
"""The pod annotation with the overlay of its hooks, as JSON: see `overlay`."""

NONSENSE: Mapping[str, Any] = {"cpu_shares": -5, "cpuset_cpus": "banana"}
UNDECODABLE = b"\xff\xff\xff"


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """What a hook server does when it is asked."""

    kind: str = "koordlet"
    """`koordlet`: an echo with the overlay; `partial`: the overlay only; `hang`: no answer until told;
    `late`: koordlet's answer after `seconds`; `crash`: the process ends; `nonsense`; `undecodable`;
    `error`: a status of `code` and `text`."""
    seconds: float = 0.0
    code: str = "INTERNAL"
    text: str = "not today"
    hooks: tuple[str, ...] = ()
    """Where `kind` counts, such as `PreCreateContainerHook`; other hooks behave as koordlet. Empty: all."""
    overlay: Mapping[str, Any] = field(default_factory=dict)
    """For every pod."""
    overlay_key: str = OVERLAY
    quota_divisor: float = 1.0
    """By which a CPU quota above 0 is divided, as CPU normalization does."""

    def to_json(self) -> str:
        """The behaviour as a text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The reverse of `to_json`; what is not named has its default."""
        values = json.loads(text)
        return cls(**{**values, "hooks": tuple(values.get("hooks", ()))})


def overlay_of(request: Request, behaviour: Behaviour) -> Mapping[str, Any]:
    """What a server changes: for every pod, and by the pod's annotation."""
    if isinstance(request, api_pb2.PodSandboxHookRequest):
        annotations = request.annotations
    else:
        annotations = request.pod_annotations
    return {
        **_divided(request, behaviour.quota_divisor),
        **behaviour.overlay,
        **json.loads(annotations.get(behaviour.overlay_key, "{}")),
    }


def _divided(request: Request, divisor: float) -> Mapping[str, int]:
    if isinstance(request, api_pb2.PodSandboxHookRequest):
        return {}
    quota_us = request.container_resources.cpu_quota
    return {"cpu_quota": math.ceil(quota_us / divisor)} if quota_us > 0 and divisor != 1.0 else {}


def echo(request: Request) -> Response:
    """What koordlet was shown. Source: Koordinator pkg/koordlet/runtimehooks/proxyserver/service.go."""
    if isinstance(request, api_pb2.PodSandboxHookRequest):
        return api_pb2.PodSandboxHookResponse(
            labels=request.labels,
            annotations=request.annotations,
            cgroup_parent=request.cgroup_parent,
            resources=request.resources if request.HasField("resources") else None,
        )
    return api_pb2.ContainerResourceHookResponse(
        container_annotations=request.container_annotations,
        container_resources=request.container_resources if request.HasField("container_resources") else None,
        pod_cgroup_parent=request.pod_cgroup_parent,
        container_envs=request.container_envs,
    )


def nothing(request: Request) -> Response:
    """An empty answer."""
    if isinstance(request, api_pb2.PodSandboxHookRequest):
        return api_pb2.PodSandboxHookResponse()
    return api_pb2.ContainerResourceHookResponse()


def lay_over(response: Response, overlay: Mapping[str, Any]) -> Response:
    """Sets what an overlay names.

    Its keys are fields of LinuxContainerResources (maps are merged), `env`, `annotations`, `labels`,
    `cgroup_parent`.
    """
    for key, value in overlay.items():
        if isinstance(response, api_pb2.PodSandboxHookResponse):
            _set_in_pod(response, key, value)
        else:
            _set_in_container(response, key, value)
    return response


def _set_in_pod(response: api_pb2.PodSandboxHookResponse, key: str, value: Any) -> None:
    if key == "labels":
        response.labels.update(value)
    elif key == "annotations":
        response.annotations.update(value)
    elif key == "cgroup_parent":
        response.cgroup_parent = value
    elif key != "env":
        response.resources.SetInParent()
        _set_resource(response.resources, key, value)


def _set_in_container(response: api_pb2.ContainerResourceHookResponse, key: str, value: Any) -> None:
    if key == "env":
        response.container_envs.update(value)
    elif key == "annotations":
        response.container_annotations.update(value)
    elif key == "cgroup_parent":
        response.pod_cgroup_parent = value
    elif key != "labels":
        response.container_resources.SetInParent()
        _set_resource(response.container_resources, key, value)


def _set_resource(resources: api_pb2.LinuxContainerResources, key: str, value: Any) -> None:
    if key == "unified":
        resources.unified.update(value)
    else:
        setattr(resources, key, value)
