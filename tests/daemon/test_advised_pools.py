"""An advisor's claims on Katalyst's pools, on a real daemon: what counts, what is refused, how it ends."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.cli import main
from runtimeproxy.testing import CgroupFiles, FakeRuntime
from runtimeproxy.units import parse_cpu_list
from tests.daemon.conftest import Daemons
from tests.daemon.driving import Pod
from tests.daemon.failures.claims import admin_of
from tests.daemon.pool_site import RECLAIMED, SHARED, PoolSite, pool_site
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ManagerProcess

SHORT_LEASE = "import runtimeproxy.ledger.leases as it; it.LEASE_S = %g"
MANAGED = """
[qosmanager]
interval_s = 0.1
[plugins.katalyst-advisor]
mode = "enforce"
[plugins.katalyst-advisor.options]
window_s = 1.0
hold_s = 0.5
fall_percent = 100
"""
LATE = "katalyst-advisor is late: its advice has ended with its lease"
MISSING = "The configuration asks for katalyst-advisor, and no QoS manager runs"
Said: TypeAlias = tuple[str, str, str]
"""Pool, field and value."""
SIZES: tuple[Said, ...] = (
    ("share", "pool.required_cpus", "3"),
    ("reclaim", "pool.headroom_millicpu", "7000"),
    ("reclaim", "pool.headroom_bytes", "1073741824"),
)
NONSENSE: tuple[tuple[Said, str], ...] = (
    (("share", "pool.required_cpus", "0"), "not in 1 to"),
    (("share", "pool.required_cpus", "many"), "not a whole number"),
    (("share", "pool.required_cpus", ""), "not a whole number"),
    (("share", "pool.required_cpus", "9" * 30), "not a whole number"),
    (("share", "pool.required_cpus", "-3"), "not in 1 to"),
    (("share", "pool.required_cpus", "nan"), "not a whole number"),
    (("reclaim", "pool.headroom_millicpu", "-1"), "not in 0 to"),
    (("reclaim", "pool.headroom_bytes", "inf"), "not a whole number"),
    (("gone", "pool.required_cpus", "3"), "there is no pool gone"),
    (("reclaim", "pool.required_cpus", "3"), "there is no pool reclaim of shared_cores"),
    (("share", "pool.headroom_bytes", "3"), "only reclaim"),
    (("share", "pool.size", "3"), "may not claim pool.size"),
    (("share", "cpu.shares", "3"), "may not claim cpu.shares"),
)


def claim(said: Said) -> api_pb2.Claim:
    pool, field, value = said
    target = api_pb2.ClaimTarget(pool=pool)
    key = api_pb2.ClaimKey(target=target, field=field, role=api_pb2.ExplainedClaim.ROLE_SET)
    return api_pb2.Claim(key=key, value=value, reason="by usage")


def advise(admin: Any, *said: Said) -> dict[int, str]:
    """Claims this and nothing else; returns why claims are refused, by their place."""
    request = api_pb2.SetClaimsRequest(
        owner="katalyst-advisor", session="one", sequence=1, is_whole=True, claims=map(claim, said)
    )
    answer = admin.SetClaims(request, timeout=30, wait_for_ready=True)
    return {each.index: each.reason for each in answer.refused}


def node_of(site: PoolSite) -> api_pb2.GetNodeResponse:
    with CriClient(site.daemon.socket) as client:
        stub = api_pb2_grpc.RuntimeProxyStub(client.channel)
        return stub.GetNode(api_pb2.GetNodeRequest(), timeout=30, wait_for_ready=True)


def said_by(site: PoolSite, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Exit code and text of a command, on one line."""
    code = main((*words, "--koord-runtimeproxy-endpoint", str(site.daemon.socket)))
    return code, " ".join(capsys.readouterr().out.split())


def count(site: PoolSite, pod: Pod) -> int:
    # 0 while the file is just being written.
    return len(parse_cpu_list(site.cpus(pod)))


