"""Keeps the values of what runs: asks the policies again when something changes, and compares the files.

Used in the event loop's thread; files are read and written in worker threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from runtimeproxy.cgroups.pace import rest, with_rests
from runtimeproxy.cgroups.paths import cgroup_id, cgroup_path, path_or_none
from runtimeproxy.cgroups.resctrl import GROUP_FIELD, MONITOR_FIELD
from runtimeproxy.fields.kernel_settings import RESCTRL_GROUPS
from runtimeproxy.fields.network import CLASS_FIELD, EGRESS_FIELD, INGRESS_FIELD
from runtimeproxy.fields.tables import FIELDS, OF_PROCESSES
from runtimeproxy.hooks.claimants import Claimant, ClaimantKind
from runtimeproxy.hooks.fields import KERNEL_SETTINGS, SYSCTL
from runtimeproxy.hooks.policy import Hook
from runtimeproxy.hooks.views import ClassView, ResolvedPod
from runtimeproxy.ledger.answers import (
    class_cgroups,
    lost_settings,
    settings_of,
    target_of,
    wanted_of,
    wanted_of_node,
    with_requests,
)
from runtimeproxy.ledger.barrier import Barrier
from runtimeproxy.ledger.books import Wanted
from runtimeproxy.ledger.change_log import ChangeLog
from runtimeproxy.ledger.evaluate import Evaluator, unknown_cgroups
from runtimeproxy.ledger.fields import PROCESSES_VERIFY_S, VERIFY_S
from runtimeproxy.ledger.kernel_settings import field_of
from runtimeproxy.ledger.rates import ChangeRates
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.ledger.unapplied import Unapplied, UnappliedCause, UnappliedStage, Withheld
from runtimeproxy.ledger.unapplied_audit import UnappliedAudit
from runtimeproxy.logs import FailureLog
from runtimeproxy.node.snapshot import Input
from runtimeproxy.pods.record_views import recorded_container, recorded_pod
from runtimeproxy.pods.records import ContainerRecord, Level, Lifecycle, PodRecord, with_live
from runtimeproxy.qos import KubeQoSClass, kube_qos_class
from runtimeproxy.units import UNLIMITED

if TYPE_CHECKING:
    from runtimeproxy.config.settings import LedgerSettings
    from runtimeproxy.hooks.audit import AuditSink
    from runtimeproxy.hooks.carried import CarriedFields
    from runtimeproxy.hooks.chain import Chain
    from runtimeproxy.hooks.decision import Decision
    from runtimeproxy.ledger.answer_audit import AnswerAudit
    from runtimeproxy.ledger.kernel_settings import KernelSettings
    from runtimeproxy.ledger.ledger import Ledger
    from runtimeproxy.ledger.network import NetworkControl
    from runtimeproxy.node.snapshot import Node
    from runtimeproxy.pods.store import PodStore

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

TICK_S: Final = 1.0
"""How often it is checked what is due. Source: the shortest interval of the field table."""
WORK_S: Final = 30.0
"""How long the work of one thread is waited for. Reads and writes of cgroup files take microseconds, but a
write of a memory limit reclaims first, and a kernel that hangs answers none."""
MOST_HUNG: Final = 2
"""How many threads may hang at a time: calls need the others."""
SEEN_VERIFY_S: Final = 300.0
"""How often pods are compared where writes to them are seen."""
KOORDLET: Final = "koordlet"
"""Begins the name of the registration of koordlet's hook server. Source: Koordinator, koordlet.json."""
KOORDLETS: Final[Mapping[str, str]] = {name: each.koordlet for name, each in FIELDS.items() if each.koordlet}
"""What koordlet writes to files itself, from time to time, and its feature gate for it."""
KOORDLETS_CLAIMS: Final[Mapping[str, str]] = {
    **KOORDLETS,
    **{name: each.koordlet_moves for name, each in FIELDS.items() if each.koordlet_moves},
}
"""The same, and what koordlet's plugins move from second to second: claims with a lease would stand in their
way, and policies do not."""


