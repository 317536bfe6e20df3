"""Messages of the API, as the tests show them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp

from cri_api.runtimeproxy.v1 import api_pb2

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def ago(seconds: float) -> Timestamp:
    """A moment before `NOW`."""
    timestamp = Timestamp()
    timestamp.FromDatetime(NOW - timedelta(seconds=seconds))
    return timestamp


def status(**fields: object) -> api_pb2.GetStatusResponse:
    """A daemon that is well; with other fields."""
    found = api_pb2.GetStatusResponse(
        daemon=api_pb2.Daemon(
            version="0.2.0",
            pid=42,
            started_at=ago(3900),
            state=api_pb2.Daemon.STATE_SERVING,
            config_path="/etc/koord-runtime-proxy/config.toml",
        ),
        bypass=api_pb2.Bypass(),
        breaker=api_pb2.Breaker(most_errors=10),
        runtime=api_pb2.Runtime(endpoint="/run/c.sock", name="containerd", version="1.6.20", answers=True),
        policies=[
            api_pb2.PolicyStatus(
                name="cpuset",
                state=api_pb2.PolicyStatus.STATE_LOADED,
                priority=10,
                mode=api_pb2.MODE_ENFORCE,
                mode_source=api_pb2.MODE_SOURCE_DEFAULT,
                runs=7,
            )
        ],
        records=api_pb2.Records(pods=2, containers=1, is_recovered=True),
        ledger=api_pb2.LedgerStatus(
            is_enabled=True, cgroups=1, values=3, counts=api_pb2.LedgerCounts(writes=3)
        ),
    )
    found.MergeFrom(api_pb2.GetStatusResponse(**fields))  # type: ignore[arg-type]
    return found


def explained_pod() -> api_pb2.ExplainResponse:
    """A BE pod with one container whose shares a policy set, and a quota that another program changed."""
    claim = api_pb2.ExplainedClaim(
        owner="batch-resource",
        role=api_pb2.ExplainedClaim.ROLE_SET,
        value="512",
        reason="batch resources of a best-effort pod",
        effect=api_pb2.ExplainedClaim.EFFECT_USED,
        strategies=[
            api_pb2.StrategyField(
                path="a.b", value="1", provenance=api_pb2.Provenance(text="cluster strategy of cm.yaml")
            )
        ],
    )
    bound = api_pb2.ExplainedClaim(
        owner="suppress",
        role=api_pb2.ExplainedClaim.ROLE_AT_MOST,
        value="1024",
        effect=api_pb2.ExplainedClaim.EFFECT_VOID,
        effect_reason="the value is below it",
    )
    shares = api_pb2.ExplainedField(
        name="cpu.shares",
        requested="2",
        claims=[claim, bound],
        resolved="512",
        applied="512",
        observed="512\n",
        observed_value="512",
        way=api_pb2.ExplainedField.WAY_MESSAGE,
    )
    quota = api_pb2.ExplainedField(
        name="cpu.cfs_quota_us",
        is_request_unknown=True,
        resolved="50000",
        applied="50000",
        booked="-1",
        observed="max 100000\n",
        observed_value="-1",
        is_different=True,
        way=api_pb2.ExplainedField.WAY_FILE,
        problem="another program has changed it",
    )
    untouched = api_pb2.ExplainedField(name="memory.min", observed="0\n", observed_value="0")
    target = api_pb2.ExplainedTarget(
        level=api_pb2.LEVEL_CONTAINER,
        cgroup="kubepods/besteffort/pod1/c1",
        container="main",
        container_id="c1",
        fields=[shares, quota, untouched],
        policies=[
            api_pb2.PolicyAnswer(policy="cpuset", outcome=api_pb2.PolicyAnswer.OUTCOME_NOTHING),
            api_pb2.PolicyAnswer(
                policy="cpu-burst", outcome=api_pb2.PolicyAnswer.OUTCOME_OFF, reason="strategies not known"
            ),
        ],
    )
    return api_pb2.ExplainResponse(
        pod=api_pb2.Pod(
            namespace="demo",
            name="spark",
            uid="uid-1",
            sandbox_id="s1",
            qos_class="BE",
            kube_qos_class="BestEffort",
        ),
        targets=[target],
    )
