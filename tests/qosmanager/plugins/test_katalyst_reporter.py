"""The plugin katalyst-reporter: field reporters, the file, and what it hands to the daemon."""

from __future__ import annotations

import argparse
import json
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.config.sources import read
from runtimeproxy.config.validation import CombinedConfigError
from runtimeproxy.qosmanager.framework import decision_problem
from runtimeproxy.qosmanager.manager import configured
from runtimeproxy.qosmanager.plugin import NodeReport, PluginContext
from runtimeproxy.qosmanager.plugins import katalyst_reporter
from runtimeproxy.qosmanager.plugins.katalyst_reporter import (
    FILE,
    MOST_FIELDS,
    KatalystReporter,
    ReporterOptions,
    ReporterState,
)
from runtimeproxy.qosmanager.reporter.builtin import AMOUNTS_ANNOTATION, BUILT_IN
from runtimeproxy.qosmanager.reporter.fields import FieldReporter, ObjectSection, ReportedField, View
from runtimeproxy.qosmanager.snapshot import Snapshot
from tests.qosmanager.reporter.nodes import pools, snapshot, with_web

HERE = "tests.qosmanager.plugins.test_katalyst_reporter"
GPU = {"type": "GPU", "name": "0", "resources": {"capacity": {"example.com/gpu": "1"}}}


class Gpus(FieldReporter):
    """Adds a zone, and one value that a built-in reporter has."""

    def report(self, view: View) -> Sequence[ReportedField]:
        return [
            ReportedField(ObjectSection.STATUS, "topologyZone", [GPU]),
            ReportedField(ObjectSection.STATUS, "resources", {"capacity": {"cpu": "1"}}),
        ]


class Raising(FieldReporter):
    def report(self, view: View) -> Sequence[ReportedField]:
        raise ValueError("no\nGPU")


class Lazy(FieldReporter):
    """Fails after its first field, when that is taken."""

    def report(self, view: View) -> Any:
        yield ReportedField(ObjectSection.METADATA, "labels", {"lazy": "1"})
        raise ValueError("no second field")


class Endless(FieldReporter):
    def report(self, view: View) -> Any:
        while True:
            yield ReportedField(ObjectSection.METADATA, "labels", {})


class Wrong(FieldReporter):
    def report(self, view: View) -> Sequence[ReportedField]:
        return [ReportedField(ObjectSection.METADATA, "labels", {"a": 1})]


class Keeping(FieldReporter):
    """Gives the same objects each time, changed."""

    def __init__(self) -> None:
        self._labels = {"call": ""}
        self._fields = [ReportedField(ObjectSection.METADATA, "labels", self._labels)]

    def report(self, view: View) -> Sequence[ReportedField]:
        self._labels["call"] += "x"
        return self._fields


class Hanging(FieldReporter):
    """Waits until the test ends it; says which call it was."""

    calls = 0
    end = threading.Event()

    def report(self, view: View) -> Sequence[ReportedField]:
        Hanging.calls += 1
        number = str(Hanging.calls)
        if Hanging.calls == 1:
            Hanging.end.wait(60)
        return [ReportedField(ObjectSection.METADATA, "labels", {"call": number})]


def started(tmp_path: Path | None = None, **reporters: str) -> tuple[KatalystReporter, ReporterState]:
    plugin = KatalystReporter()
    folder = "" if tmp_path is None else str(tmp_path)
    references = {name: f"{HERE}:{each}" for name, each in reporters.items()}
    options = ReporterOptions(folder=folder, reporters=references)
    return plugin, plugin.setup(PluginContext(gates={}, options=options))


def reported(plugin: KatalystReporter, state: ReporterState, of_node: Snapshot) -> tuple[dict[str, Any], str]:
    """The document, and the problems as one text."""
    decision = plugin.run(of_node, state)
    assert not decision_problem(decision)
    assert decision.node_report is not None
    return json.loads(decision.node_report.document), "\n".join(decision.node_report.problems)


def test_the_document_is_written_and_handed_on(tmp_path: Path) -> None:
    plugin, state = started(tmp_path)

    decision = plugin.run(snapshot(), state)

    assert decision.node_report is not None
    assert decision.node_report.problems == ()
    document = json.loads(decision.node_report.document)
    assert document == json.loads((tmp_path / FILE).read_text())
    assert document["metadata"]["name"] == "node-1"
    assert decision.explanation == "CPU: 16, 12 could be reclaimed, 6 can now, with 12288 MiB"


def test_the_file_changes_only_when_something_has_changed(tmp_path: Path) -> None:
    plugin, state = started(tmp_path)
    path = tmp_path / FILE

    def stamp() -> tuple[int, int]:
        plugin.run(snapshot(usage=with_web(cores)), state)
        return path.stat().st_ino, path.stat().st_mtime_ns

    cores = 2.0
    first = stamp()
    os.utime(path, ns=(0, 0))
    cores = 1.95
    again = stamp()
    # The same file: only its time says that it is still true.
    assert again[0] == first[0]
    assert again[1] > 0
    before = path.read_text()
    cores = 3.5
    stamp()
    assert path.read_text() != before
    path.unlink()
    stamp()
    assert path.is_file()


def test_each_run_has_what_is_so_then() -> None:
    """A reporter that has given the same as before is not read again."""
    plugin, state = started(keeping="Keeping")
    seen = []
    for cores in (2.0, 2.0, 3.5, 3.5, 2.0):
        document, _ = reported(plugin, state, snapshot(usage=with_web(cores)))
        amounts = json.loads(document["metadata"]["annotations"][AMOUNTS_ANNOTATION])
        seen.append((document["metadata"]["labels"]["call"], amounts["cpu"]["used"]))
    assert [label for label, _ in seen] == ["x", "xx", "xxx", "xxxx", "xxxxx"]
    assert len({used for _, used in seen}) == 2
    assert [used == seen[0][1] for _, used in seen] == [True, True, False, False, True]


