"""Policies and hook servers that fail."""

from __future__ import annotations

import os
import signal
from typing import Final

import grpc
import pytest

from cri_api.runtimeproxy.v1.api_pb2 import PolicyStatus
from policies.annotations import DEVICE_ALLOCATED
from tests.daemon.driving import batch_pod, pod
from tests.daemon.failures.scene import Row, Scene, failures, write_policy
from tests.daemon.hook_servers import use
from tests.daemon.site import IMPORT_FIFO, site_folder
from tests.hooks.remote.behaviours import Behaviour
from tests.hooks.remote.hook_server_process import HookServerProcess
from tests.lab.cri_client import CriClient
from tests.lab.proxy_process import ProxyProcess

CONTAINER = "def container(self, container, node):\n"
KEEPS_FAILING = """
from runtimeproxy.frontends.cri_proxy.calls.create_container import CreateContainer
def correct(self):
    raise RuntimeError("a bug")
CreateContainer.correct = correct
"""


def not_loaded(scene: Scene) -> ProxyProcess:
    daemon = scene.prepare()
    write_policy(daemon, "broken", CONTAINER + "    return (")
    daemon.start()
    scene.wait_for(daemon, "policy_state", state="not_loaded")
    return daemon


def raises(scene: Scene) -> ProxyProcess:
    scene.daemons.environment["KOORD_RUNTIMEPROXY_HOOKS_BUDGET_S"] = "5"
    fifo = scene.folder / "fifo"
    os.mkfifo(fifo)
    daemon = scene.prepare()
    write_policy(daemon, "broken", CONTAINER + "    raise RuntimeError")
    write_policy(daemon, "hanging", f"timeout_s = 0.2\n{CONTAINER}    open({str(fifo)!r}).read()")
    daemon.start()
    with CriClient(daemon.socket) as client:
        pod(client).run().create()
        scene.wait_for(daemon, "policy_failures_total", policy="broken", cause="failed")
        scene.wait_for(daemon, "policy_hung_threads", policy="hanging")
    return daemon


def fails_for_what_runs(scene: Scene) -> ProxyProcess:
    daemon = scene.prepare()
    write_policy(daemon, "broken", CONTAINER + "    return 1 / len(container.id and ())")
    daemon.objects_folder.mkdir()
    # A policy needs what is in it.
    (daemon.objects_folder / "slo.yaml").write_text("a: [")
    daemon.start()
    with CriClient(daemon.socket) as client:
        made, _ = scene.run_batch_pod(client)
        daemon.signal(signal.SIGHUP)
        scene.wait_for(daemon, "policy_failures_total", policy="broken", hook="evaluate_container")
        scene.wait_for(daemon, "policy_off_total")
        assert made.container
    return daemon


def katalyst_refuses(scene: Scene) -> ProxyProcess:
    daemon = scene.start("[policies.katalyst-qos]\nenabled = true\n")
    annotations = {"katalyst.kubewharf.io/qos_level": "dedicated_cores"}
    with CriClient(daemon.socket) as client:
        pod(client, "accepted", annotations=annotations).run()
        scene.wait_for(daemon, "policy_fields_left_out_total", policy="katalyst-qos")
        scene.reject_what_katalyst_refuses(daemon)
        with pytest.raises(grpc.RpcError):
            pod(client, "refused", annotations=annotations).run()
        scene.wait_for(daemon, "policy_refusals_total", policy="katalyst-qos")
    return daemon


