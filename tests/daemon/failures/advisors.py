"""Advisors of Katalyst's pools that are late or missing, or say what cannot be."""

from __future__ import annotations

from typing import Any, Final

from cri_api.runtimeproxy.v1 import api_pb2
from tests.daemon.failures.claims import SHORT_LEASE, admin_of
from tests.daemon.failures.scene import Row, Scene
from tests.daemon.failures.values import start_with_katalysts_pools
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess

SWITCHED_ON: Final = '[plugins.katalyst-advisor]\nmode = "enforce"\n'


def advise(admin: Any, *millicpu: str) -> list[str]:
    """Says how large the headroom is, once for each text; returns why claims are refused."""
    key = api_pb2.ClaimKey(
        target=api_pb2.ClaimTarget(pool="reclaim"),
        field="pool.headroom_millicpu",
        role=api_pb2.ExplainedClaim.ROLE_SET,
    )
    request = api_pb2.SetClaimsRequest(
        owner="katalyst-advisor",
        session="one",
        sequence=1,
        is_whole=True,
        claims=[api_pb2.Claim(key=key, value=each) for each in millicpu],
    )
    answer = admin.SetClaims(request, timeout=30, wait_for_ready=True)
    return [each.reason for each in answer.refused]


def late_or_missing(scene: Scene) -> ProxyProcess:
    daemon = start_with_katalysts_pools(scene, SWITCHED_ON, SHORT_LEASE)
    with admin_of(daemon) as admin:
        wait_until(lambda: not advise(admin, "2000"), "pools to advise on")
    scene.wait_for(daemon, "claim_lapses_total", owner="katalyst-advisor")
    scene.wait_for(daemon, "qos_plugin_missing", plugin="katalyst-advisor")
    scene.wait_for_zero(daemon, "cpu_pools_advised")
    return daemon


def nonsense(scene: Scene) -> ProxyProcess:
    daemon = start_with_katalysts_pools(scene)
    with admin_of(daemon) as admin:
        # There are 16 CPUs.
        wait_until(lambda: not advise(admin, "7000000"), "pools to advise on")
        wait_until(
            lambda: scene.wait_for(daemon, "cpu_pool_headroom_cores").of("cpu_pool_headroom_cores") == 16,
            "the largest headroom",
        )
        assert len(advise(admin, "-1", "nan", "1.5")) == 3
    scene.wait_for(daemon, "claims_refused_total", 3, owner="katalyst-advisor", cause="invalid")
    return daemon


ROWS: Final = {
    "an advisor of Katalyst's pools is late or missing": Row(
        late_or_missing,
        lambda s: "its advice has ended" in str(s.problems) and "The configuration asks" in str(s.problems),
    ),
    "an advisor of Katalyst's pools says what cannot be": Row(
        nonsense, lambda s: "3 claims of katalyst-advisor were refused" in str(s.problems)
    ),
}
