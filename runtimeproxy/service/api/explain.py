"""Explain: of each field of a pod what was asked for, who wants what, and what the kernel has.

The book of a cgroup has most of it. The policies run again, for answers that are not
claims: of those that are off, fail, or run in dry-run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.api_names import MODES, ROLES
from runtimeproxy.cgroups.paths import CgroupPathError, cgroup_path
from runtimeproxy.core.questions import not_stopped
from runtimeproxy.fields.tables import LISTS, QUOTA, RESOURCE_PARAMETERS
from runtimeproxy.hooks.algebra import Claim, ClaimOutcome
from runtimeproxy.hooks.audit import AuditEntry, AuditKind
from runtimeproxy.hooks.decision import evaluation_of, unmet_for
from runtimeproxy.hooks.fields import (
    ANNOTATIONS,
    CDI_DEVICES,
    CGROUP_PARENT,
    LABELS,
    RESOURCES,
    UNIFIED,
    pod_of,
)
from runtimeproxy.hooks.loaded import LoadedPolicy, overridden_methods
from runtimeproxy.hooks.policy import Mode
from runtimeproxy.hooks.views import ContainerView, PodView
from runtimeproxy.katalyst.explain import reasons
from runtimeproxy.ledger import books
from runtimeproxy.ledger.answers import (
    at_next_start,
    by_parameter,
    class_cgroups,
    target_of_view,
    with_requests,
)
from runtimeproxy.ledger.tree import BURST, MEMORY_AT_LEAST_MIN, MEMORY_MIN
from runtimeproxy.ledger.unapplied import Unapplied, UnappliedCause
from runtimeproxy.pods.record_views import recorded_container, recorded_pod
from runtimeproxy.pods.records import Book, ContainerRecord, Entry, Level, Lifecycle, PodRecord
from runtimeproxy.qos import kube_qos_class
from runtimeproxy.service.api.claims import claim_message, wall_time
from runtimeproxy.service.api.pods import find_containers, find_pod, parameter_of
from runtimeproxy.service.api.strategies import source_field, strategy_fields
from runtimeproxy.service.api.unapplied import unapplied_messages
from runtimeproxy.service.api.values import shown, timestamp
from runtimeproxy.service.pod_names import names_of
from runtimeproxy.vocabulary import ClaimKey, ClaimLevel

if TYPE_CHECKING:
    from runtimeproxy.cgroups.writer import FileText
    from runtimeproxy.core.policies import PolicySet
    from runtimeproxy.frontends.nri.state import NriState
    from runtimeproxy.hooks.claimants import Claimant
    from runtimeproxy.hooks.decision import Decision
    from runtimeproxy.hooks.views import Resources
    from runtimeproxy.ledger.books import Formats
    from runtimeproxy.ledger.leased import LeasedClaims, OwnedClaims
    from runtimeproxy.node.snapshot import Node
    from runtimeproxy.service.api.pods import PodMessages

LOOK_S: Final = 2.0
"""How long reading the files of one pod may take: it takes milliseconds."""
EVALUATION_S: Final = 5.0
MOST_HUNG: Final = 1
"""Reads that may hang at a time: other work needs the threads."""

NOT_RECORDED: Final = "<changed>"
"""Of environment variables, mounts and devices: records hold none of their values."""

LEVELS: Final = {
    Level.NODE: api_pb2.LEVEL_NODE,
    Level.QOS_CLASS: api_pb2.LEVEL_QOS_CLASS,
    Level.POD: api_pb2.LEVEL_POD,
    Level.CONTAINER: api_pb2.LEVEL_CONTAINER,
}
_EFFECTS: Final = {
    ClaimOutcome.LOST: api_pb2.ExplainedClaim.EFFECT_LOST,
    ClaimOutcome.VOID: api_pb2.ExplainedClaim.EFFECT_VOID,
    ClaimOutcome.CLAMPED: api_pb2.ExplainedClaim.EFFECT_CLAMPED,
}
_OUTCOMES: Final = {
    AuditKind.FAILED: api_pb2.PolicyAnswer.OUTCOME_FAILED,
    AuditKind.INVALID: api_pb2.PolicyAnswer.OUTCOME_FAILED,
    AuditKind.REFUSED: api_pb2.PolicyAnswer.OUTCOME_REFUSES,
    AuditKind.OFF: api_pb2.PolicyAnswer.OUTCOME_OFF,
    AuditKind.CHANGED: api_pb2.PolicyAnswer.OUTCOME_CHANGES,
    AuditKind.WOULD_CHANGE: api_pb2.PolicyAnswer.OUTCOME_CHANGES,
    AuditKind.CONFLICT: api_pb2.PolicyAnswer.OUTCOME_CHANGES,
    AuditKind.LEFT_OUT: api_pb2.PolicyAnswer.OUTCOME_CHANGES,
}

_FITTED: Final = {
    BURST: "the kernel takes no burst above the quota",
    QUOTA: "fitted to the quotas of the cgroups above and below it, and to those that the runtime may write",
    **dict.fromkeys(LISTS, "fitted to the lists of the cgroups above and below it"),
    **dict.fromkeys(MEMORY_AT_LEAST_MIN, f"it is not lower than {MEMORY_MIN}"),
}
"""Why a value is not applied as the claims have it: see `runtimeproxy.ledger.tree`."""


class _Subject(NamedTuple):
    """A cgroup to explain."""

    level: Level
    cgroup: str
    record: PodRecord | ContainerRecord | None = None
    view: PodView | ContainerView | None = None
    qos: str = ""
    """Of a QoS class."""


class FilesRead(NamedTuple):
    """What a look at the files of a cgroup found."""

    present: Mapping[str, FileText] = {}
    problem: str = ""


class Explainer:
    """Explains pods. Used in the event loop's thread.

    Args:
        messages: Has records, values and the node.
        policies: Those in use.
        leased: Claims of owners outside of this process.
        executor: Threads for files.
        nri: Knows what the runtime drops of its plugin's replies; None in other modes.
        pod_notes: By a pod's uid: what plugins of the QoS manager say of it, and which leave it out.
    """

    def __init__(
        self,
        messages: PodMessages,
        policies: PolicySet,
        leased: LeasedClaims,
        executor: Executor,
        nri: NriState | None = None,
        pod_notes: Callable[[str], Iterable[str]] = lambda _uid: (),
    ) -> None:
        self._nri = nri
        self._pod_notes = pod_notes
        self._messages = messages
        self._inventory = messages.inventory
        self._ledger = messages.ledger
        self._node = messages.node
        self._policies = policies
        self._leased = leased
        self._executor = executor
        self._hung: set[asyncio.Future[Any]] = set()
        self._lock = asyncio.Lock()

    async def explain(self, pod_text: str, container_text: str) -> api_pb2.ExplainResponse:
        """See the proto.

        Raises:
            UnknownPodError: There is no such pod or container.
            AmbiguousPodError: Several pods are like that.
        """
        # One at a time: intercepted calls need the threads of the policies, too.
        async with self._lock:
            return await self._explained(pod_text, container_text)

    async def _explained(self, pod_text: str, container_text: str) -> api_pb2.ExplainResponse:
        store = self._inventory.store
        pod = find_pod(store, pod_text)
        containers = find_containers(store, pod, container_text)
        node, running = self._node.latest, not_stopped(store.containers.members(pod.id))
        view = recorded_pod(with_requests(pod, running))
        subjects = list(self._subjects(pod, view, containers, only_containers=bool(container_text)))
        decisions = [
            None
            if subject.view is None
            else await self._policies.chain.evaluate(subject.view, budget_s=EVALUATION_S)
            for subject in subjects
        ]
        found = await self._look(zip(subjects, decisions, strict=True))
        strategy = node.strategy_for(view)
        strategies = list(strategy_fields(strategy, strategy.provenance))
        targets = []
        for subject, decision in zip(subjects, decisions, strict=True):
            files = found.get(subject.cgroup, FilesRead())
            targets.append(self._target(subject, files, decision, node, strategies))
        label, names = self._policies.skip_label, names_of(pod, node)
        errors = [str(each) for each in strategy.problems if not each.is_unknown_name]
        left_out = _left_out(filter(None, decisions), known=errors)
        return api_pb2.ExplainResponse(
            pod=self._messages.of(pod),
            targets=targets,
            strategies=strategies,
            problems=(*errors, *left_out, *map(str, names.misspelled)),
            notes=(
                *map(str, names.others),
                *_reasons_of_pools(node, pod.uid),
                *self._pod_notes(pod.uid),
            ),
            time=timestamp(time.time()),
            is_skipped=label is not None and pod.labels.get(label[0]) == label[1],
        )

    def _subjects(
        self, pod: PodRecord, view: PodView, containers: Iterable[ContainerRecord], *, only_containers: bool
    ) -> Iterator[_Subject]:
        if not only_containers:
            yield _Subject(Level.POD, pod.cgroup_parent, pod, view)
        for box in containers:
            cgroup = self._inventory.cgroup_of(pod, box)
            yield _Subject(Level.CONTAINER, cgroup, box, recorded_container(box, view))
        if only_containers or not pod.cgroup_parent:
            return
        try:
            path = cgroup_path(pod.cgroup_parent)
        except CgroupPathError:
            return
        qos = kube_qos_class(pod.cgroup_parent)
        classes = class_cgroups([(path, qos)])
        for cgroup in dict.fromkeys(classes[each] for each in classes if each is qos):
            if self._ledger.books.record(cgroup) is not None:
                yield _Subject(Level.QOS_CLASS, cgroup, qos=qos)

    async def _look(self, subjects: Iterable[tuple[_Subject, Decision | None]]) -> Mapping[str, FilesRead]:
        """Reads the files of all cgroups in a thread, for a bounded time."""
        ledger = self._ledger
        wanted = {
            subject.cgroup: names
            for subject, decision in subjects
            if subject.cgroup and (names := tuple(self._names(subject, decision)))
        }
        if not wanted:
            return {}
        if len(self._hung) >= MOST_HUNG:
            return dict.fromkeys(wanted, FilesRead(problem="an earlier read of its files has not ended"))
        run = asyncio.get_running_loop().run_in_executor(self._executor, partial(_read, ledger.look, wanted))
        await asyncio.wait({run}, timeout=LOOK_S)
        if run.done():
            return run.result()
        self._hung.add(run)
        run.add_done_callback(self._hung.discard)
        return dict.fromkeys(wanted, FilesRead(problem=f"its files could not be read within {LOOK_S:g} s"))

    def _names(self, subject: _Subject, decision: Decision | None) -> Iterable[str]:
        """The parameters of a cgroup that have a value, or would have one without dry-run."""
        book = self._ledger.books.record(subject.cgroup)
        entries = () if decision is None else decision.audit
        of_policies = (parameter_of(each.field) for each in entries if each.kind is AuditKind.WOULD_CHANGE)
        of_owners = (key.field for _, key, _ in self._dry_run_claims(subject))
        names = (*(() if book is None else book.entries), *of_policies, *of_owners)
        return dict.fromkeys(filter(None, names))

    def _target(
        self,
        subject: _Subject,
        files: FilesRead,
        decision: Decision | None,
        node: Node,
        strategies: list[api_pb2.StrategyField],
    ) -> api_pb2.ExplainedTarget:
        record = subject.record
        book = self._ledger.books.record(subject.cgroup) if subject.cgroup else None
        entries = () if decision is None else decision.audit
        fields: dict[str, api_pb2.ExplainedField] = {}
        if book is not None:
            for name, entry in sorted(book.entries.items()):
                fields[name] = self._field(book, name, entry, files, record)
        if record is not None:
            for name, owners in sorted(record.owners.items()):
                # Without a cgroup of its own a message has given it all that it has.
                if not parameter_of(name) or not subject.cgroup:
                    fields[name] = _message_field(record, name, owners, decision)
        self._add_dry_run(subject, entries, fields)
        self._add_observed(files, fields)
        self._add_unapplied(subject, decision, fields)
        self._add_strategies(fields.values(), strategies, decision, node)
        box = record if isinstance(record, ContainerRecord) else None
        view = subject.view
        answers = () if view is None else _answers(self._policies, view, node, decision)
        return api_pb2.ExplainedTarget(
            level=LEVELS[subject.level],
            cgroup=subject.cgroup,
            container=box.name if box is not None else "",
            container_id=box.id if box is not None else "",
            fields=fields.values(),
            policies=answers,
            problem=files.problem,
        )

    def _add_dry_run(
        self,
        subject: _Subject,
        entries: Iterable[AuditEntry],
        fields: dict[str, api_pb2.ExplainedField],
    ) -> None:
        """Adds what policies and owners in dry-run would change."""
        record = subject.record
        for audited in entries:
            if audited.kind is AuditKind.WOULD_CHANGE and audited.field:
                name = parameter_of(audited.field) or audited.field
                field = fields.setdefault(name, api_pb2.ExplainedField(name=name))
                if not field.claims and isinstance(record, ContainerRecord):
                    _add_message_values(field, record, audited.field)
                field.claims.append(_dry_run_claim(audited))
        for owned, key, claim in self._dry_run_claims(subject):
            field = fields.setdefault(key.field, api_pb2.ExplainedField(name=key.field))
            field.claims.append(
                api_pb2.ExplainedClaim(
                    owner=str(claim.owner),
                    role=ROLES[key.role],
                    value=claim_message(key, claim).value or None,
                    priority=claim.priority,
                    reason=str(claim.reason),
                    effect=api_pb2.ExplainedClaim.EFFECT_DRY_RUN,
                    effect_reason=f"owner {owned.owner.name} is in dry-run",
                    ceiling=shown(claim.ceiling),
                    mode=api_pb2.MODE_DRY_RUN,
                    lease_end=wall_time(owned.end_s(key.role), self._leased.now_s()),
                )
            )

    def _add_observed(self, files: FilesRead, fields: Mapping[str, api_pb2.ExplainedField]) -> None:
        """Adds the contents of files to fields that have no value of ours."""
        for name, file in files.present.items():
            if name in fields and not fields[name].HasField("observed"):
                observed = shown(self._ledger.books.formats.decode(name, file.text))
                now = api_pb2.ExplainedField(file=file.file, observed=file.text, observed_value=observed)
                fields[name].MergeFrom(now)

    def _add_unapplied(
        self, subject: _Subject, decision: Decision | None, fields: dict[str, api_pb2.ExplainedField]
    ) -> None:
        """Adds what is wanted of the cgroup and not in force, with the reasons."""
        unapplied, identity = self._ledger.books.unapplied, _identity(subject.cgroup)
        found = [*unapplied.values(subject.record.id)] if subject.record is not None else []
        if identity:
            found += unapplied.values(identity)
            found += (each for each in self._leased.unapplied() if _identity(each.target.cgroup) == identity)
        if decision is not None:
            known = {each.field for each in found}
            found += (each for each in self._not_carried(subject, decision) if each.field not in known)
        for each in found:
            # The resources of a sandbox's message are not those of its pod's cgroup.
            parameter = parameter_of(each.field) if subject.level is not Level.POD else ""
            name = parameter or each.field
            if name not in fields:
                fields[name] = api_pb2.ExplainedField(name=name)
                if isinstance(subject.record, ContainerRecord):
                    _add_message_values(fields[name], subject.record, each.field)
            field = fields[name]
            field.unapplied.extend(unapplied_messages([each]))
            if each.cause is UnappliedCause.NEXT_START:
                field.way = api_pb2.ExplainedField.WAY_NEXT_START
            if not field.problem and each.cause is not UnappliedCause.CONFLICT:
                field.problem = each.reason

    def _not_carried(self, subject: _Subject, decision: Decision) -> Iterator[Unapplied]:
        """What no creation carries: of something new that is noted with its first evaluation only."""
        record, view = subject.record, subject.view
        if record is None or view is None:
            return
        target = target_of_view(view, subject.cgroup)
        for name, each in at_next_start(decision, record, self._policies.chain.carried).items():
            if each.cause is UnappliedCause.NOT_CARRIED:
                owners = tuple(dict.fromkeys(claim.owner for claim in each.claims))
                yield Unapplied(target, name, each.wanted, owners, each.cause, each.reason, record.created_s)

    def _dry_run_claims(self, subject: _Subject) -> Iterator[tuple[OwnedClaims, ClaimKey, Claim]]:
        """The claims with a lease on a cgroup that are not applied."""
        if isinstance(subject.record, ContainerRecord):
            return self._leased.dry_run(ClaimLevel.CONTAINER, subject.record.id)
        if isinstance(subject.record, PodRecord):
            return self._leased.dry_run(ClaimLevel.POD, subject.record.uid)
        return self._leased.dry_run(ClaimLevel.QOS_CLASS, subject.qos)

    def _is_dropped(self, name: str) -> bool:
        """Whether the runtime takes a cgroup parameter of a container from no message."""
        state = self._nri
        return state is not None and any(
            RESOURCE_PARAMETERS.get(each.field.removeprefix(f"{RESOURCES}.")) == name
            for each in state.not_carried
            if each.runtime == state.runtime
        )

    def _set_by_other_plugin(self, name: str, record: PodRecord | ContainerRecord | None) -> str:
        """Why a container's cgroup parameter goes by file in mode `nri`; empty if no other plugin sets it."""
        fields = self._nri.fields_of_others.get(record.id, {}) if self._nri and record is not None else {}
        for field, plugin in fields.items():
            if RESOURCE_PARAMETERS.get(field.removeprefix(f"{RESOURCES}.")) == name:
                return f"the runtime's plugin {plugin} sets it, too: it goes by file"
        return ""

    def _field(
        self,
        book: Book,
        name: str,
        entry: Entry,
        files: FilesRead,
        record: PodRecord | ContainerRecord | None,
    ) -> api_pb2.ExplainedField:
        ledger, found = self._ledger, files.present.get(name)
        formats = ledger.books.formats
        opening_us = ledger.books.openings_us.get(cgroup_path(book.id), 0)
        result = books.resolved(
            book.level, name, entry, book.originals, found, formats, ledger.books.rule, opening_us
        )
        file = found.file if found is not None else formats.file_of(name) or ""
        original = book.originals.get(file)
        is_recovered = record is not None and record.recovered
        observed = shown(formats.decode(name, found.text)) if found is not None else None
        is_different = False
        if found is not None and entry.resolved is not None:
            is_different = not formats.matches(name, entry.resolved, found.text)
            # Not every file can be turned back exactly: a weight stands for several shares.
            observed = observed if is_different else shown(entry.resolved)
        field = api_pb2.ExplainedField(
            name=name,
            file=file,
            requested=shown(entry.requested),
            is_request_unknown=is_recovered and book.level is Level.CONTAINER,
            claims=_claims(entry, result.used, result.notes, self._leased),
            resolved=shown(result.value) if entry.claims else None,
            booked=shown(entry.booked),
            applied=shown(entry.resolved),
            original=original.text if original is not None else None,
            observed=found.text if found is not None else None,
            observed_value=observed,
            is_different=is_different,
            problem=result.problem
            or self._unapplied(book.id, name)
            or self._left(book.id, name)
            or self._set_by_other_plugin(name, record)
            or (_difference(name, entry, result.value, found, record, formats) if not files.problem else ""),
            is_observed_only=entry.is_once or name in ledger.books.observed,
            way=_way(entry, is_dropped=book.level is Level.CONTAINER and self._is_dropped(name)),
        )
        for each in ledger.yielded():
            if each.name == name and "/" + "/".join(each.path) == book.id:
                until = timestamp(time.time() + each.left_s)
                field.yielded.CopyFrom(
                    api_pb2.YieldedValue(
                        cgroup=book.id, field=name, ours=str(each.ours), theirs=str(each.theirs), until=until
                    )
                )
        return field

    def _unapplied(self, cgroup: str, name: str) -> str:
        """Why a wanted value is not in force; empty if it is."""
        found = (each for each in self._ledger.books.unapplied.values(cgroup) if each.field == name)
        return next((each.reason for each in found if each.cause is not UnappliedCause.CONFLICT), "")

    def _left(self, cgroup: str, name: str) -> str:
        """Why a value is left as it is that is no longer wanted; empty for nothing."""
        found = (each for each in self._ledger.failures.left if (each.cgroup, each.name) == (cgroup, name))
        return next((each.error for each in found), "")

    def _add_strategies(
        self,
        fields: Iterable[api_pb2.ExplainedField],
        strategies: list[api_pb2.StrategyField],
        decision: Decision | None,
        node: Node,
    ) -> None:
        """Adds to each claim the fields of strategies that it follows from.

        Where its policy does not say it: all that the policy answers by.
        """
        parts: dict[str, frozenset[str]] = {
            policy.name: getattr(policy.policy, "strategy_parts", frozenset())
            for policy in self._policies.chain.policies
        }
        pod = None if decision is None else pod_of(decision.merged.start)
        strategy = None if pod is None else node.strategy_for(pod)
        for field in fields:
            for claim in field.claims:
                named = decision.sources_of(claim.owner, claim.reason) if decision is not None else None
                if named is not None:
                    claim.strategies.extend(source_field(each, strategy, node.strategies) for each in named)
                    continue
                wanted = parts.get(str(claim.owner), frozenset())
                claim.strategies.extend(each for each in strategies if each.path.split(".")[0] in wanted)


