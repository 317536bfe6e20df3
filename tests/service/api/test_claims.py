"""Claims and evictions through a daemon's admin socket."""

from __future__ import annotations

import time
from typing import Any

import grpc
import pytest

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.testing import CallError, CgroupFiles, FakeRuntime
from runtimeproxy.testing.builders import container_config, create_container_request, pod_sandbox_config
from tests.daemon.conftest import Daemons
from tests.daemon.driving import Pod, batch_pod
from tests.daemon.upgrading import Family
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess
from tests.service.api.conftest import status_of
from tests.service.api.test_admin import admin, channel, socket_of

__all__ = ["admin", "channel"]

CLASS = "/kubepods/besteffort"
QUOTA, CPUS = "cpu.cfs_quota_us", "cpuset.cpus"
ExplainedClaim = api_pb2.ExplainedClaim
TAKEN = api_pb2.SetClaimsResponse.OUTCOME_TAKEN
WHOLE = api_pb2.SetClaimsResponse.OUTCOME_SEND_WHOLE_SET
TAKEN_OVER = api_pb2.SetClaimsResponse.OUTCOME_TAKEN_OVER
Evicted = api_pb2.EvictResponse


def at_most(quota_us: int) -> api_pb2.Claim:
    return api_pb2.Claim(
        key=api_pb2.ClaimKey(
            target=api_pb2.ClaimTarget(qos_class="BestEffort"), field=QUOTA, role=ExplainedClaim.ROLE_AT_MOST
        ),
        value=str(quota_us),
        reason="20 cores, 70 % busy",
    )


def add(container: str, amount_us: int) -> api_pb2.Claim:
    return api_pb2.Claim(
        key=api_pb2.ClaimKey(
            target=api_pb2.ClaimTarget(container_id=container), field=QUOTA, role=ExplainedClaim.ROLE_ADD
        ),
        value=str(amount_us),
        ceiling=200_000,
    )


def set_claims(
    admin: Any,
    owner: str,
    sequence: int,
    *claims: api_pb2.Claim,
    session: str = "one",
    **more: Any,
) -> api_pb2.SetClaimsResponse:
    request = api_pb2.SetClaimsRequest(owner=owner, session=session, sequence=sequence, claims=claims, **more)
    answer: api_pb2.SetClaimsResponse = admin.SetClaims(request, timeout=30, wait_for_ready=True)
    return answer


def get_claims(admin: Any, owner: str, session: str = "") -> api_pb2.OwnedClaims:
    request = api_pb2.GetClaimsRequest(owner=owner, session=session)
    (found,) = admin.GetClaims(request, timeout=30, wait_for_ready=True).owners
    owned: api_pb2.OwnedClaims = found
    return owned


