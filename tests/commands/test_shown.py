"""What people see of status, pods, explain and audit."""

from __future__ import annotations

import io
import json

import grpc
import pytest
import yaml

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.commands.audit import audit_words
from runtimeproxy.commands.explain import ShownTarget, show_explanation, targets_of
from runtimeproxy.commands.output import Page, print_value
from runtimeproxy.commands.status import show_pods, show_status, shown_selector
from tests.commands.conftest import Run, Served
from tests.commands.messages import NOW, ago, explained_pod, status


def status_text(found: api_pb2.GetStatusResponse) -> str:
    file = io.StringIO()
    show_status(found, Page(file), NOW)
    return file.getvalue()


def explanation(found: api_pb2.ExplainResponse, width: int = 100, *, is_everything: bool = False) -> str:
    file = io.StringIO()
    show_explanation(found, Page(file, width=width), is_everything=is_everything)
    return file.getvalue()


def test_a_daemon_that_is_well() -> None:
    lines = status_text(status()).splitlines()
    assert lines[0].startswith("daemon    serving: version 0.2.0, process 42, started ")
    assert lines[0].endswith("(1 h 5 min ago)")
    assert lines[1:3] == ["bypass    off", "breaker   closed"]
    assert "runtime   answers: containerd 1.6.20 on /run/c.sock" in lines
    assert lines[-1] == "no problems"
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {
                "bypass": api_pb2.Bypass(
                    is_on=True, cause=api_pb2.Bypass.CAUSE_SIGNAL, since=ago(60), reason="ticket 7"
                )
            },
            "(1 min ago): ticket 7; all calls pass without policies",
        ),
        ({"breaker": api_pb2.Breaker(is_open=True, open_until=ago(-120))}, "breaker   open until "),
        ({"breaker": api_pb2.Breaker(recent_errors=1)}, "closed, 1 error within a minute (opens at 10)"),
        ({"records": api_pb2.Records(checkpoint_problem="disk full")}, ", not saved: disk full"),
        ({"ledger": api_pb2.LedgerStatus(counts=api_pb2.LedgerCounts(failed_writes=2))}, ", 2 failed"),
        ({"ledger": api_pb2.LedgerStatus(yielded=[api_pb2.YieldedValue()])}, "1 left to other programs"),
        (
            {"ledger": api_pb2.LedgerStatus(change=api_pb2.OngoingChange(reasons=["strategies"], pods=2))},
            "changing 2 pods (strategies), 0 done",
        ),
        (
            {"last_reload": api_pb2.Reload(time=ago(5), has_failed=True, error="x.toml: bad")},
            "failed: x.toml: bad",
        ),
        ({"last_reload": api_pb2.Reload(time=ago(5), need_restart=["a.b"])}, "; restart to apply a.b"),
        ({"upgrade": api_pb2.UpgradeStatus(has_predecessor=True)}, "drain     calls still end"),
        ({"upgrade": api_pb2.UpgradeStatus(time=ago(5), error="no")}, "(5 s ago): no"),
        ({"calls": api_pb2.CallStatus(decided=5, changed=3)}, "5 decided, 3 changed, 0 refused, 0 without"),
        (
            {"audit_file": api_pb2.AuditFileStatus(path="/a.jsonl", written=7, lost=2)},
            "audit     7 lines in /a.jsonl, 2 lost",
        ),
        (
            {"tracing": api_pb2.TracingStatus(endpoint="http://c:4317", sent=1)},
            "traces    1 span sent to http://c:4317\n",
        ),
        (
            {"recording": api_pb2.RecordingStatus(started_at=ago(60), calls=2)},
            "record    2 calls recorded since ",
        ),
        ({"problems": ["one", "two"]}, "problems:\n  -  one\n  -  two\n"),
        (
            {
                "policies": [
                    api_pb2.PolicyStatus(
                        name="odd",
                        state=api_pb2.PolicyStatus.STATE_FAILED,
                        reason="odd.py:3: SyntaxError",
                        failures=api_pb2.FailureCounts(raised=1, timed_out=2),
                        hanging_threads=1,
                    )
                ]
            },
            "failed  -        0         0     3       odd.py:3: SyntaxError; 1 thread hang in it",
        ),
        (
            {
                "policies": [
                    api_pb2.PolicyStatus(
                        name="odd",
                        mode=api_pb2.MODE_OFF,
                        mode_source=api_pb2.MODE_SOURCE_COMMAND,
                        mode_until=ago(-600),
                    )
                ]
            },
            "(in 10 min)",
        ),
        (
            {
                "hook_servers": [
                    api_pb2.HookServer(
                        name="koordlet.json", endpoint="/k.sock", is_breaker_open=True, failures=4
                    )
                ]
            },
            "koordlet.json  breaker open  0      4       /k.sock",
        ),
        (
            {
                "daemon": api_pb2.Daemon(mode="standalone"),
                "hook_servers": [
                    api_pb2.HookServer(name="a.json", endpoint="/a", hooks=["x"], hooks_not_asked=["x"])
                ],
            },
            "mode standalone does not ask it\n",
        ),
        (
            {
                "daemon": api_pb2.Daemon(mode="nri"),
                "hook_servers": [
                    api_pb2.HookServer(
                        name="a.json",
                        endpoint="/a",
                        hooks=["x", "y"],
                        hooks_not_asked=["y"],
                        not_carried=["x: labels"],
                        last_error="late",
                    )
                ],
            },
            "late; mode nri does not ask it at y; mode nri does not carry of its answers x: labels",
        ),
        (
            {"node": api_pb2.NodeStatus(inputs=[api_pb2.NodeInput(name="pools", state=1)])},  # type: ignore[arg-type]
            "pools  unknown",
        ),
    ],
)
def test_what_is_wrong_is_seen(fields: dict[str, object], text: str) -> None:
    assert text in status_text(status(**fields))


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        (
            {
                "daemon": api_pb2.Daemon(mode="nri"),
                "nri": api_pb2.NriStatus(
                    is_connected=True,
                    connected_since=ago(60),
                    socket="/n.sock",
                    plugin_index="50",
                    plugin_name="koord",
                    runtime_name="containerd",
                    runtime_version="v2.2.1",
                    nri_version="v0.11.0",
                    late_replies={"CreateContainer": 2},
                    lost_connections=1,
                    undecided_containers=3,
                    failed_creates=4,
                    other_plugins=[api_pb2.OtherPlugin(index="10", name="balloons")],
                ),
            },
            (
                ", mode nri",
                "connected to containerd v2.2.1, NRI v0.11.0 since 11:59:00",
                "plugin 50-koord on /n.sock; 2 late replies; 1 connection lost; 3 created without a decision",
                "4 not created by the runtime; beside 10-balloons",
            ),
        ),
        ({"nri": api_pb2.NriStatus(socket="/n.sock")}, ("not connected, plugin",)),
        (
            {
                "daemon": api_pb2.Daemon(mode="standalone"),
                "left_undone": [api_pb2.LeftUndone(policy="gpu-env", fields=["env", "mounts"])],
            },
            (", mode standalone", "undone", "in mode standalone: gpu-env (env, mounts)"),
        ),
    ],
)
def test_the_mode(fields: dict[str, object], texts: tuple[str, ...]) -> None:
    shown = " ".join(status_text(status(**fields)).split())
    for text in texts:
        assert text in shown