def _way(entry: Entry, *, is_dropped: bool) -> api_pb2.ExplainedField.Way.ValueType:
    """How the applied value of a cgroup parameter got there."""
    if entry.resolved is None:
        return api_pb2.ExplainedField.WAY_UNSPECIFIED
    # The runtime writes what its specification holds.
    is_in_message = entry.resolved == entry.booked and not is_dropped
    return api_pb2.ExplainedField.WAY_MESSAGE if is_in_message else api_pb2.ExplainedField.WAY_FILE


def _identity(cgroup: str) -> str:
    try:
        return "/" + "/".join(cgroup_path(cgroup)) if cgroup else ""
    except CgroupPathError:
        return ""


def _difference(
    name: str,
    entry: Entry,
    value: object,
    found: FileText | None,
    record: PodRecord | ContainerRecord | None,
    formats: Formats,
) -> str:
    """Why the applied value is not the resolved one; empty if it is, or the file holds it already."""
    if not isinstance(value, int | str) or entry.resolved == value:
        return ""
    if found is not None and entry.resolved is None:
        return "" if formats.matches(name, value, found.text) else "it has not been written yet"
    if entry.resolved is not None:
        return _FITTED.get(name, "fitted to the range of the parameter")
    if isinstance(record, ContainerRecord) and record.state is Lifecycle.CREATED:
        return "it is written when the container has started"
    return "its cgroup has no such file"


