"""Restarts the runtime under load, and what clients have seen of that, with and without the proxy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc

from cri_api.runtime.v1 import api_pb2
from tests.bench.scenarios import SERVICE
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess
from tests.peers import load_client
from tests.restarts import figures
from tests.restarts.caller import EVENTED_PLEG_ATTEMPTS
from tests.restarts.figures import Window
from tests.restarts.load import Client, Load
from tests.restarts.orders import BATCH_SHARES, PLAIN_SHARES, Order, Workers
from tests.restarts.proxy_restarts import Seen, loads, wait_for_moment, wait_for_turns
from tests.restarts.stands import Stand

WAYS = ("direct", "proxy")
SHARES = {"direct": PLAIN_SHARES, "proxy": BATCH_SHARES}

_WORKERS = Workers(lists=1, statuses=1, creates=1, pace_ms=50, events=True)
_PROBE_S = 30.0


@dataclass(frozen=True)
class SeenBeyond(Seen):
    """What one client has seen of a runtime's restarts, on one way to it.

    Attributes:
        way: `direct` or `proxy`.
        events_back_s: by restart, from the moment at which the runtime serves until an event comes.
        failed_streams: by restart, attempts to have events that failed, the lost stream included.
        wrong: containers that are not there exactly once with their values.
    """

    way: str
    events_back_s: Sequence[float]
    failed_streams: Sequence[int]
    wrong: Sequence[str]

    @property
    def pleg_lost(self) -> int:
        """In how many restarts a kubelet gives evented PLEG up."""
        return sum(failed >= EVENTED_PLEG_ATTEMPTS for failed in self.failed_streams)


def runtime_restarted(stand: Stand, restarts: int, clients: Sequence[Client]) -> list[SeenBeyond]:
    """Restarts the runtime under the load of all clients, on both ways at the same time."""
    folder = stand.folder / "proxy"
    folder.mkdir()
    windows: list[Window] = []
    with ProxyProcess(folder, stand.proxy_options()) as proxy, ExitStack() as stack:
        markers = stack.enter_context(stand.order("markers", stand.socket, _WORKERS))
        endpoints = {"direct": stand.socket, "proxy": proxy.socket}
        running = {
            way: stack.enter_context(loads(stand, endpoint, way, clients, _WORKERS))
            for way, endpoint in endpoints.items()
        }
        everybody = [load for way in WAYS for load in running[way]]
        _wait_for_events(markers, stand.socket, everybody, time.monotonic())
        for number in range(restarts):
            wait_for_moment(everybody, number)
            windows.append(_restarted(stand, everybody))
            _wait_for_events(markers, stand.socket, everybody, windows[-1].ended)
        wait_for_turns(everybody)
    return [_seen(way, load, windows) for way in WAYS for load in running[way]]


def _restarted(stand: Stand, running: Sequence[Load]) -> Window:
    """Stops the runtime, starts it once all workers have missed it; ends at its first answer."""
    begun = time.monotonic()
    stand.stop()
    away = time.monotonic()
    for load in running:
        load.wait_for_tries(away)
    with ThreadPoolExecutor(1) as threads:
        starting = threads.submit(stand.start)
        wait_until(lambda: _serves(stand.socket), "the runtime serves", _PROBE_S)
        window = Window(begun, time.monotonic())
        starting.result()
    return window


def _serves(socket: Path) -> bool:
    try:
        load_client.call(str(socket), SERVICE + "Version")
    except (OSError, load_client.LoadError):
        return False
    return True


def _wait_for_events(markers: Order, runtime: Path, running: Sequence[Load], after: float) -> None:
    """Makes containers at the runtime itself until all streams have an event."""
    with CriClient(runtime) as client:
        client.wait_until_serving(_PROBE_S)
        wait_until(lambda: _marked(client, markers, running, after), "events come", _PROBE_S)


def _marked(client: CriClient, markers: Order, running: Sequence[Load], after: float) -> bool:
    if all(load.has_event(after) for load in running):
        return True
    request = api_pb2.CreateContainerRequest(
        pod_sandbox_id=markers.sandbox_id, config=markers.container, sandbox_config=markers.sandbox
    )
    try:
        made = client.runtime.CreateContainer(request, timeout=CALL_TIMEOUT_S)
    except grpc.RpcError as error:
        # A runtime that has just started may answer some calls before others.
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return False
    remove = api_pb2.RemoveContainerRequest(container_id=made.container_id)
    client.runtime.RemoveContainer(remove, timeout=CALL_TIMEOUT_S)
    return False


def _seen(way: str, load: Load, windows: Sequence[Window]) -> SeenBeyond:
    moments = [event.at for event in load.events]
    back_s = [min(at for at in moments if at > window.ended) - window.ended for window in windows]
    calls, created = load.calls, load.created
    streams = figures.by_restart([call for call in calls if call.is_stream and not call.is_ok], windows)
    wrong = [str(one) for one in figures.wrong_containers(created, SHARES[way])]
    unary = figures.unary(calls)
    return SeenBeyond(
        load.client.name, windows, unary, created, way, back_s, [len(lost) for lost in streams], wrong
    )