def test_the_exit_code_of_status_says_whether_there_is_a_problem(run: Run, served: Served) -> None:
    served.api.answers["GetStatus"] = status()
    assert run("status", *served.flags).code == 0
    served.api.answers["GetStatus"] = status(problems=["a"])
    for form in ("text", "json", "yaml"):
        assert run("status", *served.flags, "--output", form).code == 1


def test_the_runtime_that_is_away() -> None:
    found = status()
    found.runtime.answers = False
    found.runtime.away_since.CopyFrom(ago(200))
    assert "does not answer since " in status_text(found)


def test_pods_with_their_values(run: Run, served: Served) -> None:
    quota = api_pb2.OwnedField(name="cgroup[cpu.cfs_quota_us]", owner="batch-resource", value="58334")
    variable = api_pb2.OwnedField(name="env[A]", owner="gpu-env")
    box = api_pb2.Container(name="main", state=api_pb2.Container.STATE_RUNNING, fields=[quota, variable])
    pod = api_pb2.Pod(
        namespace="a", name="web", state=api_pb2.Pod.STATE_READY, containers=[box], fields=[quota]
    )
    snapshot = api_pb2.PodSnapshot(pods=[pod])
    served.api.answers["WatchPods"] = [api_pb2.WatchPodsResponse(snapshot=snapshot)]
    header, *lines = run("pods", "--wide", *served.flags).out.splitlines()
    assert header.endswith("  OF    CHANGED BY               VALUES")
    assert [" ".join(line.split()) for line in lines] == [
        "a web - - ready pod batch-resource cpu.cfs_quota_us 58334",
        "a web - - running main batch-resource, gpu-env cpu.cfs_quota_us 58334, env[A]",
    ]
    assert run("pods", "--output", "name", *served.flags).out == "a/web\n"