def _read(
    look: Callable[[str, Iterable[str]], Mapping[str, FileText]], wanted: Mapping[str, tuple[str, ...]]
) -> dict[str, FilesRead]:
    """In a worker thread."""
    found: dict[str, FilesRead] = {}
    for cgroup, names in wanted.items():
        try:
            found[cgroup] = FilesRead(look(cgroup, names))
        except OSError as error:
            found[cgroup] = FilesRead(problem=f"its files cannot be read: {error.strerror}")
    return found


def _claims(
    entry: Entry, used: Iterable[Claim], notes: Iterable[Any], leased: LeasedClaims
) -> Iterator[api_pb2.ExplainedClaim]:
    """First the claims that count, then the others with the reason."""
    known = {note.claim: note for note in notes}
    counting = [claim for claim in used if claim in entry.claims]
    for claim in (*counting, *(each for each in entry.claims if each not in counting)):
        note = known.get(claim)
        effect = api_pb2.ExplainedClaim.EFFECT_USED if note is None else _EFFECTS[note.outcome]
        yield api_pb2.ExplainedClaim(
            owner=str(claim.owner),
            role=ROLES[claim.role],
            value=shown(claim.value),
            priority=claim.priority,
            reason=str(claim.reason),
            effect=effect,
            effect_reason="" if note is None else note.reason,
            ceiling=shown(claim.ceiling),
            mode=api_pb2.MODE_ENFORCE,
            lease_end=wall_time(leased.end_s(claim), leased.now_s()),
        )