class Upkeep:
    """Keeps the values of running pods.

    Args:
        cgroup_of: The cgroup of a container; empty if it is not known.
        carried: What the front end carries.
        is_idle: Whether nothing is to be done: no policies are loaded, or another process decides.
        sysctls: Those that policies set; None leaves them alone.
        audit: Takes the audit entries of changed values; None for none.
        answers: Takes the decisions, for the audit; None for none.
        network: Has classes and limits of pods; None where it is not managed.

    Attributes:
        network: See there.
        on_observed: Called with what claims with a lease are to leave to koordlet, and its feature gates.
        sees_writes: Whether the front end has pods repaired once somebody writes to them: they are compared
            less often then.
    """

    def __init__(
        self,
        store: PodStore,
        ledger: Ledger,
        chain: Callable[[], Chain],
        cgroup_of: Callable[[PodRecord, ContainerRecord], str],
        executor: Executor,
        is_idle: Callable[[], bool],
        carried: CarriedFields,
        sysctls: KernelSettings | None = None,
        audit: AuditSink | None = None,
        answers: AnswerAudit | None = None,
        network: NetworkControl | None = None,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._books = ledger.books
        self._answers = answers
        self._sysctls = sysctls
        self._chain = chain
        self._cgroup_of = cgroup_of
        self._executor = executor
        self._is_idle = is_idle
        self._audit = audit
        self._unapplied_audit = UnappliedAudit(audit) if audit is not None else None
        self.evaluator = Evaluator(
            store,
            ledger,
            self._evaluate,
            cgroup_of,
            self.in_worker,
            carried,
            is_idle,
            self._evaluate_others,
            self._prepare,
            self._finish,
            audit,
            answers,
        )
        self._barrier: Barrier | None = None
        if sysctls is not None:
            self._barrier = Barrier(ledger, sysctls, self.in_worker, self._release)
        # The ledger's `pod_changes` when the policies were last asked about QoS classes.
        self._summed_changes = 0
        # Whether sysctls wait until some values are given back.
        self._owes_sysctls = False
        # Kernel settings that one policy wants, and another one has set to another value.
        self._lost_settings: Mapping[str, Withheld] = {}
        # Ids of pods that the network did not have at the last look.
        self._without_network: frozenset[str] = frozenset()
        # Of hook servers, as the owners of claims; None as long as it is not known.
        self._registered: frozenset[Claimant] | None = None
        self._hung: set[asyncio.Future[Any]] = set()
        self._failures = FailureLog(output=logger)
        self._taken: frozenset[str] = frozenset()
        self._has_koordlet = False
        # What koordlet writes: what is observed only, and what is taken from it.
        self._koordlets: tuple[Collection[str], Collection[str]] = frozenset(), frozenset()
        self.network = network
        self.on_observed: Callable[[Mapping[str, str]], None] = lambda _: None
        self.sees_writes: Callable[[], bool] = lambda: False

    @property
    def problem(self) -> str:
        """Why the last changes were not made to the end; empty if they were."""
        of_barrier = self._barrier.problem if self._barrier is not None else ""
        return "; ".join(filter(None, (self.evaluator.changes.problem, of_barrier)))

    @property
    def summary(self) -> str:
        """For the status line: why running pods lack wanted values; empty if they have all."""
        left = len(self._ledger.yielded())
        gates = sorted({KOORDLETS[name] for name in self._books.observed})
        notes = (
            f"left to koordlet, by its feature gates: {', '.join(gates)}" if gates else "",
            self.problem,
            f"values left to other programs: {left}, see the log" if left else "",
            f"hanging reads or writes of files: {len(self._hung)}" if self._hung else "",
        )
        return "; ".join(filter(None, notes))

    @property
    def has_koordlet(self) -> bool:
        return self._has_koordlet

    @property
    def mode_problem(self) -> str:
        return self._barrier.problem if self._barrier is not None else ""

    @property
    def hung(self) -> int:
        return len(self._hung)

    def unapplied(self) -> tuple[Unapplied, ...]:
        """The wanted values of pods, containers and sysctls that are not in force now."""
        values = self._books.unapplied
        self._note_sysctls()
        if values:
            pods = [pod.cgroup_parent for pod in self._store.pods if pod.state is Lifecycle.RUNNING]
            containers = (
                container.id
                for container in self._store.containers
                if container.state is not Lifecycle.STOPPED
            )
            self._books.keep_unapplied(pods, containers, unknown_cgroups(self._store))
        return values.values()

    def audit_unapplied(self) -> None:
        """Has the audit tell what is not in force since the last time; cheap if nothing is new."""
        self._note_sysctls()
        if self._unapplied_audit is not None and self._books.unapplied.has_new:
            self.unapplied()
            self._unapplied_audit.add(self._books.unapplied.take_new())

    def _note_sysctls(self) -> None:
        if self._sysctls is not None:
            target = CgroupTarget(Level.NODE, "", "node")
            for stage, values in (
                (UnappliedStage.BOOKED, self._sysctls.unapplied),
                (UnappliedStage.LOST, self._lost_settings),
            ):
                found = {field_of(name): each for name, each in tuple(values.items())}
                self._books.unapplied.note(stage, target, "", found)
        if self.network is not None:
            self._note_network(self.network.left_out)

    def _note_network(self, left_out: Mapping[str, str]) -> None:
        """Notes the pods whose class or limits the network does not have."""
        for identity in {*left_out, *self._without_network}:
            pod, why = self._store.pods.get(identity), left_out.get(identity)
            path = path_or_none(pod.cgroup_parent) if pod is not None else None
            if pod is None or path is None:
                continue
            book, found = self._books.record(pod.cgroup_parent), dict[str, Withheld]()
            for name in (CLASS_FIELD, EGRESS_FIELD, INGRESS_FIELD):
                entry = book.entries.get(name) if book is not None else None
                if why is not None and entry is not None and entry.claims:
                    found[name] = Withheld(entry.claims, UnappliedCause.REFUSED, why)
            self._books.unapplied.note(UnappliedStage.NETWORK, target_of(pod), cgroup_id(path), found)
        self._without_network = frozenset(left_out)

    def configure(self, settings: LedgerSettings) -> None:
        self.evaluator.changes.rates = ChangeRates(
            pods_per_s=settings.pods_per_s,
            large_percent=settings.large_change_percent,
            failed_percent=settings.failed_percent,
            lowers_memory=settings.lower_memory_limits,
        )
        self._taken = frozenset(settings.take_from_koordlet)
        self._observe()

    async def run(self) -> None:
        await self.evaluator.run()

    async def verify(self, among: Collection[Level] = tuple(VERIFY_S)) -> None:
        """Compares the files at the intervals of their levels, until it is cancelled.

        Args:
            among: The levels to compare. Those of all pods take seconds, and others would wait for them.
        """
        # None: values of processes, which are compared beside the files of their level.
        due = (*among, None) if Level.CONTAINER in among else among
        due_s: dict[Level | None, float] = dict.fromkeys(due, time.monotonic())
        while True:
            await asyncio.sleep(TICK_S)
            now_s = time.monotonic()
            levels = [level for level, at_s in due_s.items() if at_s <= now_s]
            if not levels or self._is_idle() or not self.evaluator.has_evaluated:
                continue
            due_s.update({level: now_s + self._verify_s(level) for level in levels})
            try:
                if Level.QOS_CLASS in levels:
                    self.audit_unapplied()
                await self._compare(levels)
                if self._owes_sysctls and not self._books.has_leftovers:
                    self._owes_sysctls = False
                    self.evaluator.request("sysctls")
                if Level.QOS_CLASS in levels and self._has_other_sums():
                    self.evaluator.request_others()
                if self._barrier is not None and self._barrier.is_due(is_long=Level.NODE in levels):
                    self.evaluator.request("the CPU mode")
            except TimeoutError as error:
                logger.warning("cgroup values could not be compared: %s", error)
            except Exception:  # a bug costs this comparison, not the next one
                logger.exception("cgroup values could not be compared")

    async def _compare(self, due: Collection[Level | None]) -> None:
        running = [pod.cgroup_parent for pod in self._store.pods if pod.state is not Lifecycle.STOPPED]
        levels = [level for level in VERIFY_S if level in due]
        await self.in_worker(partial(with_rests, partial(self._ledger.verify, levels, running)))
        if None in due:
            others = [level for level in VERIFY_S if level not in due]
            verify = partial(self._ledger.verify, others, running, OF_PROCESSES)
            await self.in_worker(partial(with_rests, verify))
            if self._sysctls is not None:
                await self.in_worker(partial(self._sysctls.verify, among=RESCTRL_GROUPS))
                await self.in_worker(partial(self._keep_resctrl, self._sysctls, running))
        if self._sysctls is not None and Level.NODE in due:
            await self.in_worker(self._sysctls.verify)

    def _keep_resctrl(self, sysctls: KernelSettings, running: Collection[str]) -> None:
        """Removes resctrl groups of ours that nothing on this node has any more."""
        try:
            self._keep_wanted(sysctls, running)
        except OSError as error:
            self._failures.report("resctrl", str(error), f"groups cannot be removed: {error}")

    def _keep_wanted(self, sysctls: KernelSettings, running: Collection[str]) -> None:
        groups, monitors = (
            {value.partition(",")[0] for value in self._books.texts_of(name, running)}
            for name in (GROUP_FIELD, MONITOR_FIELD)
        )
        classes = {name.removeprefix(RESCTRL_GROUPS) for name in sysctls.written()}
        sysctls.groups.keep(groups | classes, monitors)

    def _verify_s(self, level: Level | None) -> float:
        if level is None:
            return PROCESSES_VERIFY_S
        return SEEN_VERIFY_S if level is Level.POD and self.sees_writes() else VERIFY_S[level]

    def on_policies(self, not_loaded: Iterable[str]) -> None:
        """Other policies, or the same with other settings, are in use now."""
        self._books.rule = self._chain().rule
        self._books.not_loaded = frozenset(not_loaded)
        self.evaluator.request("policies")

    def on_node_changed(self, node: Node, inputs: Collection[Input]) -> None:
        """Inputs of policies have changed; those that no policy declares make no work."""
        policies = self._chain().policies
        used = {each for policy in policies for each in (*policy.inputs, *policy.optional_inputs)}
        if any(policy.features or policy.optional_features for policy in policies):
            used.add(Input.CGROUPS)
        changed = sorted(used & set(inputs))
        if changed:
            self.evaluator.request(", ".join(changed))

    def on_pods_changed(self, node: Node, uids: Iterable[str]) -> None:
        # The API server says something else of pods; those that do not run here yet make no work.
        if self.revise(node, uids):
            self.evaluator.request("pods of the API server")

    def revise(self, node: Node, uids: Iterable[str]) -> bool:
        """Brings the records of pods up to what the API server says; returns whether there are any."""
        is_any = False
        for uid in uids:
            if (live := node.live_pods.get(uid)) is None:
                continue
            for record in self._store.pods.members(uid):
                is_any = True
                if (new := with_live(record, live)) is not record:
                    self._store.pods.revise(new)
        return is_any

    def on_taken_back(self) -> None:
        # Another process has decided meanwhile, and has ended.
        if self._barrier is not None:
            self._barrier.on_taken_back()

    async def on_compared(self) -> None:
        """The records are those of the runtime: forgets what is gone, and evaluates everything again."""
        pods = {pod.id: pod for pod in self._store.pods if pod.state is not Lifecycle.STOPPED}
        parents = [pod.cgroup_parent for pod in pods.values()]
        self._ledger.forget_gone(parents, (container.id for container in self._store.containers))
        shares = {
            pod.cgroup_parent: pod.requested.cpu_shares
            for pod in pods.values()
            if pod.requested.cpu_shares is not None
        }
        of_containers = {
            self._cgroup_of(pods[container.pod_id], container): container.requested.cpu_shares
            for container in self._store.containers
            if container.state is Lifecycle.RUNNING
            and container.pod_id in pods
            and container.requested.cpu_shares is not None
        }
        try:
            await self.in_worker(partial(self._ledger.measure_weights, Level.POD, shares))
            await self.in_worker(partial(self._ledger.measure_weights, Level.CONTAINER, of_containers))
        finally:
            # Also where a file hangs.
            self.evaluator.request("records")

    def on_servers(self, names: Collection[str]) -> None:
        """These hook servers are registered now; what others have answered is given back next."""
        self._has_koordlet = any(name.startswith(KOORDLET) for name in names)
        self._observe()
        self._registered = frozenset(Claimant(name, ClaimantKind.SERVER) for name in names)
        if self._gone_servers():
            self.evaluator.request("hook servers")

    def _gone_servers(self) -> set[Claimant]:
        if self._registered is None:
            return set()
        return {each for each in self._books.owners() if each.kind is ClaimantKind.SERVER} - self._registered

    def _observe(self) -> None:
        known = KOORDLETS.keys() if self._has_koordlet else frozenset[str]()
        observed, taken = known - self._taken, known & self._taken
        if (observed, taken) == self._koordlets:
            return
        self._koordlets = observed, taken
        self._books.observed = frozenset(observed)
        claims = KOORDLETS_CLAIMS if self._has_koordlet else {}
        self.on_observed({name: gate for name, gate in claims.items() if name not in self._taken})
        if observed:
            text = "koordlet is registered: what it writes behind its feature gates is only observed: %s"
            logger.info(text, gates_of(observed))
        if taken:
            text = "values are taken from koordlet: its feature gates for them are to be off: %s"
            logger.warning(text, gates_of(taken))
        self.evaluator.request("koordlet")

    async def _evaluate(
        self, pod: PodRecord, containers: Sequence[ContainerRecord]
    ) -> tuple[Decision, Sequence[Decision]]:
        chain, view = self._chain(), recorded_pod(with_requests(pod, containers))
        decision = await chain.evaluate(view)
        return decision, [await chain.evaluate(recorded_container(record, view)) for record in containers]

    def _has_other_sums(self) -> bool:
        return (
            self._books.pod_changes != self._summed_changes and Hook.EVALUATE_QOS_CLASS in self._chain().hooks
        )

    async def _evaluate_others(self) -> tuple[Sequence[Wanted], frozenset[str]]:
        chain = self._chain()
        wanted: list[Wanted] = []
        if Hook.EVALUATE_QOS_CLASS in chain.hooks:
            self._summed_changes = self._books.pod_changes
            pods = [pod for pod in self._store.pods if pod.state is not Lifecycle.STOPPED and pod.detailed]
            # Views of all pods take milliseconds.
            views = await self.in_worker(
                partial(with_rests, partial(_class_views, pods, self._ledger, self._store.kubelet_root))
            )
            for cgroup, view in views.items():
                decision = await chain.evaluate(view)
                await self._note_answer(decision, cgroup)
                wanted.append(wanted_of(decision, CgroupTarget(Level.QOS_CLASS, cgroup)))
        if Hook.EVALUATE_NODE not in chain.hooks:
            return wanted, chain.unsettled
        decision = await chain.evaluate(await self.in_worker(chain.node.snapshot))
        await self._note_answer(decision)
        return (*wanted, *wanted_of_node(decision)), decision.without_answer | chain.unsettled

    async def _note_answer(self, decision: Decision, cgroup: str = "") -> None:
        if self._answers is not None:
            await self._answers.add(((decision, cgroup),))

    async def present_values(self, cgroup: str, values: Mapping[str, str]) -> Mapping[str, tuple[str, bool]]:
        """Values of files by parameter, and whether they are the given ones; empty if none can be read."""
        with suppress(OSError):  # a TimeoutError, too
            return await self.in_worker(partial(self._ledger.compared, cgroup, values))
        return {}

    async def is_in_force(self, cgroup: str, name: str = "") -> bool:
        """Whether the files of a cgroup hold the values that were resolved for them.

        `name`: the only one that is asked about; false if none was resolved for it.
        """
        book = self._books.record(cgroup)
        entries = book.entries if book is not None else {}
        wanted = {each: str(entry.resolved) for each, entry in entries.items() if entry.resolved is not None}
        if name:
            wanted = {each: text for each, text in wanted.items() if each == name}
        if not wanted:
            return not name
        present = await self.present_values(cgroup, wanted)
        return all(present.get(each, ("", False))[1] for each in wanted)

    async def on_resized(self, cgroup: str, written: Mapping[str, int | str]) -> None:
        """The kubelet has resized a pod; see `Ledger.on_resized`.

        `written`: the new sums of its containers, which the kubelet has written if the pod has a limit.
        """
        book, limited = self._books.record(cgroup), dict[str, int | str]()
        if book is None or self._is_idle():
            return
        formats = self._books.formats
        for name, value in written.items():
            original = book.originals.get(formats.file_of(name) or "")
            if original is not None and original.text is not None:
                before = formats.decode(name, original.text)
                if before not in (None, UNLIMITED):
                    limited[name] = value
        with suppress(TimeoutError):  # it is compared again
            await self.in_worker(partial(self._ledger.on_resized, cgroup, limited))

    async def repair(self, cgroup: str, *, is_explained: bool = True) -> None:
        """Writes values again that others may have replaced, if there are any; see `Ledger.repair`."""
        if cgroup and not self._is_idle() and self._books.is_managed(cgroup):
            with suppress(TimeoutError):  # it is compared again
                await self.in_worker(partial(self._ledger.repair, cgroup, is_explained=is_explained))

    async def _prepare(self) -> None:
        """Releases values of hook servers that are gone, and sets the CPU mode and the sysctls."""
        gone = self._gone_servers()
        holders = self._books.holders(owners=gone)
        await self._release("the end of a hook server's values", holders, owners=gone)
        if self._barrier is None:
            return
        chain = self._chain()
        self._lost_settings = {}
        wanted: dict[str, int | str] = {}
        unanswered = chain.unsettled | self._books.not_loaded
        if Hook.EVALUATE_NODE in chain.hooks:
            decision = await chain.evaluate(await self.in_worker(chain.node.snapshot))
            wanted, unanswered = settings_of(decision), unanswered | decision.without_answer
            self._lost_settings = lost_settings(decision)
        unanswered -= {each.name for each in chain.policies if _sets_no_settings(each.policy.sets_fields)}
        classes = class_cgroups(
            (path, kube_qos_class(pod.cgroup_parent))
            for pod in self._store.pods
            if (path := path_or_none(pod.cgroup_parent)) is not None
        )
        roots = [cgroup for qos, cgroup in classes.items() if qos is KubeQoSClass.GUARANTEED]
        await self._barrier.pass_to(wanted, roots, is_settled=not unanswered)

    async def _finish(self) -> None:
        # After the values that were wanted with the sysctls.
        if self._barrier is not None:
            self._owes_sysctls = self._books.has_leftovers
            if not self._owes_sysctls:
                await self._barrier.give_back()

    async def _release(
        self,
        change: str,
        cgroups: Iterable[str],
        *,
        owners: Collection[Claimant] = (),
        names: Collection[str] = (),
    ) -> None:
        pods: dict[str, list[str]] = {}
        for cgroup in cgroups:
            book = self._books.record(cgroup)
            is_container = book is not None and book.level is Level.CONTAINER
            pods.setdefault(cgroup.rpartition("/")[0] if is_container else cgroup, []).append(cgroup)

        async def write(log: ChangeLog, group: Sequence[str]) -> bool:
            release = partial(self._ledger.release, group, owners=owners, names=names)
            try:
                applied = await self.in_worker(partial(with_rests, release))
            except TimeoutError:
                return False
            return log.add(applied)

        running = sum(pod.state is Lifecycle.RUNNING for pod in self._store.pods)
        with closing(ChangeLog(self._audit)) as log:
            await self.evaluator.changes.make(change, list(pods.values()), partial(write, log), of=running)

    async def in_worker(self, work: Callable[[], ResultT]) -> ResultT:
        """Reads or writes files in a worker thread.

        Raises:
            TimeoutError: A file hangs, or as many as may have hung before. When it ends, running pods are
                evaluated again.
        """
        if len(self._hung) >= MOST_HUNG:
            raise TimeoutError("earlier reads or writes of files have not ended")
        run = asyncio.get_running_loop().run_in_executor(self._executor, work)
        await asyncio.wait({run}, timeout=WORK_S)
        if run.done():
            return run.result()
        self._hung.add(run)
        run.add_done_callback(self._on_hung_ended)
        text = "a read or write of a file has not ended after %d s"
        logger.warning(text, WORK_S, extra={"hung": len(self._hung)})
        raise TimeoutError(text % WORK_S)

    def _on_hung_ended(self, run: asyncio.Future[Any]) -> None:
        self._hung.discard(run)
        if not run.cancelled() and run.exception() is None:
            self.evaluator.request("a file that hung")


def _sets_no_settings(fields: Mapping[str, frozenset[str]]) -> bool:
    """Whether a policy with these `sets_fields` sets nothing of the kernel; one without any may do so."""
    return bool(fields) and fields.get("node", frozenset()).isdisjoint((SYSCTL, KERNEL_SETTINGS))


def gates_of(names: Collection[str]) -> str:
    """The parameters that koordlet writes, by its feature gates, for people."""
    gates: dict[str, list[str]] = {}
    for name in sorted(names):
        gates.setdefault(KOORDLETS[name], []).append(name)
    return "; ".join(f"{gate}: {', '.join(found)}" for gate, found in sorted(gates.items()))


def _class_views(pods: Iterable[PodRecord], ledger: Ledger, kubelet_root: str) -> dict[str, ClassView]:
    """The views of the QoS classes that some pods are of, by cgroup; rests after each pod.

    Without pods whose cgroup is not known, or cannot be.
    """
    found: list[tuple[tuple[str, ...], ResolvedPod]] = []
    for pod in pods:
        path = path_or_none(pod.cgroup_parent)
        if path is not None:
            view = ResolvedPod(pod=recorded_pod(pod), cgroup=ledger.books.resolved(pod.cgroup_parent))
            found.append((path, view))
        rest()
    classes = class_cgroups(((path, each.pod.kube_qos) for path, each in found), kubelet_root)
    views: dict[str, ClassView] = {}
    for qos, cgroup in classes.items():
        above = cgroup_path(cgroup)
        below = tuple(each for path, each in found if path[: len(above)] == above)
        views[cgroup] = ClassView(qos=qos, pods=below)
        rest()
    return views
