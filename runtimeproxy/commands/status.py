"""The commands `status` and `pods`: how the daemon is, and what it knows."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.commands.client import reading
from runtimeproxy.commands.exit_codes import CommandError, ExitCode
from runtimeproxy.commands.output import (
    BAD,
    DOUBTFUL,
    FAINT,
    GOOD,
    Cell,
    Page,
    Words,
    counted,
    print_message,
)
from runtimeproxy.commands.values import enum_name, moment, shown_time, utc_now
from runtimeproxy.documents.reading import printable
from runtimeproxy.spelling import did_you_mean, nearest

if TYPE_CHECKING:
    from google.protobuf.message import Message

_LABEL_WIDTH: Final = 8
_GOOD_STATES: Final = frozenset(("loaded", "serving", "known", "ready", "running", "enforce", "leased"))
_MOST_TARGETS: Final = 20
"""Targets of Katalyst's dynamic configuration that are shown as text."""
_MOST_UNAPPLIED: Final = 10
"""Rows about values that are not applied; the answer has more."""
_BAD_STATES: Final = frozenset(("failed",))


def status(arguments: Namespace) -> int:
    """Shows how the daemon is; fails if it has a problem."""
    with reading(arguments) as api:
        found = api.GetStatus(api_pb2.GetStatusRequest(), timeout=arguments.timeout)
    if arguments.output == "text":
        show_status(found, Page(), utc_now())
    else:
        print_message(found, arguments.output)
    return ExitCode.FAILED if found.problems else ExitCode.OK


def pods(arguments: Namespace) -> int:
    """Lists pods; with `--policy` those that have a value of it."""
    request = api_pb2.WatchPodsRequest(namespace=arguments.namespace or "", snapshot_only=True)
    found, policy = api_pb2.PodSnapshot(), arguments.policy
    # A hook server is an owner by its name, or by `server:NAME`.
    server = (policy or "").removeprefix("server:")
    with reading(arguments) as api:
        for response in api.WatchPods(request, timeout=arguments.timeout):
            found.pods.extend(
                each
                for each in response.snapshot.pods
                if policy is None or {server, f"server:{server}"}.intersection(each.policies)
            )
        if policy is not None and not found.pods:
            _check_policy(policy, api.GetStatus(api_pb2.GetStatusRequest(), timeout=arguments.timeout))
    if arguments.output == "text":
        show_pods(found.pods, Page(), is_wide=arguments.wide)
    elif arguments.output == "name":
        for name in sorted({f"{each.namespace}/{each.name}" for each in found.pods}):
            print(printable(name))
    else:
        print_message(found, arguments.output)
    return ExitCode.OK


def _check_policy(name: str, status: api_pb2.GetStatusResponse) -> None:
    known = [
        *(each.name for each in status.policies),
        *(each.name for each in status.hook_servers),
        *(f"plugin:{each.name}" for each in status.claim_owners),
    ]
    if name.removeprefix("server:") not in known:
        hint = did_you_mean(nearest(name, known)) or f"; there are: {', '.join(known)}"
        raise CommandError(f"no policy is named {name}{hint}", ExitCode.NOT_FOUND)


def show_status(found: api_pb2.GetStatusResponse, page: Page, now: datetime) -> None:
    for label, words in _overview(found, now):
        page.entry(Cell(label, FAINT), words, label_width=_LABEL_WIDTH)
    if found.policies:
        page.gap()
        show_policies(found.policies, page, now)
    if found.hook_servers:
        page.gap()
        columns = ("HOOK SERVER", "STATE", "CALLS", "FAILED", "SOCKET", "REMARK")
        rows = (_server_row(each, found.daemon.mode) for each in found.hook_servers)
        page.table(columns, rows)
    owners = [each for each in found.claim_owners if each.session or each.claims or each.requests]
    if owners:
        page.gap()
        columns = ("OWNER OF CLAIMS", "STATE", "CLAIMS", "MODE", "LEASE ENDS", "REMARK")
        page.table(columns, (_owner_row(each, now) for each in owners))
    _show_plugins(found.qos_manager, page)
    if found.node.inputs:
        page.gap()
        page.table(("INPUT", "STATE", "FROM"), map(_input_row, found.node.inputs))
    if found.node.katalyst_targets:
        page.gap()
        shown = found.node.katalyst_targets[:_MOST_TARGETS]
        page.table(("KATALYST TARGET", "APPLIED", "VERSION", "WHY"), map(_target_row, shown))
        if (more := len(found.node.katalyst_targets) - len(shown)) > 0:
            page.line(Cell(f"{more} more: status --output json has all", FAINT), indent=2)
    _show_unapplied(found.ledger, page)
    _show_problems(found, page)