@pytest.mark.slow
def test_pools_have_what_an_advisor_says_as_long_as_its_lease_lasts(
    daemons: Daemons, cgroup_files: CgroupFiles, runtime: FakeRuntime, socket_folder: Path
) -> None:
    options, short = "enable_reclaim = true", SHORT_LEASE % 3.0
    with pool_site(daemons, cgroup_files, runtime, socket_folder, options=options, statements=short) as site:
        web, batch = site.start("web", SHARED, 6), site.start("batch", RECLAIMED, 1)

        def has(share: int, reclaim: int) -> bool:
            return (count(site, web), count(site, batch)) == (share, reclaim)

        wait_until(lambda: has(6, 8), "sizes by request")
        with admin_of(site.daemon) as admin:
            refused = advise(admin, *SIZES, *(said for said, _ in NONSENSE))
            for index, (said, reason) in enumerate(NONSENSE, len(SIZES)):
                assert reason in refused.get(index, ""), said
            # However slow the machine is, the lease is renewed.
            wait_until(lambda: not advise(admin, *SIZES) and has(3, 11), "the advised sizes", 60)
            found: list[api_pb2.GetNodeResponse] = []

            def shows_advice() -> bool:
                advise(admin, *SIZES)
                found.append(node_of(site))
                return len(found[-1].katalyst_advice) > 1

            wait_until(shows_advice, "the advice in the node", 60)
        advice = {each.pool: each for each in found[-1].katalyst_advice}
        assert advice["share"].required_cpus == 3
        assert advice["reclaim"].headroom_millicpu == 7_000
        assert (advice["share"].owner, advice["share"].reason) == ("katalyst-advisor", "by usage")
        configured = found[-1].katalyst_pool_settings
        assert (configured.enable_reclaim, configured.overlap) == (True, False)
        assert configured.least_reclaim_cpus == 4
        # Nothing renews it, also over a restart: sizes follow from requests.
        site.daemon.kill()
        site.daemon.start()
        wait_until(lambda: has(6, 8), "sizes by request", 60)
        assert not node_of(site).katalyst_advice
        # More than there is: reclaimed pods keep what is theirs at least.
        much = ("share", "pool.required_cpus", "400")
        with admin_of(site.daemon) as admin:
            wait_until(lambda: not advise(admin, much) and has(10, 4), "the largest size", 60)
            wait_until(
                lambda: not advise(admin, much) and "is 400, the node has 14" in str(site.problems),
                "the problem",
                60,
            )
            admin.ReleaseClaims(api_pb2.ReleaseClaimsRequest(owner="katalyst-advisor"), timeout=30)
        wait_until(lambda: has(6, 8), "sizes by request", 60)
        wait_until(lambda: not site.problems, "the end of all problems")


@pytest.mark.slow
def test_pools_follow_the_advisor_of_a_real_manager_until_it_is_late(
    daemons: Daemons,
    cgroup_files: CgroupFiles,
    runtime: FakeRuntime,
    socket_folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pool_site(
        daemons,
        cgroup_files,
        runtime,
        socket_folder,
        options="enable_reclaim = true",
        more=MANAGED,
        # Longer than the time between two renewals.
        statements=SHORT_LEASE % 6.0,
    ) as site:
        web, batch = site.start("web", SHARED, 6), site.start("batch", RECLAIMED, 1)
        used_us = 0

        def use(cores_s: float = 0.0) -> None:
            """What the service has used of the CPUs so far."""
            nonlocal used_us
            used_us += int(cores_s * 1_000_000)
            cgroup_files.write(web.config.linux.cgroup_parent, "cpu.stat", f"usage_usec {used_us}\n")

        def has_when_busy(share: int, reclaim: int) -> bool:
            use(20.0)
            return has(share, reclaim)

        def has(share: int, reclaim: int) -> bool:
            return (count(site, web), count(site, batch)) == (share, reclaim)

        use()
        wait_until(lambda: has(6, 8), "sizes by request")
        daemon = site.daemon
        manager = ManagerProcess(daemon.folder, daemon.config_file, daemon.socket, daemon.options.environment)
        try:
            manager.start()
            # An idle service needs one CPU.
            wait_until(lambda: has(1, 13), f"the idle size; {manager.log[-10:]}", 60)
            # One that uses all that it may has what it requests, as long as it does so.
            wait_until(lambda: has_when_busy(6, 8), "the busy size", 60)
            wait_until(lambda: has(1, 13), "the idle size again", 60)
            # What it has used when that was last said is a matter of time.
            says = "katalyst-advisor says of pool share: it needs 1 CPUs (used "
            wait_until(lambda: says in said_by(site, capsys, "status")[1], "the advice in the status", 60)
            says_too = "pool share: 1 pod requests 6000m, that is 6 CPUs; the advisor says"
            wait_until(
                lambda: says_too in said_by(site, capsys, "explain", "web")[1], "the same in explain", 60
            )
            _, text = said_by(site, capsys, "audit")
            assert "pool.required_cpus" in text
            assert "with the margin" in text

            # It stands still.
            manager.signal(signal.SIGSTOP)
            wait_until(lambda: has(6, 8), "sizes by request", 60)
            wait_until(lambda: MISSING in str(site.status().problems), "a missing manager", 60)
            code, text = said_by(site, capsys, "status")
            assert code == 1
            assert LATE in text
            manager.signal(signal.SIGCONT)
            wait_until(lambda: has(1, 13), "the idle size", 60)
            wait_until(lambda: not site.status().problems, "the end of all problems", 60)

            # The daemon is killed: the manager goes on with the next one.
            daemon.kill()
            daemon.start()
            wait_until(lambda: says in str(node_advice(site)), "the advice", 60)
            wait_until(lambda: has(1, 13), "the idle size", 60)
        finally:
            manager.close()


def node_advice(site: PoolSite) -> list[str]:
    return [each for each in site.status().notes if "says of pool" in each]