def _dry_run_claim(entry: AuditEntry) -> api_pb2.ExplainedClaim:
    return api_pb2.ExplainedClaim(
        owner=entry.policy,
        role=api_pb2.ExplainedClaim.ROLE_SET,
        value=entry.new or None,
        reason=entry.reason,
        effect=api_pb2.ExplainedClaim.EFFECT_DRY_RUN,
        effect_reason="the policy is in dry-run",
        mode=api_pb2.MODE_DRY_RUN,
    )


def _add_message_values(field: api_pb2.ExplainedField, record: ContainerRecord, name: str) -> None:
    """Adds what the kubelet asked for, and what the book has. `name`: of a message's field or a parameter."""
    requested = shown(by_parameter(record.requested).get(field.name))
    if name.startswith(f"{RESOURCES}."):
        requested = _resource(record.requested, name)
    booked = field.booked or shown(by_parameter(record.booked).get(field.name))
    field.MergeFrom(api_pb2.ExplainedField(requested=requested, booked=booked))


def _message_field(
    record: PodRecord | ContainerRecord, name: str, owners: Iterable[Claimant], decision: Decision | None
) -> api_pb2.ExplainedField:
    """A field of the message that is not a cgroup parameter.

    Records do not have the reasons: they are those of what policies would answer now, where that is the same.
    """
    value, requested = _message_value(record, name), None
    reasons: dict[Claimant, str] = {}
    merged = {} if decision is None else decision.merged.fields
    by_policy = {} if decision is None else decision.merged.reasons
    for field, each in merged.items():
        if str(field) == name and value in (NOT_RECORDED, shown(each.value)):
            reasons = {owner: by_policy.get(owner.name, "") for owner in each.owners}
            reasons |= {claim.owner: str(claim.reason) for claim in each.claims}
    if name.startswith(f"{RESOURCES}."):
        requested = _resource(record.requested, name)
    claims = [
        api_pb2.ExplainedClaim(
            owner=each.label,
            role=api_pb2.ExplainedClaim.ROLE_SET,
            value=value,
            reason=reasons.get(each, ""),
            effect=api_pb2.ExplainedClaim.EFFECT_USED,
            mode=api_pb2.MODE_ENFORCE,
        )
        for each in owners
    ]
    way = api_pb2.ExplainedField.WAY_MESSAGE
    return api_pb2.ExplainedField(
        name=name, requested=requested, claims=claims, applied=value, resolved=value, way=way
    )