def _show_problems(found: api_pb2.GetStatusResponse, page: Page) -> None:
    if found.notes:
        page.gap()
    for note in found.notes:
        page.entry(Cell("note", FAINT), note, label_width=_LABEL_WIDTH)
    page.gap()
    if not found.problems:
        page.line(Cell("no problems", GOOD))
        return
    page.line(Cell("problems:" if len(found.problems) > 1 else "problem:", BAD))
    for problem in found.problems:
        page.entry("-", problem, indent=2)


def _show_unapplied(ledger: api_pb2.LedgerStatus, page: Page) -> None:
    """Prints what is wanted and not in force."""
    if not ledger.unapplied:
        return
    page.gap()
    shown = ledger.unapplied[:_MOST_UNAPPLIED]
    page.table(("NOT APPLIED", "VALUE", "WANTED", "BY", "WHY"), map(_unapplied_row, shown))
    if (more := ledger.unapplied_values - len(shown)) > 0:
        page.line(Cell(f"{more} more: status --output json has 100, explain those of a pod", FAINT), indent=2)


def _unapplied_row(each: api_pb2.UnappliedValue) -> tuple[Cell | str, ...]:
    cause = Cell(f"{each.cause}: {each.reason}", BAD if each.is_problem else "")
    return each.target or each.cgroup or "node", each.field, each.wanted, ", ".join(each.owners), cause


def _overview(found: api_pb2.GetStatusResponse, now: datetime) -> Iterator[tuple[str, Words]]:
    daemon = found.daemon
    state = _state(enum_name(api_pb2.Daemon.State, daemon.state))
    mode = f", mode {daemon.mode}" if daemon.mode else ""
    started = _when(daemon, "started_at", now, ", started ")
    yield "daemon", (state, f": version {daemon.version}, process {daemon.pid}{mode}{started}")
    if found.upgrade.has_predecessor:
        yield "drain", "calls still end in the process before this one"
    yield "bypass", bypass_words(found.bypass, now)
    yield "breaker", _breaker_words(found.breaker, now)
    yield "runtime", _runtime_words(found.runtime, now)
    if found.HasField("nri"):
        yield "NRI", _nri_words(found.nri, now)
    if found.left_undone:
        undone = (f"{each.policy} ({', '.join(each.fields)})" for each in found.left_undone)
        yield "undone", f"in mode {found.daemon.mode}: {', '.join(undone)}"
    yield "records", _records_words(found.records)
    yield "values", _ledger_words(found.ledger)
    yield "reload", _reload_words(found, now)
    if found.upgrade.HasField("time"):
        error = found.upgrade.error
        result = Cell(error, BAD) if error else f"process {found.upgrade.successor_pid}"
        yield "upgrade", (_when(found.upgrade, "time", now), ": ", result)
    if found.HasField("calls"):
        yield from _calls_and_clients(found)
    evictions = found.evictions
    if evictions.evicted or evictions.failed or evictions.refused or evictions.dry_run:
        failed = Cell(f", {evictions.failed} failed" if evictions.failed else "", BAD)
        done = f"{counted(evictions.evicted, 'pod')} evicted, {evictions.refused} refused"
        yield "evicted", (f"{done}, {evictions.dry_run} in dry-run", failed)
    yield from _sinks(found, now)


