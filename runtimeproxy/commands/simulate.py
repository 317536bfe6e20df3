"""The command that says what the policies would do to a manifest."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runtimeproxy.commands.arguments import PROGRAM
from runtimeproxy.commands.configuration import load_policies, load_settings
from runtimeproxy.commands.exit_codes import CommandError, ExitCode
from runtimeproxy.config.sources import FLAGS

if TYPE_CHECKING:
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.node.snapshot import Node
    from runtimeproxy.simulate.kubelet import PodCalls


_OBJECTS_DIR: Final = next(each.destination for each in FLAGS if each.name == "node.objects_dir")
_NOTHING_KNOWN: Final = (
    "node and strategies are not known; --node-objects-dir names a folder of their objects"
)


def simulate(arguments: Namespace) -> int:
    """Prints what the policies would change; without a runtime, and without a daemon.

    Raises:
        CommandError: a file or argument cannot be used.
    """
    _make_absolute(arguments)
    settings = load_settings(arguments)
    from runtimeproxy.node.snapshot import Input, InputState
    from runtimeproxy.simulate import simulation, text
    from runtimeproxy.simulate.files import UsageError, registered_servers
    from runtimeproxy.simulate.result import simulation_as_json
    from runtimeproxy.slo.reading import printable

    try:
        node = _node(arguments, settings)
        calls = [each for name in arguments.file for each in _calls(name, node, webhook=arguments.webhook)]
    except UsageError as error:
        raise CommandError(str(error), ExitCode.USAGE) from error
    loaded = load_policies(settings)
    for problem in loaded.problems:
        print(f"{PROGRAM}: warning: policy not loaded: {problem}", file=sys.stderr)
    hooks = settings.hooks
    servers = registered_servers(Path(settings.hooks.server_config_dir))
    found = simulation.simulate(
        calls,
        (*loaded.policies, *servers),
        node,
        rule=hooks.conflicts,
        skip_label=(hooks.skip_label_key, hooks.skip_label_value) if hooks.skip_label_key else None,
        budget_s=hooks.budget_s,
    )
    if arguments.output == "text":
        if node.state_of(Input.STRATEGIES) is InputState.UNKNOWN:
            print(f"note: {_NOTHING_KNOWN}")
        print("\n".join(map(printable, text.lines_of(found))))
    elif arguments.output == "json":
        print(json.dumps(simulation_as_json(found), indent=2))
    else:
        import yaml

        print(yaml.safe_dump(simulation_as_json(found), sort_keys=False), end="")
    return ExitCode.FAILED if found.is_refused else ExitCode.OK


def _make_absolute(arguments: Namespace) -> None:
    """A folder that is named here is found from here, unlike that of a daemon's configuration."""
    named = getattr(arguments, _OBJECTS_DIR, None)
    if named:
        setattr(arguments, _OBJECTS_DIR, str(Path(named).absolute()))


def _node(arguments: Namespace, settings: Settings) -> Node:
    """The node of the folder that is configured; the usual one need not be there."""
    from runtimeproxy.config.settings import NodeSettings
    from runtimeproxy.simulate.files import node_of_files, pairs

    name = settings.node.objects_dir
    is_used = bool(name) and (name != NodeSettings().objects_dir or Path(name).is_dir())
    labels = pairs(arguments.node_labels, "--node-labels")
    return node_of_files(Path(name) if is_used else None, settings.node.name, labels)


def _calls(name: str, node: Node, *, webhook: bool) -> list[PodCalls]:
    from runtimeproxy.node.documents import InputError
    from runtimeproxy.simulate.files import UsageError, content_or_input
    from runtimeproxy.simulate.reading import pod_calls

    data, source = content_or_input(name)
    try:
        return pod_calls(data, source, node, webhook=webhook)
    except InputError as error:
        raise UsageError(f"{source}: {error}") from None
