"""Metrics, dashboard and alert rules belong together; Debian's Prometheus takes them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from runtimeproxy.service.metrics.table import METRICS, PREFIX
from tests.lab.programs import debian_program
from tests.service.metrics.reference import table

MONITORING = Path(__file__).parents[2] / "systemd" / "monitoring"
RULES = MONITORING / "koord-runtime-proxy.rules.yaml"
DASHBOARD = MONITORING / "koord-runtime-proxy.dashboard.json"

NAME = re.compile(rf"{PREFIX}\w+")
ENDS = ("_bucket", "_count", "_sum")
LABELS = re.compile(rf"({PREFIX}\w+)\{{([^}}]*)\}}")
FROM_PROMETHEUS = {"instance", "job", "le"}

TRIGGERS = {
    "Down": ('up{job="koord-runtime-proxy"}', "0x30"),
    "Restarts": ('process_start_time_seconds{job="koord-runtime-proxy"}', "1+1x30"),
    "EventLoopSlow": ('event_loop_lag_seconds_bucket{le="5.0"}', "0+60x30"),
    "AuditLinesLost": ('audit_lines_total{outcome="lost"}', "0x10 1x20"),
    "SpansLost": ('spans_total{outcome="lost"}', "0x10 1x20"),
    "BreakerOpen": ('bypass{cause="breaker"}', "1x30"),
    "BypassOn": ('bypass{cause="operator"}', "1x100"),
    "CallsHeldLong": ('held_seconds_bucket{method="CreateContainer",le="5.0"}', "0+60x30"),
    "ConnectionsEnded": ('connections_ended_total{cause="protocol_error"}', "0x10 1x20"),
    "PolicyNotLoaded": ('policy_state{policy="p",state="not_loaded"}', "1x30"),
    "HookServerFlaps": ('hook_server_breaker_openings_total{server="s"}', "0+1x30"),
    "CgroupWritesFail": ('cgroup_writes_total{parameter="cpu.shares",outcome="failed"}', "0x10 1x20"),
    "SysctlWritesFail": ('sysctl_writes_total{sysctl="kernel.sched_core",outcome="failed"}', "0x10 1x20"),
    "ValuesResetOften": ('ledger_repairs_total{level="pod",found_by="comparison"}', "0+60x30"),
    "StateUnsaved": ("journal_unwritten", "1x30"),
    "NodeInputUnknown": ('node_input_state{input="strategies",state="unknown"}', "1x30"),
    "NodeInputWithdrawn": ('node_input_state{input="strategies",state="withdrawn"}', "1x30"),
    "NodeNotLookedAt": ("node_look_age_seconds", "0+60x30"),
}
"""Series that set off alerts, by minutes; of the others it is the first metric of the rule: a counter that
begins with 1, a gauge that is 1, or 0 where the rule asks for that."""


GOOD = frozenset(
    (
        "config_reload_successful",
        "kubernetes_watch_up",
        "nri_connected",
        "records_recovered",
        "runtime_up",
    )
)
"""Gauges that are 1 on a healthy node."""


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def targets() -> Iterator[str]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


def names(expression: str) -> set[str]:
    return {_family(name.removeprefix(PREFIX)) for name in NAME.findall(expression)}


def _family(name: str) -> str:
    plain = next((name.removesuffix(end) for end in ENDS if name.endswith(end)), name)
    return plain if plain in METRICS and METRICS[plain].kind == "histogram" else name


def test_every_metric_is_documented() -> None:
    """Written by `python -m tests.service.metrics.reference`."""
    _, head, rest = (MONITORING / "README.md").read_text().partition("| metric |")
    assert head + rest == table() + "\n"


def test_dashboard_and_rules_use_metrics_that_exist_with_their_labels() -> None:
    for expression in (*targets(), *(rule["expr"] for rule in rules())):
        assert names(expression) <= METRICS.keys(), expression
        for name, matchers in LABELS.findall(expression):
            used = set(re.findall(r"(\w+)(?:=~|!=|!~|=)", matchers)) - FROM_PROMETHEUS
            assert used <= set(METRICS[_family(name.removeprefix(PREFIX))].labels), expression
        found = {label for each in names(expression) for label in METRICS[each].labels}
        for by in re.findall(r"by \(([^)]*)\)", expression):
            assert set(by.split(", ")) - FROM_PROMETHEUS <= found, expression


def test_the_dashboard_shows_every_metric() -> None:
    assert {name for expression in targets() for name in names(expression)} == METRICS.keys()


def test_panels_do_not_overlap() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_alerts_say_what_is_wrong_with_labels_that_they_have() -> None:
    found = [rule["alert"] for rule in rules()]
    assert len(found) == len(set(found))
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        labels = {label for each in names(rule["expr"]) for label in METRICS[each].labels}
        used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert used - {"instance"} <= labels, rule["alert"]


def sections(document: Path) -> dict[str, str]:
    """The texts of a document by the anchors of their headings, as browsers of Markdown make them."""
    parts = re.split(r"^## (.*)$", document.read_text(), flags=re.MULTILINE)[1:]
    anchors = (re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in parts[::2])
    return dict(zip(anchors, parts[1::2], strict=True))


def test_each_alert_leads_to_what_the_document_says_of_its_metric() -> None:
    document = sections(MONITORING.parent / "FAILURES.md")
    for rule in rules():
        name, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert name == "FAILURES.md"
        used = names(rule["expr"]) | set(re.findall(r"\b(?:up|process_\w+)\b", rule["expr"]))
        assert any(f"`{each}`" in document[anchor] for each in used), rule["alert"]


def test_claims_that_lapse_and_a_missing_manager_have_alerts() -> None:
    metrics = {name for rule in rules() for name in names(rule["expr"])}
    assert {"claim_lapses_total", "qos_plugin_missing", "qos_plugin_failing"} <= metrics


def test_each_panel_says_what_it_shows() -> None:
    panels = [each for each in json.loads(DASHBOARD.read_text())["panels"] if each["type"] != "row"]
    said = [each["description"] for each in panels]
    assert len(set(said)) == len(panels)
    assert all(each.endswith(".") and len(each) > 20 for each in said)


def promtool(*words: str | Path) -> str:
    command = [debian_program("promtool"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.debian
def test_prometheus_takes_the_rules_and_the_dashboards_expressions(tmp_path: Path) -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", RULES)
    expressions = [expr.replace("$__rate_interval", "5m").replace("$instance", ".*") for expr in targets()]
    records = [{"record": f"e{number}", "expr": expr} for number, expr in enumerate(expressions)]
    file = tmp_path / "dashboard.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": records}]}))
    promtool("check", "rules", file)


def series_of(rule: dict[str, Any]) -> list[dict[str, str]]:
    """The series that set off an alert."""
    name = rule["alert"].removeprefix("KoordRuntimeProxy")
    if name in TRIGGERS:
        series, values = TRIGGERS[name]
        is_own = series.partition("{")[0] in METRICS or _family(series.partition("{")[0]) in METRICS
        series = f"{PREFIX}{series}" if is_own else series
        # A histogram is not complete without its last bucket.
        found = [series, series.replace('le="5.0"', 'le="+Inf"')] if "_bucket" in series else [series]
        return [{"series": each, "values": values} for each in found]
    first = NAME.findall(rule["expr"])[0].removeprefix(PREFIX)
    labels = ",".join(f'{label}="x"' for label in METRICS[first].labels)
    values = "0x30" if rule["expr"].endswith("== 0") else "1x100"
    if METRICS[first].kind == "counter":
        # There is no series before the first failure.
        values = "_x20 1x20"
    return [{"series": f"{PREFIX}{first}{{{labels}}}", "values": values}]


@pytest.mark.debian
def test_each_alert_is_set_off_by_its_condition_and_by_no_healthy_node(tmp_path: Path) -> None:
    healthy = []
    for name, each in METRICS.items():
        end = "_count" if each.kind == "histogram" else ""
        values = {"state": "known"} if name == "node_input_state" else {}
        values |= {"state": "enforce"} if name == "policy_state" else {}
        labels = ",".join(f'{label}="{values.get(label, "x")}"' for label in each.labels)
        good = name in GOOD
        healthy.append({"series": f"{PREFIX}{name}{end}{{{labels}}}", "values": f"{int(good)}x100"})
    tests: list[dict[str, Any]] = [
        {
            "interval": "1m",
            "input_series": healthy,
            "promql_expr_test": [{"expr": "count(ALERTS)", "eval_time": "90m", "exp_samples": []}],
        }
    ]
    for rule in rules():
        count = f'count(ALERTS{{alertname="{rule["alert"]}",alertstate="firing"}})'
        at = "70m" if rule.get("for") == "1h" else "24m"
        samples = [{"labels": "{}", "value": 1}]
        tests.append(
            {
                "name": rule["alert"],
                "interval": "1m",
                "input_series": series_of(rule),
                "promql_expr_test": [{"expr": count, "eval_time": at, "exp_samples": samples}],
            }
        )
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    promtool("test", "rules", file)