def _calls_and_clients(found: api_pb2.GetStatusResponse) -> Iterator[tuple[str, Words]]:
    calls, clients = found.calls, found.clients
    decided = f"{calls.decided} decided, {calls.changed} changed, {calls.refused} refused"
    yield "calls", f"{decided}, {calls.undecided} without a decision"
    refused = f", {clients.refused} refused" if clients.refused else ""
    in_progress = counted(clients.streams, "call")
    yield "clients", f"{counted(clients.connections, 'connection')}{refused}, {in_progress} in progress"


def _sinks(found: api_pb2.GetStatusResponse, now: datetime) -> Iterator[tuple[str, Words]]:
    """Where decisions and calls are written to, beside the log."""
    audit, tracing = found.audit_file, found.tracing
    if found.HasField("audit_file"):
        lost = Cell(f", {audit.lost} lost" if audit.lost else "", BAD)
        yield "audit", (f"{counted(audit.written, 'line')} in {audit.path}", lost)
    if found.HasField("tracing"):
        lost = Cell(f", {tracing.lost} lost" if tracing.lost else "", BAD)
        yield "traces", (f"{counted(tracing.sent, 'span')} sent to {tracing.endpoint}", lost)
    if found.HasField("kubernetes"):
        kubernetes = found.kubernetes
        watching = [each for each in kubernetes.watches if each.state == each.STATE_WATCHING]
        absent = [each.kind for each in kubernetes.watches if each.state == each.STATE_ABSENT]
        away = [each.kind for each in kubernetes.watches if each not in watching and each.kind not in absent]
        parts = [f"{len(watching)} of {len(kubernetes.watches)} watches at {kubernetes.server}"]
        parts += [f"no {', '.join(absent)} there"] if absent else []
        parts += [f"{counted(kubernetes.pods, 'pod')}"]
        parts += [f"{', '.join(kubernetes.waiting)} starts later"] if kubernetes.waiting else []
        not_there = Cell(f"; not up to date: {', '.join(away)}" if away else "", BAD)
        yield "API server", ("; ".join(parts), not_there)
    if found.HasField("recording"):
        calls = counted(found.recording.calls, "call")
        yield "record", f"{calls} recorded{_when(found.recording, 'started_at', now, ' since ')}"


def _when(message: Message, field: str, now: datetime, before: str = "") -> str:
    return f"{before}{shown_time(moment(getattr(message, field)), now)}" if message.HasField(field) else ""


def show_policies(policies: Iterable[api_pb2.PolicyStatus], page: Page, now: datetime) -> None:
    columns = ("POLICY", "STATE", "MODE", "PRIORITY", "RUNS", "FAILED", "REMARK")
    page.table(columns, (_policy_row(each, now) for each in policies))


def bypass_words(bypass: api_pb2.Bypass, now: datetime) -> Sequence[str | Cell]:
    """Whether the bypass is on, and why."""
    if not bypass.is_on:
        return ("off",)
    cause = enum_name(api_pb2.Bypass.Cause, bypass.cause)
    times = _when(bypass, "since", now, " since ") + _when(bypass, "until", now, " until ")
    reason = f": {bypass.reason}" if bypass.reason else ""
    return Cell("on", BAD), f" by {cause}{times}{reason}; all calls pass without policies"


def _breaker_words(breaker: api_pb2.Breaker, now: datetime) -> Words:
    if breaker.is_open:
        return Cell("open", BAD), _when(breaker, "open_until", now, " until ")
    errors = f", {counted(breaker.recent_errors, 'error')} within a minute (opens at {breaker.most_errors})"
    return f"closed{errors if breaker.recent_errors else ''}"


def _runtime_words(runtime: api_pb2.Runtime, now: datetime) -> Words:
    if not runtime.endpoint:
        return ("none; host applications and QoS classes alone get values",)
    name = f"{runtime.name} {runtime.version}".strip() or "not known yet"
    text = f": {name} on {runtime.endpoint}"
    if runtime.answers:
        return Cell("answers", GOOD), text
    return Cell("does not answer", BAD), _when(runtime, "away_since", now, " since "), text


