"""Katalyst's reporter: the node as a CustomNodeResource, made of the fields of several field reporters.

It claims nothing. The fields are in `runtimeproxy.qosmanager.reporter`; here the reporters are called, and
the object is written to a file: unlike most plugins, `run` is not pure. The manager sends the object to the
daemon, which serves it.
"""

from __future__ import annotations

import itertools
import json
import os
import pkgutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from runtimeproxy.background import BackgroundThreads
from runtimeproxy.documents.files import replace_file
from runtimeproxy.errors import described
from runtimeproxy.qosmanager.plugin import Decision, Mode, Need, NodeReport, Plugin, PluginContext
from runtimeproxy.qosmanager.reporter.amounts import (
    NOTHING_REPORTED,
    WINDOW_S,
    LastReported,
    NodeAmounts,
    node_amounts,
)
from runtimeproxy.qosmanager.reporter.builtin import BUILT_IN
from runtimeproxy.qosmanager.reporter.document import FieldError, merged, read_field
from runtimeproxy.qosmanager.reporter.fields import FieldReporter, ReportedField, View
from runtimeproxy.qosmanager.snapshot import Level, Metric, Snapshot

INTERVAL_S: Final = 5.0
REPORTERS_S: Final = 1.5
"""How long reporters of other packages may take, together; the plugin itself has `framework.TIME_LIMIT_S`."""
MOST_FIELDS: Final = 256
"""Of one reporter: a field may come in parts."""
MOST_SHOWN: Final = 10
"""Problems in a report."""
FILE: Final = "custom-node-resource.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReporterOptions:
    """`[plugins.katalyst-reporter.options]`."""

    folder: str = ""
    """Absolute path of the folder that the object is written to, as `custom-node-resource.json`; empty: it is
    only served."""
    node_name: str = ""
    """Name of the object; empty: the node's label kubernetes.io/hostname, or the host's name."""
    reporters: Mapping[str, str] = field(default_factory=dict)
    """Field reporters of other Python packages, `package.module:Class` by name."""


class _Called:
    """One field reporter. One of another package has a thread of its own, as it may hang."""

    def __init__(
        self, name: str, reporter: FieldReporter | None, *, is_own: bool = False, problem: str = ""
    ) -> None:
        self.name = name
        self._reporter = reporter
        self._problem = problem
        self._thread = None if is_own else BackgroundThreads(1, f"reporter-{name}")
        self._call: Future[list[ReportedField]] | None = None
        self._read = _ReadFields()
        self._is_asked = False
        """Whether its call is of this round: one that hangs is not called again meanwhile."""

    def begin(self, view: View) -> Future[list[ReportedField]] | None:
        """Has it report, unless it cannot or still hangs."""
        self._is_asked = self._reporter is not None and (self._call is None or self._call.done())
        if self._reporter is None or not self._is_asked:
            return None
        if self._thread is not None:
            # One that changes what it has given before would be compared with itself.
            self._call = self._thread.submit(_ReadFields().of, self._reporter, view)
            return self._call
        self._call = Future()
        try:
            self._call.set_result(self._read.of(self._reporter, view))
        except Exception as error:  # noqa: BLE001 - it costs these fields only
            self._call.set_exception(error)
        return self._call

    def end(self) -> tuple[list[ReportedField], str]:
        """Its fields, or the reason why there are none."""
        call = self._call
        if self._reporter is None or call is None:
            return [], f"{self.name}: {self._problem}"
        if not self._is_asked:
            return [], f"{self.name}: it still hangs"
        if not call.done():
            return [], f"{self.name}: no answer within {REPORTERS_S:g} s"
        error = call.exception()
        if error is None:
            return call.result(), ""
        return [], f"{self.name}: {error if isinstance(error, FieldError) else described(error)}"

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)


class _ReadFields:
    """What a reporter gives, checked where it runs, as it may be of its own making."""

    def __init__(self) -> None:
        self._given: Sequence[object] = ()
        self._read: list[ReportedField] = []

    def of(self, reporter: FieldReporter, view: View) -> list[ReportedField]:
        """Raises anything. The same fields again are not read again."""
        given = list(itertools.islice(reporter.report(view), MOST_FIELDS + 1))
        if len(given) > MOST_FIELDS:
            raise FieldError(f"it has given more than {MOST_FIELDS} fields")
        if given != self._given:
            self._read, self._given = [read_field(each) for each in given], given
        return self._read


@dataclass(slots=True)
class ReporterState:
    """What was reported last."""

    last: LastReported = NOTHING_REPORTED
    given: tuple[str, Sequence[tuple[str, ReportedField]]] = ("", ())
    """What the document was made of: the node's name, and fields by reporter."""
    document: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    """The document as JSON; empty: none was made yet."""
    conflicts: Sequence[str] = ()
    written: str = ""
    """The text of the document in the file; empty: not written yet."""