def code_of(call: Any, request: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        call(request, timeout=30, wait_for_ready=True)
    code: grpc.StatusCode = caught.value.code()
    return code


def ls_pod(client: CriClient, name: str = "web") -> Pod:
    """A running pod with one CPU."""
    made = Pod(client, pod_sandbox_config(name, qos="LS")).run()
    config = container_config("main", pod=made.config)
    config.linux.resources.cpu_quota, config.linux.resources.cpu_period = 100_000, 100_000
    request = create_container_request(made.id, config, made.config)
    made.container = client.runtime.CreateContainer(request, timeout=CALL_TIMEOUT_S).container_id
    return made.start()


def quota(files: CgroupFiles, cgroup: str) -> str:
    return (files.read(cgroup, "cpu.max").split() or [""])[0]


def cgroup_of(own_api: Any, name: str) -> str:
    request = api_pb2.WatchPodsRequest(snapshot_only=True)
    (answer,) = own_api.WatchPods(request, timeout=30, wait_for_ready=True)
    (found,) = (box.cgroup for pod in answer.snapshot.pods if pod.name == name for box in pod.containers)
    return str(found)


def ready(own_api: Any) -> None:
    wait_until(lambda: status_of(own_api).records.is_recovered, "the records are compared")


def test_claims_are_set_explained_and_released(
    admin: Any, own_api: Any, client: CriClient, cgroup_files: CgroupFiles
) -> None:
    web = ls_pod(client)
    cgroup = cgroup_of(own_api, "web")
    response = set_claims(admin, "cpu-burst", 1, add(web.container, 50_000), is_whole=True)
    assert (response.outcome, list(response.refused), list(response.failed)) == (TAKEN, [], [])
    assert (response.lease.seconds, response.problem) == (15, "")
    assert quota(cgroup_files, cgroup) == "150000"
    request = api_pb2.ExplainRequest(pod="web", container="main")
    (target,) = own_api.Explain(request, timeout=30).targets
    field = next(each for each in target.fields if each.name == QUOTA)
    (claim,) = (each for each in field.claims if each.owner == "plugin:cpu-burst")
    assert (claim.role, claim.value, claim.effect) == (
        ExplainedClaim.ROLE_ADD,
        "50000",
        ExplainedClaim.EFFECT_USED,
    )
    assert 0 < claim.lease_end.seconds - time.time() < 16
    (owner,) = (each for each in status_of(own_api).claim_owners if each.name == "cpu-burst")
    assert (owner.state, owner.session, owner.sequence) == (api_pb2.ClaimOwner.STATE_LEASED, "one", 1)
    assert (owner.claims, owner.refused, owner.requests) == (1, 0, 1)
    released = admin.ReleaseClaims(api_pb2.ReleaseClaimsRequest(owner="cpu-burst"), timeout=30)
    assert (released.released, quota(cgroup_files, cgroup)) == (1, "100000")


def test_what_cannot_be_used_is_refused_alone(admin: Any, client: CriClient) -> None:
    web = ls_pod(client)
    good, unknown, role, value, empty = (
        add(web.container, 50_000),
        add("gone", 1),
        add(web.container, 1),
        add(web.container, 1),
        api_pb2.Claim(),
    )
    role.key.role = ExplainedClaim.ROLE_AT_MOST
    value.value = "much"
    response = set_claims(admin, "cpu-burst", 1, unknown, role, empty, good, is_whole=True)
    Refused = api_pb2.RefusedClaim  # noqa: N806 - a class
    assert [(each.index, each.cause) for each in response.refused] == [
        (0, Refused.CAUSE_UNKNOWN_TARGET),
        (1, Refused.CAUSE_NOT_ALLOWED),
        (2, Refused.CAUSE_INVALID),
    ]
    assert "may not claim cpu.cfs_quota_us in the role at_most" in response.refused[1].reason
    assert len(get_claims(admin, "cpu-burst").claims) == 1
    response = set_claims(admin, "cpu-burst", 2, value)
    assert [each.cause for each in response.refused] == [Refused.CAUSE_INVALID]
    assert not get_claims(admin, "cpu-burst").claims


def test_requests_that_cannot_be_used(admin: Any) -> None:
    Set, Get = api_pb2.SetClaimsRequest, api_pb2.GetClaimsRequest  # noqa: N806 - classes
    assert code_of(admin.SetClaims, Set(owner="unknown", session="a")) is grpc.StatusCode.NOT_FOUND
    assert code_of(admin.SetClaims, Set(owner="cpu-burst")) is grpc.StatusCode.INVALID_ARGUMENT
    long = Set(owner="cpu-burst", session="x" * 65)
    assert code_of(admin.SetClaims, long) is grpc.StatusCode.INVALID_ARGUMENT
    assert code_of(admin.GetClaims, Get(owner="unknown")) is grpc.StatusCode.NOT_FOUND
    assert code_of(admin.GetClaims, Get(session="a")) is grpc.StatusCode.INVALID_ARGUMENT
    released = api_pb2.ReleaseClaimsRequest(owner="unknown")
    assert code_of(admin.ReleaseClaims, released) is grpc.StatusCode.NOT_FOUND
    many = Set(owner="cpu-burst", session="a", is_whole=True, claims=[add("x", 1)] * 2_001)
    assert code_of(admin.SetClaims, many) is grpc.StatusCode.RESOURCE_EXHAUSTED
    # Refused before it is parsed: parsed it would take 100 MB.
    empty = Set(owner="cpu-burst", session="a", claims=[api_pb2.Claim()] * (1 << 20))
    with pytest.raises(grpc.RpcError, match="at most 2097152 are possible"):
        admin.SetClaims(empty, timeout=30)
    many = Set(owner="cpu-burst", session="a", is_whole=True, ended=[add("x", 1).key] * 2_001)
    assert code_of(admin.SetClaims, many) is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_sessions(admin: Any, client: CriClient) -> None:
    batch_pod(client).run()
    assert set_claims(admin, "cpu-suppress", 5, at_most(50_000)).outcome == WHOLE
    assert set_claims(admin, "cpu-suppress", 5, at_most(50_000), is_whole=True).outcome == TAKEN
    assert set_claims(admin, "cpu-suppress", 6).outcome == TAKEN
    assert set_claims(admin, "cpu-suppress", 8).outcome == WHOLE
    owned = get_claims(admin, "cpu-suppress", "two")
    assert [(each.value, each.reason) for each in owned.claims] == [("50000", "20 cores, 70 % busy")]
    assert set_claims(admin, "cpu-suppress", 7, is_whole=True).outcome == TAKEN_OVER
    request = api_pb2.ReleaseClaimsRequest(owner="cpu-suppress", session="one")
    assert admin.ReleaseClaims(request, timeout=30).outcome == TAKEN_OVER
    assert set_claims(admin, "cpu-suppress", 1, at_most(40_000), session="two").outcome == TAKEN


def test_without_cgroups_there_are_no_claims(daemons: Daemons) -> None:
    daemon = daemons.start("[cgroups]\nenabled = false\n")
    wait_until(socket_of(daemon).exists, "the admin socket")
    with grpc.insecure_channel(f"unix:{socket_of(daemon)}") as opened:
        stub = api_pb2_grpc.AdminStub(opened)
        request = api_pb2.GetClaimsRequest()
        assert code_of(stub.GetClaims, request) is grpc.StatusCode.FAILED_PRECONDITION


class TestRestarts:
    """The daemon ends in three ways, and nothing jumps."""

    @pytest.fixture
    def claimed(self, admin: Any, client: CriClient, own_api: Any, cgroup_files: CgroupFiles) -> str:
        """A pod with claims; its container's cgroup."""
        web = ls_pod(client)
        batch_pod(client).run()
        cgroup = cgroup_of(own_api, "web")
        set_claims(admin, "cpu-burst", 1, add(web.container, 10_000), is_whole=True)
        set_claims(admin, "cpu-burst", 2, add(web.container, 50_000))
        set_claims(admin, "cpu-suppress", 1, at_most(50_000), is_whole=True)
        assert (quota(cgroup_files, cgroup), quota(cgroup_files, CLASS)) == ("150000", "50000")
        return cgroup

    def test_kill(self, claimed: str, daemon: ProxyProcess, cgroup_files: CgroupFiles) -> None:
        daemon.kill()
        daemon.start()
        wait_until(socket_of(daemon).exists, "the admin socket")
        options = (("grpc.use_local_subchannel_pool", 1),)
        with grpc.insecure_channel(f"unix:{socket_of(daemon)}", options=options) as opened:
            admin, api = api_pb2_grpc.AdminStub(opened), api_pb2_grpc.RuntimeProxyStub(opened)
            ready(api)
            assert (quota(cgroup_files, claimed), quota(cgroup_files, CLASS)) == ("150000", "50000")
            owned = get_claims(admin, "cpu-burst")
            assert [each.value for each in owned.claims] == ["50000"]
            assert owned.owner.state == api_pb2.ClaimOwner.STATE_RESTORED
            assert set_claims(admin, "cpu-burst", 3).outcome == WHOLE
            (claim,) = owned.claims
            assert set_claims(admin, "cpu-burst", 4, claim, is_whole=True).outcome == TAKEN
            assert quota(cgroup_files, claimed) == "150000"
            admin.ReleaseClaims(api_pb2.ReleaseClaimsRequest(owner="cpu-suppress"), timeout=30)
            admin.ReleaseClaims(api_pb2.ReleaseClaimsRequest(owner="cpu-burst"), timeout=30)
        assert (quota(cgroup_files, claimed), quota(cgroup_files, CLASS)) == ("100000", "max")

    def test_upgrade(self, claimed: str, daemon: ProxyProcess, cgroup_files: CgroupFiles) -> None:
        with Family(daemon) as family:
            before = family.serving
            after = family.upgrade()
            family.wait_until_ended(before)
            options = (("grpc.use_local_subchannel_pool", 1),)
            with grpc.insecure_channel(f"unix:{socket_of(daemon)}", options=options) as opened:
                admin, api = api_pb2_grpc.AdminStub(opened), api_pb2_grpc.RuntimeProxyStub(opened)
                wait_until(lambda: status_of(api).daemon.pid == after, "the successor's admin socket")
                owned = get_claims(admin, "cpu-burst")
                assert (owned.owner.session, owned.owner.sequence) == ("one", 2)
                assert owned.owner.state == api_pb2.ClaimOwner.STATE_LEASED
                assert set_claims(admin, "cpu-burst", 3).outcome == TAKEN
                assert (quota(cgroup_files, claimed), quota(cgroup_files, CLASS)) == ("150000", "50000")

    @pytest.mark.slow
    def test_a_manager_that_does_not_come_back(
        self, claimed: str, daemon: ProxyProcess, cgroup_files: CgroupFiles
    ) -> None:
        daemon.kill()
        daemon.start()
        wait_until(lambda: quota(cgroup_files, claimed) == "100000", "the lease ends", timeout_s=60)
        assert quota(cgroup_files, CLASS) == "50000"


class TestEvictions:
    """Pods are evicted by their owners, within bounds."""

    @pytest.fixture(autouse=True)
    def _ready(self, own_api: Any) -> None:
        ready(own_api)

    def evict(self, admin: Any, pod: Pod, **more: Any) -> api_pb2.EvictResponse:
        request = api_pb2.EvictRequest(
            pod_uid=pod.config.metadata.uid,
            **{
                "owner": "memory-evict",
                "reason": "95 % of 64 GiB are used: 3 GiB are to be released",
                **more,
            },
        )
        answer: api_pb2.EvictResponse = admin.Evict(request, timeout=60, wait_for_ready=True)
        return answer

    def test_all_containers_end_though_one_cannot_be_stopped(
        self, admin: Any, own_api: Any, client: CriClient, runtime: FakeRuntime
    ) -> None:
        pod = batch_pod(client).run().create().start()
        side = create_container_request(pod.id, container_config("side", pod=pod.config), pod.config)
        other = client.runtime.CreateContainer(side, timeout=CALL_TIMEOUT_S).container_id
        runtime.on("StopContainer", error=CallError("INTERNAL", "stuck"), times=1)
        answer = self.evict(admin, pod)
        assert (answer.outcome, answer.method) == (
            Evicted.OUTCOME_FAILED,
            Evicted.METHOD_STOP_CONTAINERS,
        )
        assert {each.id for each in answer.containers} == {pod.container, other}
        assert [bool(each.error) for each in answer.containers].count(True) == 1
        stopped = [each.message for each in runtime.recorded.of("StopContainer")]
        assert {each.container_id for each in stopped} == {pod.container, other}
        assert {each.timeout for each in stopped} == {0}
        status = status_of(own_api).evictions
        assert (status.failed, status.evicted) == (1, 0)
        assert status.recent[0].pod_uid == pod.config.metadata.uid

    def test_bounds_and_classes(self, admin: Any, client: CriClient, runtime: FakeRuntime) -> None:
        pod = batch_pod(client).run().create().start()
        dry = self.evict(admin, pod, is_dry_run=True)
        assert (dry.outcome, runtime.recorded.of("StopContainer")) == (Evicted.OUTCOME_DRY_RUN, [])
        assert self.evict(admin, pod, owner="cpu-burst").outcome == Evicted.OUTCOME_REFUSED
        done = self.evict(admin, pod)
        assert (done.outcome, [each.name for each in done.containers]) == (Evicted.OUTCOME_EVICTED, ["main"])
        again = self.evict(admin, pod)
        assert again.outcome == Evicted.OUTCOME_REFUSED
        assert again.retry_at.seconds > time.time() + 250
        for qos in ("SYSTEM", "LSE"):
            never = Pod(client, pod_sandbox_config(qos.lower(), qos=qos)).run().create().start()
            refused = self.evict(admin, never)
            assert refused.outcome == Evicted.OUTCOME_REFUSED
            assert qos in refused.reason
        assert len(runtime.recorded.of("StopContainer")) == 1

    def test_what_cannot_be_evicted(self, admin: Any, client: CriClient) -> None:
        pod = batch_pod(client).run()
        assert self.evict(admin, pod).outcome == Evicted.OUTCOME_NOTHING_TO_STOP
        request = api_pb2.EvictRequest(owner="memory-evict", pod_uid="gone")
        assert code_of(admin.Evict, request) is grpc.StatusCode.NOT_FOUND
        request = api_pb2.EvictRequest(owner="unknown", pod_uid=pod.config.metadata.uid)
        assert code_of(admin.Evict, request) is grpc.StatusCode.NOT_FOUND
        request = api_pb2.EvictRequest(owner="memory-evict", pod_uid=pod.config.metadata.uid)
        request.grace_period.seconds = 3601
        assert code_of(admin.Evict, request) is grpc.StatusCode.INVALID_ARGUMENT
        request = api_pb2.EvictRequest(owner="memory-evict", pod_uid="x", reason="x" * 1025)
        assert code_of(admin.Evict, request) is grpc.StatusCode.INVALID_ARGUMENT

    @pytest.mark.slow
    def test_the_bounds_survive_kills_and_upgrades(
        self, daemons: Daemons, runtime: FakeRuntime, own_api: Any
    ) -> None:
        daemon = daemons.start("[eviction]\nmost_pods = 2\ninterval_s = 3600\nsame_pod_s = 3600\n")
        with CriClient(daemon.socket) as client:
            pods = [batch_pod(client, f"pod-{number}").run().create().start() for number in range(3)]

        def outcomes() -> list[str]:
            """Of an eviction of each pod, by a new process."""
            wait_until(socket_of(daemon).exists, "the admin socket")
            options = (("grpc.use_local_subchannel_pool", 1),)
            with grpc.insecure_channel(f"unix:{socket_of(daemon)}", options=options) as opened:
                ready(api_pb2_grpc.RuntimeProxyStub(opened))
                admin = api_pb2_grpc.AdminStub(opened)
                answers = [self.evict(admin, pod) for pod in pods]
            return [Evicted.Outcome.Name(each.outcome).removeprefix("OUTCOME_") for each in answers]

        assert outcomes() == ["EVICTED", "EVICTED", "REFUSED"]
        daemon.kill()
        daemon.start()
        assert outcomes() == ["REFUSED", "REFUSED", "REFUSED"]
        with Family(daemon) as family:
            before = family.serving
            family.upgrade()
            family.wait_until_ended(before)
            assert outcomes() == ["REFUSED", "REFUSED", "REFUSED"]
        assert len(runtime.recorded.of("StopContainer")) == 2

    def test_the_grace_period_is_the_runtimes(
        self, admin: Any, client: CriClient, runtime: FakeRuntime
    ) -> None:
        pod = batch_pod(client).run().create().start()
        request = api_pb2.EvictRequest(owner="cpu-evict", pod_uid=pod.config.metadata.uid)
        request.grace_period.seconds = 7
        assert admin.Evict(request, timeout=60).outcome == Evicted.OUTCOME_EVICTED
        (call,) = runtime.recorded.of("StopContainer")
        assert call.message.timeout == 7
