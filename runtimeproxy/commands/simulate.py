"""The command that says what the policies would do to a manifest."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runtimeproxy.commands.configuration import load_settings, loaded_policies
from runtimeproxy.commands.exit_codes import CommandError, ExitCode
from runtimeproxy.commands.output import (
    BAD,
    DOUBTFUL,
    FAINT,
    GOOD,
    STRONG,
    Cell,
    FieldRow,
    Page,
    Words,
    claim_text,
    print_value,
    show_fields,
)
from runtimeproxy.config.settings import NodeSettings
from runtimeproxy.config.validation import level_rules

if TYPE_CHECKING:
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.node.snapshot import Node
    from runtimeproxy.simulate.kubelet import PodCalls
    from runtimeproxy.simulate.levels import LevelVerdict
    from runtimeproxy.simulate.result import (
        PodSimulation,
        PolicyChange,
        Remark,
        SimulatedField,
        SimulatedTarget,
        Simulation,
    )


_NOTHING_KNOWN: Final = (
    "node and strategies are not known; --node-objects-dir names a folder of their objects"
)


_COLUMNS: Final = ("FIELD", "REQUESTED", "RESULT", "CERTAINTY")


def simulate(arguments: Namespace) -> int:
    """Prints what the policies would change; without a runtime, and without a daemon."""
    # A folder that is named here is found from here, unlike that of a daemon's configuration.
    if getattr(arguments, "node_objects_dir", None):
        arguments.node_objects_dir = str(Path(arguments.node_objects_dir).absolute())
    settings = load_settings(arguments)
    from runtimeproxy.frontends.modes import carried_in
    from runtimeproxy.node.snapshot import Input, InputState
    from runtimeproxy.simulate import simulation
    from runtimeproxy.simulate.files import UnusableInputError, registered_servers
    from runtimeproxy.simulate.result import simulation_as_json

    try:
        node = _node(arguments, settings)
        calls = [each for name in arguments.file for each in _calls(name, node, webhook=arguments.webhook)]
    except UnusableInputError as error:
        raise CommandError(str(error), ExitCode.USAGE) from error
    hooks = settings.hooks
    policies = (*loaded_policies(settings), *registered_servers(Path(hooks.server_config_dir)))
    carried = carried_in(settings.daemon.mode)
    found = simulation.simulate(calls, policies, node, hooks.rules, carried=carried)
    if arguments.output == "text":
        page = Page()
        if node.state_of(Input.STRATEGIES) is InputState.UNKNOWN:
            page.entry(Cell("note", DOUBTFUL), _NOTHING_KNOWN)
            page.gap()
        show_simulation(found, page)
    else:
        print_value(simulation_as_json(found), arguments.output)
    return ExitCode.FAILED if found.is_refused else ExitCode.OK


def _node(arguments: Namespace, settings: Settings) -> Node:
    """The node of the folder that is configured; the usual one need not be there."""
    from runtimeproxy.node.snapshot import Input, InputState
    from runtimeproxy.simulate.files import node_of_files, pairs

    name = settings.node.objects_dir
    is_used = bool(name) and (name != NodeSettings().objects_dir or Path(name).is_dir())
    labels = pairs(arguments.node_labels, "--node-labels")
    node = node_of_files(Path(name) if is_used else None, settings.node.name, labels)
    node = replace(node, levels=level_rules(settings.katalyst))
    if settings.node.shared_pools == "computed":
        # Of the pods of the node, which no file has.
        node = replace(node, pools=None, states={**node.states, Input.POOLS: InputState.UNKNOWN})
    return node


def _calls(name: str, node: Node, *, webhook: bool) -> list[PodCalls]:
    from runtimeproxy.documents.reading import InputError
    from runtimeproxy.simulate.files import UnusableInputError, content_or_input
    from runtimeproxy.simulate.reading import pod_calls

    data, source = content_or_input(name)
    try:
        return pod_calls(data, source, node, webhook=webhook)
    except InputError as error:
        raise UnusableInputError(f"{source}: {error}") from None


def show_simulation(found: Simulation, page: Page) -> None:
    for number, pod in enumerate(found.pods):
        if number:
            page.gap()
        _show_pod(pod, page)


def _show_pod(pod: PodSimulation, page: Page) -> None:
    qos = f"  {pod.qos or 'no QoS class'}, {pod.kube_qos}"
    page.line((Cell(f"{pod.namespace}/{pod.name}", STRONG), qos))
    page.line(Cell(pod.source, FAINT))
    if pod.katalyst is not None:
        for style, words in level_lines(pod.katalyst):
            page.line(Cell(words, style))
    for each in pod.added:
        page.entry(Cell("webhook", FAINT), each)
    for each in pod.notes:
        page.entry(Cell("note", DOUBTFUL), each)
    for target in pod.targets:
        page.gap()
        _show_target(target, page)


def level_lines(verdict: LevelVerdict) -> Iterator[tuple[str, str]]:
    """Yields the style and the text of each line about a pod's level."""
    pool = f", pool {verdict.pool}" if verdict.pool else ""
    yield "", f"{verdict.level}{pool}: {verdict.reason}"
    yield from ((BAD, f"problem: {each}") for each in verdict.problems)


def _show_target(target: SimulatedTarget, page: Page) -> None:
    page.line(Cell("pod" if target.kind == "pod" else f"{target.kind} {target.name}", STRONG))
    if target.refusal:
        page.entry(Cell("refused", BAD), target.refusal, indent=2)
    if target.fields:
        show_fields(_COLUMNS, [FieldRow(_values(each), _remarks(each)) for each in target.fields], page)
    elif not target.refusal:
        page.line("nothing is changed here", indent=2)
    page.entries(((each.policy, _remark_words(each)) for each in target.remarks), indent=2)
    for each in target.not_simulated:
        page.entry(Cell("not simulated", DOUBTFUL), each, indent=2)


def _remark_words(remark: Remark) -> Words:
    what = f"{remark.field}: {remark.reason}" if remark.field else remark.reason
    return Cell(remark.kind, FAINT), f": {what}"


def _values(field: SimulatedField) -> tuple[Cell, ...]:
    """The cells of a field, in the order of the columns; of a file the value before may not be known."""
    unknown = "?" if field.name.startswith("cgroup[") else "-"
    style = DOUBTFUL if field.depends_on else GOOD
    return (
        Cell(field.name),
        Cell(unknown if field.before is None else field.before),
        Cell("-" if field.after is None else field.after),
        Cell(field.certainty.value, style),
    )


def _remarks(field: SimulatedField) -> Iterator[tuple[Cell, Words]]:
    for change in field.changes:
        yield Cell(change.policy, GOOD if change.counts else FAINT), _change(change)
    if field.depends_on:
        yield Cell("depends on", DOUBTFUL), ", ".join(field.depends_on)


def _change(change: PolicyChange) -> str:
    effect = change.note
    if change.mode.value != "enforce":
        effect = "; ".join(filter(None, ("dry-run", effect)))
    elif not change.counts:
        effect = effect or "has no effect"
    return claim_text(change.role, change.wanted, change.reason, change.provenance, effect)