def _nri_words(nri: api_pb2.NriStatus, now: datetime) -> Words:
    about = f"plugin {nri.plugin_index}-{nri.plugin_name} on {nri.socket}"
    runtime = " ".join(filter(None, (nri.runtime_name, nri.runtime_version)))
    version = f", NRI {nri.nri_version}" if nri.nri_version else ""
    parts = (
        [f"{counted(sum(nri.late_replies.values()), 'late reply', 'late replies')}"]
        if nri.late_replies
        else []
    )
    parts += [f"{counted(nri.lost_connections, 'connection')} lost"] if nri.lost_connections else []
    parts += [f"{nri.undecided_containers} created without a decision"] if nri.undecided_containers else []
    parts += [f"{nri.failed_creates} not created by the runtime"] if nri.failed_creates else []
    others = ", ".join("-".join(filter(None, (each.index, each.name))) for each in nri.other_plugins)
    parts += [f"beside {others}"] if others else []
    behind = "".join(f"; {each}" for each in parts)
    if nri.is_connected:
        since = _when(nri, "connected_since", now, " since ")
        return Cell("connected", GOOD), f" to {runtime or 'the runtime'}{version}{since}, {about}{behind}"
    return Cell("not connected", BAD), f", {about}{behind}"


def _records_words(records: api_pb2.Records) -> Words:
    text = f"{counted(records.pods, 'pod')}, {counted(records.containers, 'container')}"
    if not records.is_recovered:
        text += ", waiting for the runtime's lists"
    problem = records.checkpoint_problem
    return text, Cell(f", not saved: {problem}" if problem else "", BAD)


def _ledger_words(ledger: api_pb2.LedgerStatus) -> Words:
    if not ledger.is_enabled:
        return "cgroups.enabled is false: no file is written"
    counts, change = ledger.counts, ledger.change
    cgroups = counted(ledger.cgroups, "cgroup")
    words: list[str | Cell] = [
        f"{ledger.values} in {cgroups}; {counts.writes} written, {counts.repairs} repaired"
    ]
    if counts.failed_writes:
        words.append(Cell(f", {counts.failed_writes} failed", BAD))
    if ledger.yielded:
        words.append(Cell(f", {len(ledger.yielded)} left to other programs", DOUBTFUL))
    words += _starts_words(ledger.starts)
    if ledger.HasField("change"):
        of = f"{counted(change.pods, 'pod')} ({', '.join(change.reasons)})"
        words.append(f"; changing {of}, {change.done} done, {change.failed} failed")
    return words


def _starts_words(starts: api_pb2.StartsStatus) -> Iterator[str]:
    """What pods have now while they start."""
    for name, found in (("opening", starts.openings), ("start-up boost", starts.boosts)):
        waiting = sum(bool(each.waits) for each in found)
        if found:
            yield f"; {counted(len(found) - waiting, name)}" + (f", {waiting} waiting" if waiting else "")


def _reload_words(found: api_pb2.GetStatusResponse, now: datetime) -> Words:
    path, last = found.daemon.config_path or "no file", found.last_reload
    if not found.HasField("last_reload"):
        return f"none since the start ({path})"
    time = _when(last, "time", now)
    if last.has_failed:
        return time, ": ", Cell("failed", BAD), f": {last.error}"
    waiting = f"; restart to apply {', '.join(last.need_restart)}" if last.need_restart else ""
    code = f"; upgrade to apply {', '.join(last.changed_code)}" if last.changed_code else ""
    return f"{time} ({path}){waiting}{code}"


def _input_row(each: api_pb2.NodeInput) -> Sequence[Words]:
    return each.name, _state(enum_name(api_pb2.NodeInput.State, each.state)), each.source


def _target_row(each: api_pb2.KatalystTarget) -> Sequence[Words]:
    return each.name, Cell("yes", GOOD) if each.is_applied else "no", each.version, each.reason