def _message_value(record: PodRecord | ContainerRecord, name: str) -> str | None:
    """The value that was sent to the runtime; None if policies have cleared it."""
    if name.startswith(f"{RESOURCES}."):
        return _resource(record.booked, name)
    group, _, key = name.removesuffix("]").partition("[")
    if group in (LABELS, ANNOTATIONS):
        value: str | None = getattr(record, group).get(key)
        return value
    if group == CGROUP_PARENT and isinstance(record, PodRecord):
        return record.cgroup_parent
    return key if group == CDI_DEVICES else NOT_RECORDED


def _resource(resources: Resources, name: str) -> str | None:
    group, _, key = name.removesuffix("]").partition("[")
    if group == UNIFIED:
        return resources.unified.get(key)
    return shown(getattr(resources, group.removeprefix(f"{RESOURCES}."), None))


def _answers(
    policies: PolicySet,
    view: PodView | ContainerView,
    node: Node,
    decision: Decision | None,
) -> Iterator[api_pb2.PolicyAnswer]:
    """What each policy says to the pod or container."""
    by_policy: dict[str, list[AuditEntry]] = {}
    wanting: dict[str, str] = {}
    if decision is not None:
        for entry in decision.audit:
            by_policy.setdefault(entry.policy, []).append(entry)
        reasons = decision.merged.reasons
        owners = {claim.owner.name for each in decision.merged.fields.values() for claim in each.claims}
        wanting = {name: reasons.get(name, "") for name in owners}
    hook = evaluation_of(view)
    pod = view.pod if isinstance(view, ContainerView) else view
    off = _off_by_command(policies, pod)
    in_use = {name: policy for name, policy in _in_use(policies, pod, node).items() if name not in off}
    for name, policy in in_use.items():
        if hook in policy.methods or policy.remote_hooks:
            yield _answer(policy, view, node, by_policy.get(name, []), wanting.get(name))
    yield from _not_in_use(policies, view, in_use.keys(), off)


