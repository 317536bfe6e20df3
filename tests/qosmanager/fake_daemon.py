"""A daemon's API with claims, on a real socket, that the test stops, changes and makes fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
from google.protobuf.duration_pb2 import Duration

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc

WAIT_S = 30.0
_Outcome = api_pb2.SetClaimsResponse


@dataclass
class Owned:
    """The claims of one owner."""

    session: str = ""
    sequence: int = 0
    claims: dict[bytes, api_pb2.Claim] = field(default_factory=dict)
    is_leased: bool = True


class FakeDaemon(api_pb2_grpc.RuntimeProxyServicer, api_pb2_grpc.AdminServicer):
    """Serves while the `async with` block runs; `stop` and `start` are a restart.

    Claims outlive a restart. `requests` are those of the service Admin; `fail` aborts calls by their names.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pods: dict[str, api_pb2.Pod] = {}
        self.node = api_pb2.GetNodeResponse(generation=1, name="node")
        self.resctrl = api_pb2.GetResctrlResponse()
        self.is_recovered = True
        self.owners: dict[str, Owned] = {}
        self.requests: list[Any] = []
        self.evictions: list[api_pb2.EvictRequest] = []
        self.reports: list[api_pb2.QosManagerReport] = []
        self.report_interval_s = 1
        self.node_resources: list[api_pb2.NodeResourceReport] = []
        self.refuse: Callable[[api_pb2.Claim], str] = lambda _: ""
        self.fail: dict[str, tuple[grpc.StatusCode, str]] = {}
        self.part = 100
        self.changed = asyncio.Condition()
        self._watchers: set[asyncio.Queue[Any]] = set()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self.path.unlink(missing_ok=True)
        self._server = grpc.aio.server()
        api_pb2_grpc.add_RuntimeProxyServicer_to_server(self, self._server)
        api_pb2_grpc.add_AdminServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.path}")
        await self._server.start()

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)
        self.path.unlink(missing_ok=True)

    async def __aenter__(self) -> FakeDaemon:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def wait_for(self, is_true: Callable[[], bool]) -> None:
        """Waits until something that a call has changed is so."""
        async with asyncio.timeout(WAIT_S), self.changed:
            await self.changed.wait_for(is_true)

    def values(self, owner: str) -> dict[tuple[str, str], str]:
        """The claimed values by target and field."""
        return {
            (getattr(each.key.target, str(each.key.target.WhichOneof("target"))), each.key.field): each.value
            for each in self.owners.get(owner, Owned()).claims.values()
        }

    def send(self, event: api_pb2.WatchPodsResponse | tuple[grpc.StatusCode, str]) -> None:
        """Sends an event to all watchers of pods, or ends their streams with a status."""
        for queue in self._watchers:
            queue.put_nowait(event)

    def add_pod(self, pod: api_pb2.Pod) -> None:
        is_new = pod.sandbox_id not in self.pods
        self.pods[pod.sandbox_id] = pod
        event = api_pb2.WatchPodsResponse(added=pod) if is_new else api_pb2.WatchPodsResponse(changed=pod)
        self.send(event)

    def remove_pod(self, sandbox_id: str) -> None:
        self.send(api_pb2.WatchPodsResponse(removed=self.pods.pop(sandbox_id)))

    def change_node(self, change: Callable[[api_pb2.GetNodeResponse], object]) -> None:
        change(self.node)
        self.node.generation += 1

    async def _begin(self, context: Any, request: Any, *, is_write: bool = False) -> None:
        name = type(request).__name__.removesuffix("Request")
        if name in self.fail:
            await context.abort(*self.fail[name])
        if is_write:
            self.requests.append(request)
        async with self.changed:
            self.changed.notify_all()

    async def _noted(self, response: Any) -> Any:
        async with self.changed:
            self.changed.notify_all()
        return response

    # The methods have their names in the service.
    async def GetStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._begin(context, request)
        return api_pb2.GetStatusResponse(records=api_pb2.Records(is_recovered=self.is_recovered))

    async def GetNode(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._begin(context, request)
        if request.known_generation == self.node.generation:
            return api_pb2.GetNodeResponse(generation=self.node.generation, is_unchanged=True)
        return self.node

    async def GetResctrl(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._begin(context, request)
        return self.resctrl

    async def GetCustomNodeResource(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._begin(context, request)
        return api_pb2.GetCustomNodeResourceResponse()

    async def WatchPods(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        queue: asyncio.Queue[Any] = asyncio.Queue()
        self._watchers.add(queue)
        try:
            await self._begin(context, request)
            pods = list(self.pods.values())
            parts = [pods[at : at + self.part] for at in range(0, len(pods), self.part)] or [[]]
            for number, part in enumerate(parts, 1):
                snapshot = api_pb2.PodSnapshot(pods=part, has_more=number < len(parts))
                yield api_pb2.WatchPodsResponse(snapshot=snapshot)
            while True:
                event = await queue.get()
                if isinstance(event, tuple):
                    await context.abort(*event)
                yield event
        finally:
            self._watchers.discard(queue)

    async def GetClaims(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._begin(context, request, is_write=True)
        owned = self.owners.setdefault(request.owner, Owned())
        if request.session:
            owned.session, owned.is_leased = request.session, True
        state = api_pb2.ClaimOwner.STATE_LEASED if owned.is_leased else api_pb2.ClaimOwner.STATE_HELD
        owner = api_pb2.ClaimOwner(
            name=request.owner, session=owned.session, sequence=owned.sequence, state=state
        )
        answer = api_pb2.OwnedClaims(owner=owner, claims=owned.claims.values())
        return await self._noted(api_pb2.GetClaimsResponse(owners=[answer]))

    async def SetClaims(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._begin(context, request, is_write=True)
        owned = self.owners.setdefault(request.owner, Owned())
        if owned.session != request.session and not request.is_whole:
            is_other = bool(owned.session)
            outcome = _Outcome.OUTCOME_TAKEN_OVER if is_other else _Outcome.OUTCOME_SEND_WHOLE_SET
            return await self._noted(_Outcome(outcome=outcome))
        if not request.is_whole and request.sequence != owned.sequence + 1:
            return await self._noted(_Outcome(outcome=_Outcome.OUTCOME_SEND_WHOLE_SET))
        owned.session, owned.sequence = request.session, request.sequence
        if request.is_whole:
            owned.claims.clear()
        refused = []
        for index, claim in enumerate(request.claims):
            owned.claims.pop(claim.key.SerializeToString(deterministic=True), None)
            if reason := self.refuse(claim):
                cause = api_pb2.RefusedClaim.CAUSE_NOT_ALLOWED
                refused.append(api_pb2.RefusedClaim(index=index, cause=cause, reason=reason))
            else:
                owned.claims[claim.key.SerializeToString(deterministic=True)] = claim
        for key in request.ended:
            owned.claims.pop(key.SerializeToString(deterministic=True), None)
        return await self._noted(_Outcome(outcome=_Outcome.OUTCOME_TAKEN, refused=refused))

    async def ReleaseClaims(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._begin(context, request, is_write=True)
        released = len(self.owners.pop(request.owner, Owned()).claims)
        return await self._noted(api_pb2.ReleaseClaimsResponse(released=released))

    async def Evict(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._begin(context, request, is_write=True)
        self.evictions.append(request)
        done = api_pb2.EvictResponse.OUTCOME_EVICTED
        outcome = api_pb2.EvictResponse.OUTCOME_DRY_RUN if request.is_dry_run else done
        return await self._noted(api_pb2.EvictResponse(outcome=outcome))

    async def ReportQosManager(self, request: Any, context: Any) -> Any:  # noqa: N802
        if "ReportQosManager" in self.fail:
            await context.abort(*self.fail["ReportQosManager"])
        self.reports.append(request.report)
        if request.HasField("node_resource"):
            self.node_resources.append(request.node_resource)
        interval = Duration(seconds=self.report_interval_s)
        return await self._noted(api_pb2.ReportQosManagerResponse(interval=interval))

    async def SetPolicyMode(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError

    async def SetBypass(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError

    def Record(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError

    async def Explain(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError

    async def Simulate(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError

    def WatchAudit(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError


def pod_message(name: str, **fields: Any) -> api_pb2.Pod:
    """A pod with one container, in cgroups of a systemd node."""
    slice_ = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{name}.slice"
    container = api_pb2.Container(
        id=f"c-{name}",
        name="main",
        state=api_pb2.Container.STATE_RUNNING,
        cgroup=f"{slice_}/cri-containerd-c-{name}.scope",
    )
    given: dict[str, Any] = {
        "sandbox_id": f"s-{name}",
        "uid": name,
        "namespace": "shop",
        "name": name,
        "state": api_pb2.Pod.STATE_READY,
        "kube_qos_class": "Burstable",
        "containers": [container],
    }
    return api_pb2.Pod(**(given | fields))