def field_left_out(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with CriClient(daemon.socket) as client:
        batch_pod(client).run().create().start()
        scene.wait_for(daemon, "policy_fields_left_out_total", policy="batch-resource")
    return daemon


def device_missing(scene: Scene) -> ProxyProcess:
    daemon = scene.start("[policies.rdma-devices]\nenabled = true\n")
    with CriClient(daemon.socket) as client:
        pod(client, annotations={DEVICE_ALLOCATED: '{"rdma": [{"id": "ffff:1f:00.0"}]}'}).run().create()
        scene.wait_for(daemon, "policy_fields_left_out_total", policy="rdma-devices")
    return daemon


def not_loaded_in_time(scene: Scene) -> ProxyProcess:
    fifo = scene.folder / "fifo"
    os.mkfifo(fifo)
    environment = scene.daemons.environment
    environment.update(site_folder(scene.folder / "slow", slow="slow_to_import:Slow"))
    environment |= {IMPORT_FIFO: str(fifo), "KOORD_RUNTIMEPROXY_HOOKS_BUDGET_S": "0.1"}
    daemon = scene.prepare()
    daemon.spawn()
    with CriClient(daemon.socket) as client:
        client.wait_until_serving(30)
        pod(client).run()
    scene.wait_for(daemon, "call_problems_total", method="RunPodSandbox", cause="not_loaded")
    return daemon


def server_crashes(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with HookServerProcess(scene.folder / "hook.sock", Behaviour(kind="crash")) as server:
        server.register(daemon.hook_folder, "crashing.json", "PreCreateContainer")
        use(daemon, "crashing.json")
        with CriClient(daemon.socket) as client:
            pod(client).run().create()
            scene.wait_for(daemon, "policy_failures_total", policy="crashing.json")
    return daemon


def server_fails_three_times(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with HookServerProcess(scene.folder / "hook.sock", Behaviour(kind="crash")) as server:
        server.register(daemon.hook_folder, "crashing.json", "PreCreateContainer")
        use(daemon, "crashing.json")
        with CriClient(daemon.socket) as client:
            for number in range(3):
                pod(client, f"pod-{number}").run().create()
            found = scene.wait_for(daemon, "hook_server_skipped", server="crashing.json")
    assert found.of("hook_server_breaker_openings_total", server="crashing.json") == 1
    return daemon


def registration_is_bad(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    (daemon.hook_folder / "koordlet.json").touch()
    scene.wait_for(daemon, "hook_server_registration_problems_total")
    return daemon


def installed_code_changes(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    (scene.folder / "site" / "test_policies-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: test-policies\nVersion: 2.0\n"
    )
    daemon.signal(signal.SIGHUP)
    scene.wait_for(daemon, "policies_with_new_code")
    return daemon


def own_code_keeps_failing(scene: Scene) -> ProxyProcess:
    daemon = scene.start(statements=KEEPS_FAILING)
    with CriClient(daemon.socket) as client:
        for number in range(10):
            pod(client, f"pod-{number}").run().create()
        scene.wait_for(daemon, "internal_errors_total", 10)
        scene.wait_for(daemon, "bypass", cause="breaker")
    return daemon


ROWS: Final = {
    "a policy cannot be loaded": Row(
        not_loaded, lambda s: any(each.state == PolicyStatus.STATE_FAILED for each in s.policies)
    ),
    "its code changes on disk": Row(installed_code_changes, lambda s: bool(s.last_reload.changed_code)),
    "it raises, hangs": Row(
        raises,
        lambda s: failures(s, "broken").raised > 0 and any(each.hanging_threads for each in s.policies),
    ),
    "a field of its answer": Row(field_left_out, lambda s: failures(s, "batch-resource").left_out > 0),
    "Katalyst refuses what a pod's": Row(
        katalyst_refuses, lambda s: [each.pod for each in s.katalyst_problems] == ["default/accepted"]
    ),
    "the node cannot give": Row(device_missing, lambda s: failures(s, "rdma-devices").left_out > 0),
    "the policies are not loaded in time": Row(not_loaded_in_time, lambda s: s.calls.undecided > 0),
    "the proxy's own code keeps failing": Row(
        own_code_keeps_failing,
        lambda s: s.breaker.is_open and s.bypass.is_on and s.daemon.internal_errors >= 10,
    ),
    "a policy fails, hangs": Row(fails_for_what_runs, lambda s: failures(s, "broken").raised > 0),
    "a server hangs, dies": Row(server_crashes, lambda s: s.hook_servers[0].failures > 0),
    "it fails three times": Row(server_fails_three_times, lambda s: s.hook_servers[0].is_breaker_open),
    "its registration file is bad": Row(registration_is_bad, lambda s: len(s.registration_problems) > 0),
}