def test_two_nodes_alike_give_the_same_text() -> None:
    texts = set()
    for _ in range(2):
        plugin, state = started()
        members = dict(reversed(list(pools().members.items())))
        texts.add(plugin.run(snapshot(cpu_pools=pools(members=members)), state).node_report)
        texts.add(plugin.run(snapshot(), state).node_report)

    assert len(texts) == 1


def test_a_reporter_of_another_package_adds_fields_and_overrides_nothing() -> None:
    document, problems = reported(*started(gpus="Gpus"), snapshot())

    assert document["status"]["topologyZone"][0] == GPU
    assert document["status"]["resources"]["capacity"]["cpu"] == "16"
    assert problems == "status.resources.capacity.cpu: 16 of headroom stays, not 1 of gpus"


@pytest.mark.parametrize(
    ("reporter", "problem"),
    [
        ("Raising", "other: ValueError: no GPU"),
        ("Lazy", "other: ValueError: no second field"),
        ("Endless", f"other: it has given more than {MOST_FIELDS} fields"),
        ("Wrong", "other: metadata.labels.a: 1 is not a printable text"),
        ("Missing", f"other: {HERE}:Missing cannot be made: AttributeError"),
        ("snapshot", f"other: {HERE}:snapshot is not a FieldReporter"),
    ],
)
def test_a_reporter_that_fails_loses_its_own_fields_only(reporter: str, problem: str) -> None:
    document, problems = reported(*started(gpus="Gpus", other=reporter), snapshot())

    assert problem in problems
    assert document["status"]["topologyZone"][0] == GPU
    assert document["status"]["resources"]["allocatable"]["cpu"] == "14"
    assert "labels" not in document["metadata"]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine makes no reporter late."""
    monkeypatch.setattr(katalyst_reporter, "REPORTERS_S", 60.0)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(katalyst_reporter, "REPORTERS_S", 0.05)
    Hanging.calls = 0
    Hanging.end.clear()
    yield
    Hanging.end.set()


@pytest.mark.usefixtures("hanging")
def test_a_reporter_that_hangs_loses_its_own_fields_until_it_ends() -> None:
    plugin, state = started(gpus="Gpus", slow="Hanging")

    _, problems = reported(plugin, state, snapshot())
    assert "slow: no answer within 0.05 s" in problems
    document, problems = reported(plugin, state, snapshot())
    assert "slow: it still hangs" in problems
    assert document["status"]["resources"]["allocatable"]["cpu"] == "14"
    assert Hanging.calls == 1

    Hanging.end.set()
    for _ in range(1_000):
        document, problems = reported(plugin, state, snapshot())
        if "slow" not in problems:
            break
    # What the call of before has given is not taken for an answer of now.
    assert int(document["metadata"]["labels"]["call"]) > 1


def test_a_built_in_reporter_that_fails_is_told() -> None:
    plugin = KatalystReporter(built_in=[Named, *BUILT_IN])
    state = plugin.setup(PluginContext(gates={}))

    document, problems = reported(plugin, state, snapshot())

    assert problems == "named: ValueError: no GPU"
    assert document["status"]["resources"]["capacity"]["cpu"] == "16"


class Named(Raising):
    name = "named"


def test_many_problems_are_cut() -> None:
    many = {f"r{number:02}": "Raising" for number in range(13)}
    _, problems = reported(*started(None, **many), snapshot())

    assert problems.splitlines()[-1] == "and 3 more"
    assert len(problems.splitlines()) == 11


def test_without_a_headroom_the_reason_is_told() -> None:
    _, problems = reported(*started(), snapshot(cpu_pools=pools(advice={})))

    assert problems == "reclaimed resources have no allocatable: no advisor says what the headroom is"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    plugin, state = started(tmp_path / "none")
    assert "there is no such folder" in reported(plugin, state, snapshot())[1]

    plugin, state = started(tmp_path)
    (tmp_path / FILE).mkdir()
    assert "cannot be written" in reported(plugin, state, snapshot())[1]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ('{ folder = "here" }', "folder: is not an absolute path"),
        ('{ reporters = { topology = "a:b" } }', r"reporters\.topology: is the name of a built-in one"),
        (
            '{ reporters = { own = "none_there:Own" } }',
            r"config\.toml: plugins\.katalyst-reporter\.options\.reporters\.own: none_there:Own cannot",
        ),
        ('{ reporters = { own = "builtins:object" } }', r"reporters\.own: builtins:object is not a FieldRep"),
        ("{ file = 1 }", "unknown key"),
    ],
)
def test_options_that_cannot_be_used(options: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f"[plugins.katalyst-reporter]\noptions = {options}\n")
    reading = read(argparse.Namespace(config=str(path)), {})

    with pytest.raises(CombinedConfigError, match=problem):
        configured(reading, [KatalystReporter()])


@pytest.mark.parametrize("report", ["{}", NodeReport(b"{}"), ("{}", ())])  # type: ignore[arg-type]
def test_what_is_no_report_of_the_node_is_no_decision(report: Any) -> None:
    plugin, state = started()
    decision = plugin.run(snapshot(), state)._replace(node_report=report)

    assert decision_problem(decision) == "node_report is not a NodeReport"
