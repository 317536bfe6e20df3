"""All subcommands, with their arguments and help."""

from __future__ import annotations

from typing import Final

from runtimeproxy.commands.arguments import Command

_PAIRS: Final = {"action": "append", "default": [], "metavar": "K=V,..."}

COMMANDS: Final = (
    Command(
        "check-config",
        "checks:check_config",
        "check flags, environment, file, policies and hook servers' registrations",
        ". Prints every problem, and the exit code is 2 then; warnings leave it 0.",
    ),
    Command(
        "check-slo",
        "checks:check_slo",
        "show what strategies say, where each value comes from, and what is wrong",
        ". FILE holds Kubernetes objects (the ConfigMap slo-controller-config, this node's Node and "
        "NodeSLO), or is a folder of such files or of a mounted ConfigMap. Nothing is changed, and no "
        "instance need run; the exit code is 1 if something cannot be used.",
        "FILE... [--node-labels K=V,...] [--node-annotations K=V,...] [--pod FILE] [--output text|json] ",
        {
            "files": {"nargs": "+", "metavar": "FILE", "help": "file or folder with the objects"},
            "--node-labels": {**_PAIRS, "help": "labels of the node, beside those of its Node object"},
            "--node-annotations": {**_PAIRS, "help": "annotations of the node, in the same way"},
            "--pod": {"metavar": "FILE", "help": "also show what counts for the Pod in this file"},
            "--output": {"choices": ("text", "json"), "default": "text", "help": "(default: text)"},
        },
    ),
    Command(
        "list-policies",
        "checks:list_policies",
        "list all policies with their methods and settings",
        ". Also those that cannot be loaded, with the reason; the exit code is 1 then.",
    ),
    Command("version", "process:version", "show the version"),
    Command("demo", "process:demo", "drive a pod of each QoS class through the proxy and show what changes"),
    Command(
        "bypass",
        "process:bypass",
        "let all calls pass without policies (on), or end that (off)",
        ". Signals the instance that serves on the proxy's socket.",
        "(on | off) ",
        {"state": {"choices": ("on", "off"), "help": "kept by an upgrade, not by a restart"}},
    ),
    Command(
        "upgrade",
        "process:upgrade",
        "replace the serving instance by a new process, without a failed call",
        ". If the new one does not come up, the old one continues to serve.",
    ),
    Command(
        "restore",
        "process:restore",
        "give running containers and pod cgroups the values that the kubelet requested",
        ", from the checkpoint in the state folder: to remove the proxy from a node, after it has ended. "
        "Values that another program has changed since are left alone.",
        "[--dry-run] ",
        {"--dry-run": {"action": "store_true", "help": "only show the changes"}},
    ),
)
"""In the order of the help."""
