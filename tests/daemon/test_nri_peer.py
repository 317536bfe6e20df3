"""NRI mode against Go's own side of NRI: long inventories, restarts, other plugins, a daemon that hangs."""

from __future__ import annotations

import itertools
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.testing import CgroupFiles
from tests.daemon.conftest import Daemons
from tests.daemon.test_nri import CONTAINER, PARENT, PATIENT, POD, status_of
from tests.lab.deadline import wait_until
from tests.lab.nri_adaptation import NriAdaptation, NriAnswer, NriCallError, NriRuntimeOptions
from tests.lab.nri_plugins import GoPlugin, GoPluginOptions
from tests.lab.programs import REPOSITORY
from tests.lab.runtime_remains import processes_of

pytestmark = pytest.mark.golang

SHARES = {"linux": {"resources": {"cpu": {"shares": {"value": "512"}}}}}
NO_CRI = "/nonexistent/containerd.sock"
"""What runs is known from Synchronize alone."""
LONG = "X=" + "y" * 20_000
LONG_CONTAINERS = 300
"""With `LONG` in the environment of each they are more than one message takes."""


def configuration_for(folder: Path, runtime: NriAdaptation) -> str:
    lock = folder / "front-end.lock"
    return f'[daemon]\nmode = "nri"\nlock = "{lock}"\n[nri]\nsocket = "{runtime.socket}"\n'


@pytest.fixture
def nri(socket_folder: Path) -> Iterator[NriAdaptation]:
    with NriAdaptation(socket_folder, PATIENT) as runtime:
        yield runtime


@pytest.fixture
def configuration(socket_folder: Path, nri: NriAdaptation) -> str:
    return configuration_for(socket_folder, nri)


def cpu_of(response: dict[str, Any]) -> dict[str, Any]:
    cpu: dict[str, Any] = response["adjust"]["linux"]["resources"]["cpu"]
    return cpu


def test_an_inventory_in_pieces(daemons: Daemons, nri: NriAdaptation, configuration: str) -> None:
    numbers = range(LONG_CONTAINERS)
    pods = [{**POD, "id": f"p{number}", "uid": f"uid-{number}"} for number in numbers]
    containers = [
        {**CONTAINER, "id": f"c{number}", "pod_sandbox_id": f"p{number}", "env": [LONG]} for number in numbers
    ]
    nri.set_inventory(pods, containers)
    daemon = daemons.start(configuration, runtime_endpoint=NO_CRI)
    nri.wait_for_plugins(1)
    told = nri.synchronized()
    assert "exceed maximum message size" in told.invocations[0].error
    assert [each.error for each in told.invocations[1:]] == ["", ""]
    wait_until(lambda: status_of(daemon).records.containers == LONG_CONTAINERS, "all are known")


def test_a_runtime_that_restarts(daemons: Daemons, nri: NriAdaptation, configuration: str) -> None:
    daemon = daemons.start(configuration, runtime_endpoint=NO_CRI)
    nri.wait_for_plugins(1)
    nri.run_pod(POD)
    nri.start_container(POD, CONTAINER)
    nri.kill()
    nri.set_inventory([POD], [CONTAINER])
    nri.start()
    nri.wait_for_plugins(1)
    wait_until(lambda: status_of(daemon).records.containers == 1, "its container is known")
    created = nri.call("CreateContainer", pod=POD, container={**CONTAINER, "id": "b" * 64})
    assert cpu_of(created.response)["shares"] == {"value": "1024"}


def test_a_field_that_another_plugin_sets_fails_one_creation_only(
    daemons: Daemons, nri: NriAdaptation, configuration: str, socket_folder: Path
) -> None:
    with GoPlugin(nri.socket, socket_folder, GoPluginOptions("other", "10", SHARES)):
        daemons.start(configuration)
        nri.wait_for_plugins(2)
        nri.run_pod(POD)
        with pytest.raises(NriCallError, match="both tried to set CPUShares"):
            nri.call("CreateContainer", pod=POD, container=CONTAINER)
        # As the kubelet tries it again.
        created = nri.call("CreateContainer", pod=POD, container={**CONTAINER, "id": "b" * 64})
    assert cpu_of(created.response)["shares"] == {"value": "512"}