def _in_use(policies: PolicySet, pod: PodView, node: Node) -> dict[str, LoadedPolicy]:
    """The policies by name; of one that runs in several modes the part for this pod, else any."""
    parts: dict[str, LoadedPolicy] = {}
    for policy in policies.chain.policies:
        if policy.name not in parts or policy.selector_on(node).matches(pod):
            parts[policy.name] = policy
    return parts


def _not_in_use(
    policies: PolicySet, view: PodView | ContainerView, in_use: Collection[str], off: Mapping[str, str]
) -> Iterator[api_pb2.PolicyAnswer]:
    """The policies that are off or not loaded."""
    method = "container" if isinstance(view, ContainerView) else "pod"
    for each in policies.loaded.classes:
        if method in overridden_methods(each) and each.name not in in_use:
            is_configured = policies.configured(each.name).enabled is False
            default = "off by the configuration" if is_configured else "off by default"
            yield api_pb2.PolicyAnswer(
                policy=each.name,
                mode=api_pb2.MODE_OFF,
                outcome=api_pb2.PolicyAnswer.OUTCOME_OFF,
                reason=off.get(each.name, default),
            )
    names = {each.name for each in policies.loaded.classes}
    for problem in policies.loaded.problems:
        if problem.name not in names:
            yield api_pb2.PolicyAnswer(
                policy=problem.name,
                mode=api_pb2.MODE_OFF,
                outcome=api_pb2.PolicyAnswer.OUTCOME_FAILED,
                reason=f"not loaded: {problem.text}",
            )


