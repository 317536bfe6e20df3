"""A daemon's node, strategies, policies and ledger without its sockets, for commands that need no daemon."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from runtimeproxy.core.questions import decide
from runtimeproxy.hooks.carried import BY_CALLS
from runtimeproxy.hooks.chain import Chain
from runtimeproxy.hooks.settings import ChainRules
from runtimeproxy.hooks.workers import SwitchInterval, Workers
from runtimeproxy.logs import FailureLog

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from runtimeproxy.cgroups.writer import CgroupWriter
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.core.questions import Question
    from runtimeproxy.hooks.audit import AuditSink
    from runtimeproxy.hooks.carried import CarriedFields
    from runtimeproxy.hooks.decision import Decision
    from runtimeproxy.hooks.loaded import LoadedPolicy
    from runtimeproxy.hooks.loading import LoadResult
    from runtimeproxy.hooks.remote.registrations import ParsedRegistration
    from runtimeproxy.ledger.ledger import Ledger
    from runtimeproxy.node.inputs import InputPlaces, InputsReading
    from runtimeproxy.pods.checkpoint.codec import Saved

_logger = logging.getLogger(__name__)
_logger.addHandler(logging.NullHandler())
# A policy that fails here is in the result, and not one that fails on the node.
_logger.propagate = False


class Offline:
    """The parts of a daemon with these settings; each is made when it is first used."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @cached_property
    def policies(self) -> LoadResult:
        from runtimeproxy.hooks.loading import PolicyLoader, PolicySources

        hooks = self.settings.hooks
        sources = PolicySources(hooks.third_party, hooks.policies_dir, hooks.load_timeout_s)
        return PolicyLoader().load(sources, self.settings.policies)

    @cached_property
    def inputs(self) -> InputsReading:
        """This node and its strategies, as a daemon reads them at its start."""
        from runtimeproxy.config.validation import places_of

        # The daemon's own state does not hide what is wrong with the files.
        return look_at(places_of(self.settings)._replace(state_dir=None))

    @cached_property
    def registrations(self) -> Mapping[str, ParsedRegistration]:
        """By file name; what is wrong with a file is in it."""
        hooks = self.settings.hooks
        return registrations_in(Path(hooks.server_config_dir), hooks.server_timeout_s)

    def ledger(self, saved: Saved, writer: CgroupWriter) -> Ledger:
        return ledger_of(saved, Path(self.settings.state.dir), writer)


def look_at(places: InputPlaces) -> InputsReading:
    from runtimeproxy.node.facts import NodeReader
    from runtimeproxy.node.inputs import NodeInputs

    reader = NodeReader(places.sysfs, places.cgroup_root, devfs=places.devfs)
    return NodeInputs(places, reader).look(0, is_first=True)


def registrations_in(folder: Path, timeout_s: float) -> dict[str, ParsedRegistration]:
    from runtimeproxy.documents.reading import InputError
    from runtimeproxy.hooks.remote.registrations import (
        ParsedRegistration,
        parse_registration,
        read_registration,
        registration_names,
    )

    found: dict[str, ParsedRegistration] = {}
    try:
        names = registration_names(folder)
    except OSError:
        # It does not exist yet, or is reported with the settings.
        return found
    for name in names:
        with suppress(FileNotFoundError):
            try:
                found[name] = parse_registration(name, read_registration(folder / name).data, timeout_s)
            except InputError as error:
                found[name] = ParsedRegistration(None, (str(error),))
    return found


def ledger_of(saved: Saved, folder: Path, writer: CgroupWriter) -> Ledger:
    """Returns the books of a checkpoint, and of the journal of a daemon that was killed."""
    from runtimeproxy.ledger.answers import requested_of_pod
    from runtimeproxy.ledger.checkpoint import with_owners
    from runtimeproxy.ledger.journal import Journal, read_boot_id
    from runtimeproxy.ledger.ledger import Ledger
    from runtimeproxy.pods.records import Lifecycle

    boot_id = read_boot_id()
    ledger = Ledger(writer, Journal(folder, boot_id), boot_id)
    ledger.books.take_over(with_owners(saved))
    ledger.books.load(saved.books)
    ledger.books.add_noted(ledger.read_journal())
    for pod in saved.pods:
        members = (each for each in saved.containers if each.pod_id == pod.id)
        running = [each for each in members if each.state is not Lifecycle.STOPPED]
        ledger.books.note_requests(pod.cgroup_parent, requested_of_pod(running))
    return ledger


class _UnchangedInterval(SwitchInterval):
    """The interpreter's, left alone: it is the daemon's, and a simulation may end while a policy hangs."""

    def shorten(self, length_s: float) -> None:
        pass

    def restore(self, length_s: float) -> None:
        pass


class OfflineChain:
    """Asks policies as a call does, in a thread of its own. Hook servers are left out.

    Args:
        policies: in any order.
        sink: receives the audit entries.
        carried: what the front end carries; else that of calls.
    """

    def __init__(
        self,
        policies: Iterable[LoadedPolicy],
        rules: ChainRules,
        sink: AuditSink | None = None,
        carried: CarriedFields = BY_CALLS,
    ) -> None:
        self._budget_s = rules.budget_s
        self._workers = Workers(1, switch_interval=_UnchangedInterval())
        self.chain = Chain(
            (each for each in policies if not each.remote_hooks),
            self._workers,
            sink=sink,
            rule=rules.conflicts,
            failures=FailureLog(output=_logger),
            skip_label=rules.skip_label,
            carried=carried,
        )

    async def decide(self, question: Question) -> Decision | None:
        """Decides one question; None if no policy is about it."""
        return await decide(self.chain, question, self._budget_s)

    def close(self) -> None:
        self._workers.close()