def test_a_validator_that_rejects(
    daemons: Daemons, nri: NriAdaptation, configuration: str, socket_folder: Path
) -> None:
    daemon = daemons.start(configuration)
    nri.wait_for_plugins(1)
    with GoPlugin(nri.socket, socket_folder, GoPluginOptions(rejection="not these")):
        nri.wait_for_plugins(2)
        nri.run_pod(POD)
        with pytest.raises(NriCallError, match="not these"):
            nri.call("CreateContainer", pod=POD, container=CONTAINER)
        # As a runtime that has not created it.
        nri.call("RemoveContainer", pod=POD, container=CONTAINER)
    wait_until(lambda: status_of(daemon).records.containers == 0, "no record")


def answered(runtime: NriAdaptation, name: str, **request: object) -> NriAnswer:
    """The answer to a call, of which the daemon has its part.

    A busy machine may hold it up for longer than the runtime waits, which drops it then: it comes again.
    """
    while not (answer := runtime.call(name, **request)).invocations or answer.invocations[0].error:
        runtime.wait_for_plugins(0)
        runtime.wait_for_plugins(1)
    return answer


def test_a_daemon_that_hangs_holds_no_container_up(daemons: Daemons, socket_folder: Path) -> None:
    """The runtime goes on without it, and has it again afterwards."""
    with NriAdaptation(socket_folder, NriRuntimeOptions(request_timeout_s=0.5)) as runtime:
        daemon = daemons.start(configuration_for(socket_folder, runtime), runtime_endpoint=NO_CRI)
        runtime.wait_for_plugins(1)
        answered(runtime, "RunPodSandbox", pod=POD)
        daemon.signal(signal.SIGSTOP)
        try:
            late = runtime.call("CreateContainer", pod=POD, container=CONTAINER)
            runtime.set_inventory([POD], [CONTAINER])
        finally:
            daemon.signal(signal.SIGCONT)
        runtime.wait_for_plugins(0)
        runtime.wait_for_plugins(1)
        # Policies have half of the runtime's time: on a busy machine a container may go without their values.
        containers = ({**CONTAINER, "id": f"{number:064x}"} for number in itertools.count(1))
        while "shares" not in (
            cpu := cpu_of(answered(runtime, "CreateContainer", pod=POD, container=next(containers)).response)
        ):
            pass
    assert "deadline exceeded" in late.invocations[0].error
    assert not late.response["adjust"]["linux"]["resources"].get("cpu")
    assert cpu["shares"] == {"value": "1024"}


def test_a_plugin_that_the_runtime_starts(socket_folder: Path, cgroup_files: CgroupFiles) -> None:
    cgroup_files.make(PARENT)
    plugins = socket_folder / "plugins"
    plugins.mkdir()
    config = socket_folder / "config.toml"
    config.write_text(
        f'[daemon]\nmode = "nri"\nlock = "{socket_folder}/lock"\n[cgroups]\nroot = "{socket_folder}/cgroup"\n'
    )
    program = plugins / "40-started"
    program.write_text(
        f"#!/bin/sh\ncd {REPOSITORY}\nexec {sys.executable} -m runtimeproxy --config {config}"
        f" --koord-runtimeproxy-endpoint {socket_folder}/proxy.sock --state-dir {socket_folder}/state"
        f" --remote-runtime-service-endpoint {socket_folder}/runtime.sock"
        f" --hook-config-dir {plugins} 2>{socket_folder}/started.log\n"
    )
    program.chmod(0o755)
    # A start takes a second, and much longer on a busy machine.
    options = replace(PATIENT, plugins=plugins, registration_timeout_s=90.0)
    runtime = NriAdaptation(socket_folder, options)
    for _ in range(2):
        with runtime:
            runtime.run_pod(POD)
            created = runtime.call("CreateContainer", pod=POD, container=CONTAINER)
        assert {each.plugin for each in created.invocations} == {"40-started"}
        assert cpu_of(created.response)["shares"] == {"value": "1024"}
        # It ends with the runtime, whose successor starts another one.
        wait_until(lambda: not processes_of("python", config), "the daemon has ended")