def test_pods(run: Run, served: Served) -> None:
    pods = [
        api_pb2.Pod(namespace="b", name="x", state=api_pb2.Pod.STATE_STOPPED, is_recovered=True),
        api_pb2.Pod(
            namespace="a",
            name="web",
            qos_class="LS",
            kube_qos_class="Burstable",
            state=api_pb2.Pod.STATE_READY,
            containers=[api_pb2.Container(name="main"), api_pb2.Container(name="side")],
            policies=["cpuset", "cpu-burst"],
        ),
    ]
    parts = [api_pb2.PodSnapshot(pods=pods[:1], has_more=True), api_pb2.PodSnapshot(pods=pods[1:])]
    served.api.answers["WatchPods"] = [api_pb2.WatchPodsResponse(snapshot=part) for part in parts]
    done = run("pods", "--namespace", "a", *served.flags)
    assert done.out.splitlines() == [
        "NAMESPACE  NAME  QOS  KUBERNETES QOS  STATE    CONTAINERS  CHANGED BY",
        "a          web   LS   Burstable       ready    main side   cpuset, cpu-burst",
        "b          x     -    -               stopped  -           not known",
    ]
    assert served.api.requests[-1] == api_pb2.WatchPodsRequest(namespace="a", snapshot_only=True)
    shown = json.loads(run("pods", *served.flags, "--output", "json").out)
    assert [pod["name"] for pod in shown["pods"]] == ["x", "web"]


@pytest.mark.parametrize(
    ("policy", "names"),
    [
        ("cpuset", "a/web\nb/db\n"),
        ("plugin:cpu-burst", "b/db\n"),
        ("cpu-burst", ""),
        ("server:idle", ""),
        ("idle", ""),
        ("hooks", "a/web\nb/db\n"),
        ("server:hooks", "a/web\nb/db\n"),
    ],
)
def test_the_pods_of_a_policy(run: Run, served: Served, policy: str, names: str) -> None:
    found = [
        api_pb2.Pod(namespace="a", name="web", policies=["cpuset", "hooks"]),
        api_pb2.Pod(namespace="b", name="db", policies=["cpuset", "plugin:cpu-burst", "server:hooks"]),
        api_pb2.Pod(namespace="b", name="idle"),
    ]
    served.api.answers["WatchPods"] = [api_pb2.WatchPodsResponse(snapshot=api_pb2.PodSnapshot(pods=found))]
    served.api.answers["GetStatus"] = status(
        policies=[api_pb2.PolicyStatus(name="cpu-burst")], hook_servers=[api_pb2.HookServer(name="idle")]
    )
    done = run("pods", "--policy", policy, "--output", "name", *served.flags)
    assert done == (0, names, "")
    assert names or run("pods", "--policy", policy, *served.flags).out == "no pods\n"


