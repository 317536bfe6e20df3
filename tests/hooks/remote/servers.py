"""Hook servers as policies, and how tests ask them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.hooks import ContainerView, Hook, PodView, Resources
from runtimeproxy.hooks.loaded import ReadResponse
from runtimeproxy.hooks.policy import FailurePolicy
from runtimeproxy.hooks.remote.registrations import HOOK_NAMES, Registration, ResponseMode
from runtimeproxy.hooks.remote.server import HookServer

PRE, POST, POST_POD = Hook.PRE_CREATE_CONTAINER, Hook.POST_START_CONTAINER, Hook.POST_STOP_POD_SANDBOX
POD = PodView(name="pod", cgroup_parent="/kubepods/besteffort/pod1", annotations={"a": "1"})
VIEW = ContainerView(
    name="main",
    pod=POD,
    env={"TOKEN": b"secret-value", "PORT": b"80"},
    current=Resources(cpu_shares=2, cpuset_cpus="0-3", oom_score_adj=1000),
)
TIMEOUT_S = 0.2
"""Of servers that hang."""
PROBE_INTERVAL_S = 0.02
PATIENT_S = 30.0
"""Of servers that answer, however slow the machine is."""


def registration(folder: Path, **changes: Any) -> Registration:
    values: dict[str, Any] = {
        "name": "koordlet.json",
        "endpoint": str(folder / "hook.sock"),
        "failure_policy": FailurePolicy.IGNORE,
        "hooks": frozenset(HOOK_NAMES.values()),
        "timeout_s": PATIENT_S,
        "answers": ResponseMode.AUTO,
    }
    return Registration(**{**values, **changes})


async def ask(server: HookServer, hook: Hook = PRE, view: PodView | ContainerView = VIEW) -> object:
    """What the chain gets of a server, or raises."""
    came: asyncio.Future[ReadResponse] = asyncio.get_running_loop().create_future()
    request = server.as_policy().remote_hooks[hook](view)
    request.send(server.registration.timeout_s, lambda answer, _: came.set_result(answer))
    return (await came)(view)


async def answers(server: HookServer) -> bool:
    """Whether it answers in its time; one with little time does not always on a busy machine."""
    try:
        return await ask(server) is None
    except RuntimeProxyError:
        return False


def concerns(server: HookServer) -> bool:
    return server.as_policy().selector.matches(POD)


async def fail(
    server: HookServer, times: int, hook: Hook = PRE, view: PodView | ContainerView = VIEW
) -> None:
    for _ in range(times):
        with pytest.raises(RuntimeProxyError):
            await ask(server, hook, view)