def _policy_row(policy: api_pb2.PolicyStatus, now: datetime) -> Sequence[Words]:
    counts = policy.failures
    failed = counts.raised + counts.invalid + counts.timed_out + counts.skipped + counts.left_out
    return (
        policy.name,
        _state(enum_name(api_pb2.PolicyStatus.State, policy.state)),
        _mode_words(policy, now),
        str(policy.priority),
        str(policy.runs),
        Cell(str(failed), BAD) if failed else "0",
        "; ".join(_policy_remarks(policy, now)),
    )


def _mode_words(policy: api_pb2.PolicyStatus, now: datetime) -> Words:
    mode = mode_name(policy.mode)
    if policy.mode_source != api_pb2.MODE_SOURCE_COMMAND:
        return mode
    return Cell(mode, DOUBTFUL), " by command", _when(policy, "mode_until", now, " until ")


def _policy_remarks(policy: api_pb2.PolicyStatus, now: datetime) -> Iterator[str]:
    if policy.reason:
        yield policy.reason
    for each in policy.overrides:
        reason = f": {each.reason}" if each.reason else ""
        if each.HasField("selector"):
            until = _when(each, "until", now, " until ")
            yield f"{mode_name(each.mode)} for {shown_selector(each.selector)}{until}{reason}"
        elif reason:
            yield f"{mode_name(each.mode)}{reason}"
    if policy.hanging_threads:
        replaced = policy.replaced_threads
        of_before = f", {replaced} as it was before a reload" if replaced else ""
        yield f"{counted(policy.hanging_threads, 'thread')} hang in it{of_before}"
    last = policy.last_failure
    if policy.HasField("last_failure"):
        where = "/".join(part for part in (last.pod, last.container) if part)
        yield f"failed {_when(last, 'time', now)}{f' for {where}' if where else ''}: {last.reason}"
    if policy.HasField("last_left_out"):
        last = policy.last_left_out
        where = "/".join(part for part in (last.pod, last.container) if part)
        what = " of ".join(filter(None, (last.field, where)))
        yield f"left-out {_when(last, 'time', now)}{f', {what}' if what else ''}: {last.reason}"


def _server_row(server: api_pb2.HookServer, mode: str) -> Sequence[Words]:
    state: Cell | str = Cell("called", GOOD)
    is_asked = len(server.hooks_not_asked) < len(server.hooks)
    if server.is_breaker_open:
        state = Cell("breaker open", BAD)
    elif server.is_unused:
        state = Cell("not used", DOUBTFUL)
    elif server.hooks and not is_asked:
        state = Cell("not asked", DOUBTFUL)
    failed = Cell(str(server.failures), BAD) if server.failures else "0"
    remarks = [server.last_error] if server.last_error else []
    if server.hooks_not_asked:
        hooks = f" at {', '.join(server.hooks_not_asked)}" if is_asked else ""
        remarks.append(f"mode {mode} does not ask it{hooks}")
    if server.not_carried:
        remarks.append(f"mode {mode} does not carry of its answers {'; '.join(server.not_carried)}")
    return server.name, state, str(server.calls), failed, server.endpoint, "; ".join(remarks)


def _owner_row(owner: api_pb2.ClaimOwner, now: datetime) -> Sequence[Words]:
    refused = Cell(f", {owner.refused} refused", BAD) if owner.refused else ""
    end = _when(owner, "hold_end" if owner.state == owner.STATE_HELD else "lease_end", now)
    remarks = [owner.problem] if owner.problem else []
    remarks += [f"its lease ended {counted(owner.lapses, 'time')}"] if owner.lapses else []
    return (
        owner.name,
        _state(enum_name(api_pb2.ClaimOwner.State, owner.state)),
        (str(owner.claims), refused),
        mode_name(owner.mode),
        end or "-",
        "; ".join(remarks),
    )