@pytest.mark.parametrize(
    ("policy", "hint"),
    [
        ("cpu-brust", "did you mean cpu-burst?"),
        ("plugin:cpu-brust", "did you mean plugin:cpu-burst?"),
        ("nothing", "there are: cpuset, cpu-burst, plugin:cpu-burst"),
    ],
)
def test_a_policy_that_is_not_there(run: Run, served: Served, policy: str, hint: str) -> None:
    served.api.answers["WatchPods"] = [api_pb2.WatchPodsResponse(snapshot=api_pb2.PodSnapshot())]
    served.api.answers["GetStatus"] = status(
        policies=[api_pb2.PolicyStatus(name="cpu-burst")], claim_owners=[api_pb2.ClaimOwner(name="cpu-burst")]
    )
    done = run("pods", "--policy", policy, *served.flags)
    assert (done.code, done.out) == (4, "")
    assert f"no policy is named {policy}; {hint}" in done.err


def test_owners_of_claims() -> None:
    held = api_pb2.ClaimOwner(
        name="cpu-suppress",
        state=api_pb2.ClaimOwner.STATE_HELD,
        session="one",
        claims=2,
        refused=1,
        mode=api_pb2.MODE_ENFORCE,
        lease_end=ago(60),
        hold_end=ago(-240),
        lapses=1,
    )
    found = status()
    found.claim_owners.extend([held, api_pb2.ClaimOwner(name="cpu-burst")])
    found.evictions.evicted, found.evictions.failed = 3, 1
    text = status_text(found)
    (row,) = (line for line in text.splitlines() if line.startswith("cpu-suppress"))
    assert row.split()[1:5] == ["held", "2,", "1", "refused"]
    assert row.endswith("its lease ended 1 time")
    assert "cpu-burst" not in text
    assert "evicted   3 pods evicted, 0 refused, 0 in dry-run, 1 failed" in text


def test_plugins_of_a_qos_manager_that_runs() -> None:
    plugins = [
        api_pb2.QosPluginStatus(
            name="cpu-guard",
            mode=api_pb2.MODE_ENFORCE,
            is_wanted=True,
            claims=2,
            explanation="rule 3: no effect; futile: demo/web for 280 s: it waits, but not behind BE pods",
        ),
        api_pb2.QosPluginStatus(
            name="cpu-evict", mode=api_pb2.MODE_DRY_RUN, is_wanted=True, problem="it still hangs"
        ),
        api_pb2.QosPluginStatus(name="cpu-burst", mode=api_pb2.MODE_ENFORCE, is_wanted=True),
        api_pb2.QosPluginStatus(name="memory-evict", mode=api_pb2.MODE_ENFORCE),
        api_pb2.QosPluginStatus(name="profiling", mode=api_pb2.MODE_OFF, is_wanted=True),
    ]
    manager = api_pb2.QosManagerStatus(
        state=api_pb2.QosManagerStatus.STATE_RUNNING, report=api_pb2.QosManagerReport(plugins=plugins)
    )
    rows = [line.split(maxsplit=3) for line in status_text(status(qos_manager=manager)).splitlines()]
    begin = rows.index(["PLUGIN", "MODE", "CLAIMS", "REMARK"]) + 1
    assert rows[begin : rows.index([], begin)] == [
        ["cpu-guard", "enforce", "2", "rule 3: no effect"],
        ["futile:", "demo/web", "for", "280 s: it waits, but not behind BE pods"],
        ["cpu-evict", "dry-run", "0", "does nothing: it still hangs"],
        ["cpu-burst", "enforce", "0"],
    ]
    manager.state = api_pb2.QosManagerStatus.STATE_MISSING
    assert "PLUGIN" not in status_text(status(qos_manager=manager))


def test_the_end_of_a_lease_is_explained() -> None:
    found = explained_pod()
    found.targets[0].fields[0].claims[0].lease_end.CopyFrom(ago(-10))
    assert "unless it is renewed" in explanation(found, 200)


WAITS = api_pb2.UnappliedValue(
    target="demo/spark/main",
    cgroup="/kubepods/besteffort/pod1/box",
    field="memory.limit_in_bytes",
    wanted="4096",
    owners=["batch-resource"],
    cause="lower-limit",
    reason="ledger.lower_memory_limits is false",
)


