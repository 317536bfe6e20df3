"""SetPolicyMode: what it changes, how long, and what it refuses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.core.modes import FILE, ModeOverrides
from runtimeproxy.service.api.admin import changed
from tests.daemon.driving import BATCH_SHARES, batch_pod, shares_of
from tests.daemon.test_reload import UNTOUCHED, reload
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess
from tests.service.api.conftest import status_of
from tests.service.api.test_admin import socket_of

BATCH = "batch-resource"
Status = api_pb2.PolicyStatus


@pytest.fixture
def admin(daemon: ProxyProcess) -> Iterator[Any]:
    wait_until(socket_of(daemon).exists, "the admin socket")
    with grpc.insecure_channel(f"unix:{socket_of(daemon)}") as channel:
        yield api_pb2_grpc.AdminStub(channel)


def set_mode(admin: Any, mode: str, policy: str = BATCH, **more: Any) -> Status:
    number = api_pb2.Mode.Value(f"MODE_{mode}")
    request = api_pb2.SetPolicyModeRequest(policy=policy, mode=number, **more)
    answer: Status = admin.SetPolicyMode(request, timeout=30, wait_for_ready=True).policy
    return answer


def of_batch(api: Any) -> Status:
    return next(each for each in status_of(api).policies if each.name == BATCH)


def shares(client: CriClient, name: str) -> int:
    found: int = shares_of(batch_pod(client, name).run().create())
    return found


def test_it_stands_above_reload_and_restart(
    admin: Any, own_api: Any, client: CriClient, daemon: ProxyProcess
) -> None:
    found = set_mode(admin, "DRY_RUN", reason="ticket 7")
    assert (found.mode, found.mode_source) == (api_pb2.MODE_DRY_RUN, api_pb2.MODE_SOURCE_COMMAND)
    assert found.configured_mode == api_pb2.MODE_ENFORCE
    assert found.overrides[0].reason == "ticket 7"
    assert shares(client, "one") == UNTOUCHED
    reload(daemon, f'[policies.{BATCH}]\nmode = "enforce"\n')
    assert shares(client, "two") == UNTOUCHED
    daemon.terminate()
    daemon.start()
    assert of_batch(own_api).mode == api_pb2.MODE_DRY_RUN
    assert shares(client, "three") == UNTOUCHED
    assert set_mode(admin, "UNSPECIFIED").mode == api_pb2.MODE_ENFORCE
    assert shares(client, "four") == BATCH_SHARES


def test_off_gives_running_pods_their_values_back(admin: Any, own_api: Any, client: CriClient) -> None:
    batch_pod(client, "one").run().create().start()

    def owners() -> set[str]:
        request = api_pb2.ExplainRequest(pod="default/one")
        targets = own_api.Explain(request, timeout=30).targets
        return {claim.owner for target in targets for field in target.fields for claim in field.claims}

    assert BATCH in owners()
    found = set_mode(admin, "OFF")
    assert (found.state, found.mode) == (Status.STATE_DISABLED, api_pb2.MODE_OFF)
    wait_until(lambda: BATCH not in owners(), "the values are given back")


def test_for_some_pods_only(admin: Any, own_api: Any, client: CriClient) -> None:
    selector = api_pb2.PodSelector(namespaces=["elsewhere"])
    found = set_mode(admin, "OFF", selector=selector)
    assert found.mode == api_pb2.MODE_ENFORCE
    assert list(found.overrides[0].selector.namespaces) == ["elsewhere"]
    assert shares(client, "one") == BATCH_SHARES
    set_mode(admin, "OFF", selector=api_pb2.PodSelector(namespaces=["default"]))
    assert shares(client, "two") == UNTOUCHED
    set_mode(admin, "UNSPECIFIED")
    assert not of_batch(own_api).overrides


def test_for_a_time(admin: Any, own_api: Any, client: CriClient, daemon: ProxyProcess) -> None:
    request = api_pb2.SetPolicyModeRequest(policy=BATCH, mode=api_pb2.MODE_OFF)
    request.duration.FromSeconds(1)
    assert admin.SetPolicyMode(request, timeout=30, wait_for_ready=True).policy.HasField("mode_until")
    wait_until(lambda: of_batch(own_api).mode == api_pb2.MODE_ENFORCE, "it has ended")
    assert shares(client, "one") == BATCH_SHARES
    wait_until(lambda: any("set by command has ended" in line for line in daemon.log), "the line")


def test_a_policy_that_is_disabled(admin: Any, own_api: Any) -> None:
    disabled = next(each.name for each in status_of(own_api).policies if each.state == Status.STATE_DISABLED)
    found = set_mode(admin, "DRY_RUN", policy=disabled)
    assert (found.mode, found.configured_mode) == (api_pb2.MODE_DRY_RUN, api_pb2.MODE_OFF)
    assert found.state != Status.STATE_DISABLED
    assert set_mode(admin, "UNSPECIFIED", policy=disabled).state == Status.STATE_DISABLED


def test_a_policy_that_is_not_there(admin: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        set_mode(admin, "OFF", policy="no-such")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert BATCH in str(caught.value.details())


def test_an_owner_of_claims(admin: Any, own_api: Any, client: CriClient, daemon: ProxyProcess) -> None:
    batch_pod(client, "one").run()
    sequences = itertools.count(1)

    def claim() -> api_pb2.SetClaimsResponse:
        key = api_pb2.ClaimKey(
            target=api_pb2.ClaimTarget(qos_class="BestEffort"),
            field="cpu.cfs_quota_us",
            role=api_pb2.ExplainedClaim.ROLE_AT_MOST,
        )
        claims = [api_pb2.Claim(key=key, value="50000")]
        request = api_pb2.SetClaimsRequest(
            owner="cpu-suppress", session="s", sequence=next(sequences), is_whole=True, claims=claims
        )
        found: api_pb2.SetClaimsResponse = admin.SetClaims(request, timeout=30, wait_for_ready=True)
        return found

    def owner() -> api_pb2.ClaimOwner:
        return next(each for each in status_of(own_api).claim_owners if each.name == "cpu-suppress")

    assert claim().problem == ""
    found = set_mode(admin, "DRY_RUN", policy="plugin:cpu-suppress", reason="ticket 8")
    assert (found.mode, found.mode_source) == (api_pb2.MODE_DRY_RUN, api_pb2.MODE_SOURCE_COMMAND)
    assert "is in mode dry-run" in claim().problem
    daemon.terminate()
    daemon.start()
    assert owner().mode == api_pb2.MODE_DRY_RUN
    reload(daemon, '[owners.cpu-suppress]\nmode = "enforce"\n')
    assert owner().mode == api_pb2.MODE_DRY_RUN
    assert set_mode(admin, "OFF", policy="plugin:cpu-suppress").state == Status.STATE_DISABLED
    assert "is off" in claim().refused[0].reason
    assert set_mode(admin, "UNSPECIFIED", policy="plugin:cpu-suppress").mode == api_pb2.MODE_ENFORCE
    assert (claim().problem, owner().mode) == ("", api_pb2.MODE_ENFORCE)
    with pytest.raises(grpc.RpcError, match="not for some pods"):
        set_mode(admin, "OFF", policy="plugin:cpu-suppress", selector=api_pb2.PodSelector(namespaces=["a"]))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"selector": {"namespaces": ["Not A Name"]}}, "namespaces"),
    ({"selector": {"match_expressions": [{"key": "a", "operator": "Is"}]}}, "'Is' is not one of"),
    ({"mode": 9}, "mode 9 is not known"),
    ({"duration": {"nanos": 5}}, "is not in 1 s to"),
    ({"duration": {"seconds": 10**9}}, "is not in 1 s to"),
]


@pytest.mark.parametrize(("fields", "text"), BAD)
def test_requests_that_cannot_be_used(fields: dict[str, Any], text: str) -> None:
    request = api_pb2.SetPolicyModeRequest(**{"policy": BATCH, "mode": api_pb2.MODE_OFF, **fields})
    with pytest.raises(ValueError, match=text):
        changed((), request, 0.0)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2}', '{"version": 1, "overrides": [{}]}'])
async def test_a_file_that_cannot_be_used_does_not_count(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    modes = ModeOverrides(tmp_path)
    with ThreadPoolExecutor(1) as thread:
        await modes.read(thread)
    assert (modes.present, modes.is_read, bool(modes.file.unusable)) == ((), True, True)
