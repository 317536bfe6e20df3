"""Go's side of NRI with Go's own plugins: what tests of ours rely on."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.nri_adaptation import NriAdaptation, NriCallError, NriRuntimeOptions
from tests.lab.nri_plugins import GoPlugin, GoPluginOptions
from tests.lab.programs import go_tool

pytestmark = pytest.mark.golang

POD = {"id": "p1", "name": "one", "namespace": "lab", "uid": "u1"}
CONTAINER = {"id": "c1", "pod_sandbox_id": "p1", "name": "main"}
SHARES = {"linux": {"resources": {"cpu": {"shares": {"value": "512"}}}}}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield Path(made)


def test_a_plugin_hears_every_event_and_its_adjustment_is_the_answer(folder: Path) -> None:
    with NriAdaptation(folder) as runtime:
        runtime.set_inventory([POD], [CONTAINER])
        with GoPlugin(runtime.socket, folder, GoPluginOptions(adjustment=SHARES)):
            runtime.wait_for_plugins(1)
            assert [each.plugin for each in runtime.synchronized().invocations] == ["10-lab"]
            runtime.run_pod(POD)
            created = runtime.start_container(POD, CONTAINER)
            updated = runtime.update_container(POD, CONTAINER, {"cpu": {"shares": {"value": "2"}}})
            runtime.call("UpdatePodSandbox", pod=POD, linux_resources={"cpu": {"shares": {"value": "2"}}})
            runtime.call("PostUpdatePodSandbox", pod=POD)
            runtime.remove_container(POD, CONTAINER)
            runtime.remove_pod(POD)

    assert created.response["adjust"]["linux"]["resources"]["cpu"] == {"shares": {"value": "512"}}
    assert [(each.call, each.plugin) for each in created.invocations] == [("CreateContainer", "10-lab")]
    assert 0 < created.invocations[0].seconds <= created.seconds < 2
    assert [each.error for each in updated.invocations] == [""]


def test_an_unsolicited_update_is_heard_and_answered(folder: Path) -> None:
    update = {"container_id": "c1", **SHARES}
    with NriAdaptation(folder) as runtime, GoPlugin(runtime.socket, folder) as plugin:
        assert plugin.update_containers([update]) == []
        assert runtime.unsolicited_updates() == [update]
        runtime.set_failed_updates([{"container_id": "c1"}])
        assert plugin.update_containers([update]) == [{"container_id": "c1"}]


def test_two_owners_of_a_field_and_a_validator_fail_the_creation(folder: Path) -> None:
    first, second = GoPluginOptions("first", "10", SHARES), GoPluginOptions("second", "20", SHARES)
    with NriAdaptation(folder) as runtime:
        with GoPlugin(runtime.socket, folder, first), GoPlugin(runtime.socket, folder, second):
            runtime.wait_for_plugins(2)
            with pytest.raises(NriCallError, match='"20-second" and "10-first" both tried to set CPUShares'):
                runtime.start_container(POD, CONTAINER)
        runtime.run_pod(POD)
        runtime.wait_for_plugins(0)
        with GoPlugin(runtime.socket, folder, GoPluginOptions(rejection="not today")):
            runtime.wait_for_plugins(1)
            with pytest.raises(NriCallError, match="not today"):
                runtime.start_container(POD, CONTAINER)


@pytest.mark.parametrize(
    ("fail_request", "keep_connected"), [(False, False), (False, True), (True, False), (True, True)]
)
def test_failure_policy_of_a_plugin_that_is_late(
    folder: Path, fail_request: bool, keep_connected: bool
) -> None:
    late = GoPluginOptions(delay_s=30.0, fail_request=fail_request, keep_connected=keep_connected)
    # The plugin's answer to Synchronize is due within it, too, on a busy machine as well.
    impatient = NriRuntimeOptions(request_timeout_s=1.0)
    with NriAdaptation(folder, impatient) as runtime, GoPlugin(runtime.socket, folder, late):
        runtime.wait_for_plugins(1)
        if fail_request:
            with pytest.raises(NriCallError, match="10-lab failed to handle CreateContainer"):
                runtime.call("CreateContainer", pod=POD, container=CONTAINER)
        else:
            created = runtime.call("CreateContainer", pod=POD, container=CONTAINER)
            assert "deadline exceeded" in created.invocations[0].error
        heard = runtime.call("RunPodSandbox", pod=POD).invocations

    assert [each.plugin for each in heard] == (["10-lab"] if keep_connected else [])


def test_a_plugin_that_the_runtime_starts_itself(folder: Path) -> None:
    (folder / "plugins").mkdir()
    shutil.copy(go_tool("nri-plugin"), folder / "plugins" / "30-started")
    with NriAdaptation(folder, NriRuntimeOptions(plugins=folder / "plugins")) as runtime:
        heard = runtime.call("RunPodSandbox", pod=POD).invocations

    assert [each.plugin for each in heard] == ["30-started"]


def test_a_required_plugin_that_is_missing(folder: Path) -> None:
    required = NriRuntimeOptions(default_validator={"Enable": True, "RequiredPlugins": ["lab"]})
    with NriAdaptation(folder, required) as runtime:
        with pytest.raises(NriCallError, match="required plugin"):
            runtime.call("CreateContainer", pod=POD, container=CONTAINER)
        with GoPlugin(runtime.socket, folder):
            runtime.wait_for_plugins(2)
            runtime.call("CreateContainer", pod=POD, container=CONTAINER)


def test_a_runtime_that_restarts_knows_what_runs(folder: Path) -> None:
    runtime = NriAdaptation(folder)
    runtime.set_inventory([POD], [CONTAINER])
    with runtime:
        runtime.call("RunPodSandbox", pod=POD)
        runtime.kill()
        runtime.start()
        with GoPlugin(runtime.socket, folder) as plugin:
            runtime.wait_for_plugins(1)

    assert plugin.synchronized["containers"] == ["c1"]