def test_a_value_that_is_not_applied() -> None:
    field = api_pb2.ExplainedField(name=WAITS.field, unapplied=[WAITS], problem=WAITS.reason)
    target = api_pb2.ExplainedTarget(level=api_pb2.LEVEL_CONTAINER, container="main", fields=[field])
    text = explanation(api_pb2.ExplainResponse(targets=[target]), 150)
    assert "4096 of batch-resource is not applied (lower-limit): ledger.lower_memory_limits is false" in text
    assert text.count(WAITS.reason) == 1


def test_values_that_are_not_applied_and_notes() -> None:
    ledger = api_pb2.LedgerStatus(unapplied=[WAITS] * 12, unapplied_values=30)
    text = status_text(status(ledger=ledger, notes=["Koordlet does it."]))
    assert text.count("lower-limit: ledger.lower_memory_limits is false") == 10
    assert "20 more: status --output json" in text
    assert "note      Koordlet does it." in text
    assert text.endswith("no problems\n")


def test_no_pods() -> None:
    file = io.StringIO()
    show_pods([], Page(file))
    assert file.getvalue() == "no pods\n"


def test_an_explanation() -> None:
    assert explanation(explained_pod()).splitlines() == [
        "demo/spark  BE, BestEffort",
        "uid uid-1, sandbox s1",
        "",
        "container main  c1",
        "  FIELD             REQUESTED  RESOLVED  APPLIED  NOW  BY",
        "  cpu.shares        2          512       512      512  message",
        "    batch-resource  512: batch resources of a best-effort pod [cluster strategy of cm.yaml]",
        "    suppress        at most 1024 (void: the value is below it)",
        "  cpu.cfs_quota_us  ?          50000     50000    -1   file",
        "    runtime  its specification has -1, until the kubelet's next update",
        "    note     another program has changed it",
        "  cpu-burst  off: strategies not known",
        "",
        "1 more that nothing changes: --all",
    ]


def test_an_explanation_of_everything() -> None:
    text = explanation(explained_pod(), is_everything=True)
    assert "  memory.min        -          -         -        0    -\n" in text
    assert "container main  c1\n  kubepods/besteffort/pod1/c1\n" in text
    assert "  cpuset     nothing\n" in text
    assert "--all" not in text


def test_an_explanation_in_a_narrow_terminal() -> None:
    lines = explanation(explained_pod(), 45).splitlines()
    assert max(map(len, lines)) <= 45
    assert lines[4:10] == [
        "  cpu.shares",
        "    requested  2",
        "    resolved   512",
        "    applied    512",
        "    now        512",
        "    by         message",
    ]
    assert lines[10].startswith("    batch-resource  512: batch resources of")


def test_a_pod_that_is_left_alone() -> None:
    found = api_pb2.ExplainResponse(pod=api_pb2.Pod(namespace="a", name="b"), is_skipped=True)
    found.targets.add(level=api_pb2.LEVEL_POD, problem="files could not be read in time")
    text = explanation(found)
    assert "policies leave it alone: it has the skip label\n" in text
    assert "pod\n  problem  files could not be read in time\n  nothing is changed here\n" in text


def test_texts_of_pods_cannot_control_the_terminal() -> None:
    found = explained_pod()
    found.targets[0].fields[0].claims[0].reason = "\x1b[2Jgone\rx"
    file = io.StringIO()
    show_explanation(found, Page(file, width=100, is_terminal=True))
    assert "\\x1b[2Jgone\\rx" in file.getvalue()


@pytest.mark.parametrize(("colours", "has_escapes"), [("", True), ("1", False)])
def test_colours_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, colours: str, has_escapes: bool) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if colours:
        monkeypatch.setenv("NO_COLOR", colours)
    file = io.StringIO()
    show_explanation(explained_pod(), Page(file, width=100, is_terminal=True))
    assert ("\x1b[32m" in file.getvalue()) is has_escapes
    assert "\x1b" not in explanation(explained_pod())


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("web", [ShownTarget("web")]),
        ("ns/web", [ShownTarget("ns/web"), ShownTarget("ns", "web")]),
        ("ns/web/main", [ShownTarget("ns/web", "main")]),
    ],
)
def test_the_forms_of_a_pod(text: str, targets: list[ShownTarget]) -> None:
    assert targets_of(text) == targets