class KatalystReporter(Plugin[ReporterState]):
    """Reports the node in the shape of Katalyst's CustomNodeResource."""

    name: ClassVar[str] = "katalyst-reporter"
    default_mode: ClassVar[Mode] = Mode.OFF
    has_claims: ClassVar[bool] = False
    needs: ClassVar[frozenset[Need]] = frozenset(
        Need(level, metric, WINDOW_S)
        for level in (Level.NODE, Level.POD)
        for metric in (Metric.CPU_USAGE, Metric.MEMORY_USAGE)
    )
    interval_s: ClassVar[float] = INTERVAL_S
    options_type: ClassVar[type[ReporterOptions]] = ReporterOptions

    def __init__(self, built_in: Sequence[Callable[[], FieldReporter]] = BUILT_IN) -> None:
        self._options = ReporterOptions()
        self._built_in = built_in
        self._called: list[_Called] = []

    def option_problems(self, options: ReporterOptions) -> Sequence[tuple[str, str]]:
        problems: list[tuple[str, str]] = []
        if options.folder and not Path(options.folder).is_absolute():
            problems.append(("folder", "is not an absolute path"))
        names = {each.name for each in BUILT_IN}
        for name, reference in sorted(options.reporters.items()):
            if name in names:
                problems.append((f"reporters.{name}", "is the name of a built-in one"))
            elif isinstance(made := _imported(reference), str):
                problems.append((f"reporters.{name}", made))
        return problems

    def setup(self, context: PluginContext) -> ReporterState:
        self._options = context.options or ReporterOptions()
        for each in self._called:
            each.close()
        made = (make() for make in self._built_in)
        self._called = [_Called(each.name, each, is_own=True) for each in made]
        self._called += [
            _Called(name, None, problem=made) if isinstance(made, str) else _Called(name, made)
            for name, reference in sorted(self._options.reporters.items())
            for made in (_imported(reference),)
        ]
        return ReporterState()

    def is_enabled(self, snapshot: Snapshot) -> bool:
        # The mode says whether it is wanted.
        return True

    def run(self, snapshot: Snapshot, state: ReporterState) -> Decision[ReporterState]:
        amounts, state.last = node_amounts(snapshot, state.last)
        view = View(snapshot, amounts)
        # Those with threads first: they work meanwhile.
        calls = [call for each in reversed(self._called) if (call := each.begin(view)) is not None]
        wait(calls, timeout=REPORTERS_S)
        problems: list[str] = []
        fields: list[tuple[str, ReportedField]] = []
        for each in self._called:
            found, problem = each.end()
            fields += [(each.name, one) for one in found]
            problems += [problem] if problem else []
        given = self._node_name(snapshot), fields
        if not state.text or given != state.given:
            state.document, conflicts = merged(fields, given[0])
            state.given, state.text = given, json.dumps(state.document, separators=(",", ":"))
            state.conflicts = [str(each) for each in conflicts]
        problems += [*state.conflicts, *self._write(state)]
        if amounts.problem:
            problems.append(f"reclaimed resources have no allocatable: {amounts.problem}")
        shown = tuple(_line(each) for each in problems[:MOST_SHOWN])
        if more := len(problems) - len(shown):
            shown = (*shown, f"and {more} more")
        return Decision(
            state,
            explanation="; ".join([_summary(amounts), *shown]),
            node_report=NodeReport(state.text, shown),
        )

    def _node_name(self, snapshot: Snapshot) -> str:
        label = snapshot.node.labels.get("kubernetes.io/hostname", "")
        return self._options.node_name or label or os.uname().nodename

    def _write(self, state: ReporterState) -> list[str]:
        """Writes the file if the document has changed, else only its time; returns problems."""
        if not self._options.folder:
            return []
        path = Path(self._options.folder) / FILE
        if not path.parent.is_dir():
            return [f"{path.parent} cannot be written: there is no such folder"]
        try:
            if state.text == state.written and path.is_file():
                now_s = time.time()
                os.utime(path, (now_s, now_s))
            else:
                text = json.dumps(state.document, indent=1) + "\n"
                replace_file(path, text.encode(), is_synced=False, mode=0o644)
                state.written = state.text
        except OSError as error:
            state.written = ""
            return [f"{path} cannot be written: {error.strerror}"]
        return []


def _imported(reference: str) -> FieldReporter | str:
    """Makes a reporter of another package; a text says why there is none."""
    try:
        made = pkgutil.resolve_name(reference)()
    except Exception as error:  # noqa: BLE001 - code of others
        return f"{reference} cannot be made: {described(error)}"
    return made if isinstance(made, FieldReporter) else f"{reference} is not a FieldReporter"


def _summary(amounts: NodeAmounts) -> str:
    cpu, memory = amounts.node_cpu, amounts.node_memory
    parts = [f"CPU: {cpu.total / 1_000:g}, {cpu.capacity / 1_000:g} could be reclaimed"]
    if cpu.allocatable is not None and memory.allocatable is not None:
        parts.append(f"{cpu.allocatable / 1_000:g} can now, with {memory.allocatable >> 20} MiB")
    return ", ".join(parts)


def _line(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text[:500])
