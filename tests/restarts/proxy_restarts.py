"""Restarts the proxy under load, and what each client has seen of that."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cri_api.runtime.v1 import api_pb2
from tests.restarts import figures
from tests.restarts.figures import Window
from tests.restarts.lines import Call, Created
from tests.restarts.load import Client, Load
from tests.restarts.orders import BATCH_SHARES, NAME_LABEL, Workers
from tests.restarts.stands import Stand
from tests.restarts.supervisors import Kind, Supervisor, supervised

CALL_KINDS = ("list", "status", "create")


@dataclass(frozen=True)
class Seen:
    """What one client has seen."""

    client: str
    windows: Sequence[Window]
    calls: Sequence[Call]
    created: Sequence[Created]

    @property
    def failed(self) -> list[Call]:
        return figures.failed(self.calls)

    @property
    def failed_by_restart(self) -> list[int]:
        return [len(figures.failed(calls)) for calls in figures.by_restart(self.calls, self.windows)]

    @property
    def calls_in_restarts(self) -> list[Call]:
        return [call for window in self.windows for call in figures.during(self.calls, window)]

    @property
    def outages_s(self) -> list[float]:
        return [figures.outage_s(self.calls, window) for window in self.windows]

    @property
    def untried(self) -> list[tuple[int, str]]:
        """Restarts, by number, in which no call of a kind was on its way."""
        return [
            (number, kind)
            for number, window in enumerate(self.windows)
            for kind in CALL_KINDS
            if not any(call.kind == kind for call in figures.during(self.calls, window))
        ]


@dataclass(frozen=True)
class Report:
    """What came out of the restarts of one kind.

    `wrong` are containers that are not there exactly once with their values, or reached the runtime twice;
    `complaints` are errors in the proxy's log.
    """

    kind: StrEnum
    seen: Sequence[Seen]
    wrong: Sequence[str]
    created: int
    complaints: Sequence[str]


def restarted(stand: Stand, kind: Kind, restarts: int, clients: Sequence[Client]) -> Report:
    """Restarts a proxy under the load of all clients, in the middle of a CreateContainer of each in turn."""
    with supervised(kind, stand.folder, stand.proxy_options()) as supervisor:
        return report_under_load(stand, supervisor, kind, restarts, clients)


def report_under_load(
    stand: Stand, supervisor: Supervisor, kind: StrEnum, restarts: int, clients: Sequence[Client]
) -> Report:
    """As `restarted`, with a supervisor that runs already."""
    windows: list[Window] = []
    with loads(stand, supervisor.socket, kind, clients, Workers()) as running:
        for number in range(restarts):
            wait_for_moment(running, number)
            windows.append(supervisor.restart())
        wait_for_turns(running)
    complaints = supervisor.complaints()
    seen = [Seen(load.client.name, windows, figures.unary(load.calls), load.created) for load in running]
    created = [one for each in seen for one in each.created]
    wrong = [str(one) for one in figures.wrong_containers(created, BATCH_SHARES)]
    return Report(kind, seen, [*wrong, *_wrongly_recorded(stand, created)], len(created), complaints)


@contextmanager
def loads(
    stand: Stand, endpoint: Path, name: str, clients: Sequence[Client], workers: Workers
) -> Iterator[list[Load]]:
    """Callers of one endpoint, each in a pod of its own."""
    with ExitStack() as stack:
        orders = [stack.enter_context(stand.order(f"{name}-{c.name}", endpoint, workers)) for c in clients]
        yield [
            stack.enter_context(Load(client, endpoint, order))
            for client, order in zip(clients, orders, strict=True)
        ]


def wait_for_turns(running: Sequence[Load]) -> None:
    """Waits until all workers have had an answer to a call that begins from now on."""
    now = time.monotonic()
    for load in running:
        load.wait_for_turns(now)


def wait_for_moment(running: Sequence[Load], number: int) -> None:
    """Waits for a moment to restart something: all are answered, and a CreateContainer is on its way."""
    wait_for_turns(running)
    running[number % len(running)].wait_for_create()


def _wrongly_recorded(stand: Stand, created: Sequence[Created]) -> list[str]:
    """Containers that reached the runtime with other values or twice, or not though the caller has them."""
    if stand.recorded is None:
        return []
    all_requests: list[api_pb2.CreateContainerRequest] = [call.message for call in stand.recorded()]
    requests = [each for each in all_requests if NAME_LABEL in each.config.labels]
    counts = Counter(request.config.labels[NAME_LABEL] for request in requests)
    wrong = [
        f"{request.config.labels[NAME_LABEL]}: {request.config.linux.resources.cpu_shares} shares sent"
        for request in requests
        if request.config.linux.resources.cpu_shares != BATCH_SHARES
    ]
    allowed = {one.name: {1} if one.code == "OK" else {0, 1} for one in created}
    often = [name for name, times in allowed.items() if counts[name] not in times]
    return [*wrong, *(f"{name}: created {counts[name]} times" for name in often)]