def test_a_pod_and_a_container_without_a_namespace(run: Run, served: Served) -> None:
    def answer(request: api_pb2.ExplainRequest) -> object:
        if request.pod == "spark":
            return explained_pod()
        return grpc.StatusCode.NOT_FOUND, f"no pod {request.pod}"

    served.api.answers["Explain"] = answer
    assert run("explain", "spark/main", *served.flags).code == 0
    assert [(each.pod, each.container) for each in served.api.requests] == [
        ("spark/main", ""),
        ("spark", "main"),
    ]
    done = run("explain", "a/b", *served.flags)
    assert (done.code, done.err) == (4, "koord-runtime-proxy: no pod a/b\n")
    assert run("explain", "a/b/", *served.flags).code == 2


AUDITED = api_pb2.AuditEntry(
    time=ago(0),
    kind="changed",
    policy="batch-resource",
    namespace="demo",
    pod="spark",
    container="main",
    field="resources.cpu_shares",
    before="2",
    after="512",
    reason="batch resources",
    trace_id="abc",
)


def test_the_audit(run: Run, served: Served) -> None:
    other = api_pb2.AuditEntry(time=ago(1), kind="failed", policy="odd", target="besteffort", note="n")
    served.api.answers["WatchAudit"] = [
        api_pb2.WatchAuditResponse(entries=[other]),
        api_pb2.WatchAuditResponse(entries=[AUDITED]),
    ]
    words = ("audit", "--pod", "demo/spark", "--policy", "p", "--kind", "changed", "--kind", "failed")
    done = run(*words, "--limit", "5", "--follow", *served.flags)
    first, second = done.out.splitlines()
    assert first.endswith("  failed        besteffort  odd (n)")
    assert second.endswith(
        "  changed       demo/spark/main  batch-resource  resources.cpu_shares 2 -> 512: batch resources"
        "  trace abc"
    )
    assert served.api.requests[-1] == api_pb2.WatchAuditRequest(
        pod="demo/spark", policy="p", follow=True, limit=5, kinds=["changed", "failed"]
    )
    lines = run("audit", *served.flags, "--output", "json").out.splitlines()
    assert [json.loads(line)["policy"] for line in lines] == ["odd", "batch-resource"]
    assert run("audit", *served.flags, "--output", "yaml").out.count("---\n") == 2


def test_an_audit_line_on_a_terminal_is_short() -> None:
    words = audit_words(AUDITED, is_short=True)
    assert not any("trace" in part for part in words)


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        (api_pb2.PodSelector(), "all pods"),
        (api_pb2.PodSelector(namespaces=["a", "b"]), "namespace a, b"),
        (
            api_pb2.PodSelector(
                namespaces=["a"],
                match_labels={"x": "1"},
                match_expressions=[
                    api_pb2.LabelRequirement(key="y", operator="NotIn", values=["2", "3"]),
                    api_pb2.LabelRequirement(key="z", operator="Exists"),
                    api_pb2.LabelRequirement(key="w", operator="DoesNotExist"),
                ],
            ),
            "namespace a and x=1,y notin (2, 3),z,!w",
        ),
    ],
)
def test_a_selector(selector: api_pb2.PodSelector, text: str) -> None:
    assert shown_selector(selector) == text


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_nothing_that_a_terminal_acts_on_is_printed(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    value = {"pod": "a\x1b[2J\x9b31m\u202e\u2028\U0001f600ä", "plain": "ä"}
    print_value(value, form)
    out = capsys.readouterr().out
    assert out.replace("\n", "").isprintable()
    assert (json.loads(out) if form == "json" else yaml.safe_load(out)) == value


def test_letters_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_value({"pod": "ä"}, "json")
    print_value({"pod": "ä"}, "yaml")
    assert capsys.readouterr().out == '{\n  "pod": "ä"\n}\npod: ä\n'