def _off_by_command(policies: PolicySet, pod: PodView) -> dict[str, str]:
    """Why policies are off for a pod that an operator has switched off; the last command counts."""
    found: dict[str, str] = {}
    for each in policies.modes.present:
        if each.selector.matches(pod):
            found.pop(each.policy, None)
            if each.mode is Mode.OFF:
                found[each.policy] = "off by command" + (f": {each.reason}" if each.reason else "")
    return found


def _answer(
    policy: LoadedPolicy,
    view: PodView | ContainerView,
    node: Node,
    entries: list[AuditEntry],
    wanted_for: str | None,
) -> api_pb2.PolicyAnswer:
    outcome, reason = api_pb2.PolicyAnswer.OUTCOME_NOTHING, "selects this pod, and found nothing to change"
    pod = view.pod if isinstance(view, ContainerView) else view
    if policy.remote_hooks:
        outcome, reason = api_pb2.PolicyAnswer.OUTCOME_NOT_ASKED, "hook servers are asked in calls only"
    elif why_not := policy.why_not_for(pod, node):
        outcome, reason = api_pb2.PolicyAnswer.OUTCOME_NOT_SELECTED, why_not
    elif (unmet := unmet_for(policy, view, node)) is not None:
        outcome, reason = api_pb2.PolicyAnswer.OUTCOME_OFF, str(unmet)
    else:
        if wanted_for is not None:
            outcome, reason = api_pb2.PolicyAnswer.OUTCOME_CHANGES, wanted_for
        for entry in entries:
            if entry.kind in _OUTCOMES:
                outcome, reason = _OUTCOMES[entry.kind], entry.reason
                if entry.kind in (AuditKind.FAILED, AuditKind.INVALID, AuditKind.REFUSED):
                    break
    return api_pb2.PolicyAnswer(
        policy=policy.name, mode=MODES.get(policy.mode, MODES[Mode.ENFORCE]), outcome=outcome, reason=reason
    )


def _left_out(decisions: Iterable[Decision], known: Collection[str]) -> tuple[str, ...]:
    """Why policies leave out what annotations or strategies ask for, each once; single fields say it."""
    return tuple(
        {
            f"{entry.policy}: {entry.reason}": None
            for decision in decisions
            for entry in decision.audit
            if entry.kind is AuditKind.LEFT_OUT and not entry.field and entry.reason not in known
        }
    )


def _reasons_of_pools(node: Node, uid: str) -> Iterator[str]:
    """Why a pod has its CPUs of Katalyst's pools, with the arithmetic."""
    if (pools := node.cpu_pools) is not None:
        yield from (f"katalyst-pools: {each}" for each in reasons(pools.state, uid, pools.advice))