def _show_plugins(manager: api_pb2.QosManagerStatus, page: Page) -> None:
    """Prints how the plugins of a QoS manager that runs decide, each part of an explanation in a row."""
    is_running = manager.state == api_pb2.QosManagerStatus.STATE_RUNNING
    plugins = [each for each in manager.report.plugins if each.is_wanted and each.mode != api_pb2.MODE_OFF]
    if not is_running or not plugins:
        return
    page.gap()
    rows = (row for each in plugins for row in _plugin_rows(each))
    page.table(("PLUGIN", "MODE", "CLAIMS", "REMARK"), rows)


def _plugin_rows(plugin: api_pb2.QosPluginStatus) -> Iterator[Sequence[Words]]:
    remarks: list[Words] = [Cell(f"does nothing: {plugin.problem}", BAD)] if plugin.problem else []
    remarks += plugin.explanation.split("; ")
    first, *others = filter(None, remarks) if any(remarks) else ("",)
    yield plugin.name, mode_name(plugin.mode), str(plugin.claims), first
    yield from (("", "", "", each) for each in others)


def show_pods(found: Sequence[api_pb2.Pod], page: Page, *, is_wide: bool = False) -> None:
    """Prints a row for each pod; if wide, one with the values for its own cgroup and each container."""
    if not found:
        page.line("no pods")
        return
    pods = sorted(found, key=lambda pod: (pod.namespace, pod.name, pod.attempt))
    if is_wide:
        columns = ("NAMESPACE", "NAME", "QOS", "KUBERNETES QOS", "STATE", "OF", "CHANGED BY", "VALUES")
        page.table(columns, (row for each in pods for row in _wide_rows(each)))
        return
    rows = (
        (
            each.namespace,
            each.name,
            each.qos_class or "-",
            each.kube_qos_class or "-",
            _state(enum_name(api_pb2.Pod.State, each.state)),
            " ".join(container.name for container in each.containers) or "-",
            ", ".join(each.policies) or ("not known" if each.is_recovered else "-"),
        )
        for each in pods
    )
    page.table(("NAMESPACE", "NAME", "QOS", "KUBERNETES QOS", "STATE", "CONTAINERS", "CHANGED BY"), rows)


def _wide_rows(pod: api_pb2.Pod) -> Iterator[Sequence[Words]]:
    about = (pod.namespace, pod.name, pod.qos_class or "-", pod.kube_qos_class or "-")
    yield *about, _state(enum_name(api_pb2.Pod.State, pod.state)), "pod", *_values(pod.fields)
    for each in pod.containers:
        state = _state(enum_name(api_pb2.Container.State, each.state))
        yield *about, state, each.name, *_values(each.fields)


def _values(fields: Iterable[api_pb2.OwnedField]) -> tuple[str, str]:
    """Who has changed something, and the fields with their values."""
    found = list(fields)
    owners = sorted({name for each in found for name in each.owner.split("+")})
    values = (f"{_parameter(each.name)} {each.value}".rstrip() for each in found)
    return ", ".join(owners) or "-", ", ".join(values) or "-"


def _parameter(field: str) -> str:
    return field[len("cgroup[") : -1] if field.startswith("cgroup[") else field


def mode_name(mode: int) -> str:
    """The name of a mode as in the configuration; `-` for none."""
    name = enum_name(api_pb2.Mode, mode)
    return "-" if name == "unspecified" else name


def shown_selector(selector: api_pb2.PodSelector) -> str:
    """A selector as the command `policy` takes it."""
    parts = [f"namespace {', '.join(selector.namespaces)}"] if selector.namespaces else []
    labels = [f"{key}={value}" for key, value in sorted(selector.match_labels.items())]
    for each in selector.match_expressions:
        if each.values:
            labels.append(f"{each.key} {each.operator.lower()} ({', '.join(each.values)})")
        else:
            labels.append(each.key if each.operator == "Exists" else f"!{each.key}")
    return " and ".join([*parts, ",".join(labels)] if labels else parts) or "all pods"


def _state(name: str) -> Cell:
    if name in _GOOD_STATES:
        return Cell(name, GOOD)
    return Cell(name, BAD if name in _BAD_STATES else DOUBTFUL)
