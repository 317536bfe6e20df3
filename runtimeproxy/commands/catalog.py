"""All subcommands, with their arguments and help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from runtimeproxy.commands.arguments import Command
from runtimeproxy.commands.values import duration_s, label_selector, natural, plain_text, size_bytes

_Options = Mapping[str, Mapping[str, Any]]

_PAIRS: Final = {"action": "append", "default": [], "metavar": "K=V,..."}

_OUTPUT: Final[_Options] = {
    "--output": {
        "choices": ("text", "json", "yaml"),
        "default": "text",
        "help": "text for people; JSON or YAML as the API has it (default: text)",
    },
}
_TIMEOUT: Final[_Options] = {
    "--timeout": {
        "type": duration_s,
        "default": 10.0,
        "metavar": "TIME",
        "help": "how long the daemon may take (default: 10s)",
    },
}
_ENDPOINT: Final[_Options] = {
    "--endpoint": {"metavar": "SOCKET", "help": "the daemon's socket (default: that of the configuration)"},
}
_READING: Final[_Options] = {
    **_ENDPOINT,
    **_TIMEOUT,
    **_OUTPUT,
}
"""Of commands that ask the daemon."""
_ADMIN_SOCKET: Final[_Options] = {
    **_ENDPOINT,
    "--admin-socket": {
        "metavar": "SOCKET",
        "help": "the daemon's admin socket (default: that of the configuration)",
    },
}
AUDIT_KINDS: Final = (
    "changed",
    "would-change",
    "conflict",
    "refused",
    "failed",
    "invalid",
    "left-out",
    "pending",
    "void",
    "off",
    "not-applied",
)
_REASON: Final[_Options] = {
    "--reason": {
        "type": plain_text,
        "metavar": "TEXT",
        "help": "why, for the status; at most 256 characters",
    },
}

COMMANDS: Final = (
    Command(
        "status",
        "status:status",
        "show how the daemon is: bypass, runtime, policies, hook servers, records, problems",
        ". The exit code is 1 if there is a problem.",
        "",
        _READING,
    ),
    Command(
        "pods",
        "status:pods",
        "list pods, their QoS classes and the policies that have changed them",
        usage="[--namespace NAME] ",
        arguments={
            "--namespace": {"type": plain_text, "metavar": "NAME", "help": "only pods of this namespace"},
            **_READING,
        },
    ),
    Command(
        "explain",
        "explain:explain",
        "show why the values of a pod are what they are",
        ": for each field what the kubelet requested, what each policy wants and why, what that comes to, "
        "what was applied, and what the kernel has now.",
        "[NAMESPACE/]POD[/CONTAINER] [--all] ",
        {
            "pod": {
                "type": plain_text,
                "metavar": "POD",
                "help": "[NAMESPACE/]POD[/CONTAINER]; a pod by its name, its uid, or the beginning of an id",
            },
            "--all": {
                "action": "store_true",
                "help": "also what nothing changes, and all policies",
            },
            **_READING,
        },
    ),
    Command(
        "audit",
        "audit:audit",
        "show what policies changed, refused, or failed to do",
        ": the last 500 entries that the daemon remembers, a line for each field.",
        "[--follow] [--pod POD] [--policy NAME] ",
        {
            "--follow": {"action": "store_true", "help": "go on with decisions to come, until Ctrl-C"},
            "--pod": {
                "type": plain_text,
                "metavar": "POD",
                "help": "only this pod, by [NAMESPACE/]NAME or uid",
            },
            "--policy": {"type": plain_text, "metavar": "NAME", "help": "only this policy"},
            "--kind": {
                "action": "append",
                "default": [],
                "choices": AUDIT_KINDS,
                "metavar": "KIND",
                "help": f"only entries of this kind: {', '.join(AUDIT_KINDS)}; may be repeated",
            },
            "--limit": {
                "type": natural,
                "default": 0,
                "metavar": "NUMBER",
                "help": "at most so many of the remembered decisions, the newest ones (default: all)",
            },
            **_READING,
        },
    ),
    Command(
        "policy",
        "steer:policy",
        "set the mode of a policy, for all pods or some, for a time or until it is reset",
        ". It stands above the configuration, also after a reload and a restart; reset takes it back.",
        "NAME (enforce | dry-run | off | reset) [--namespace NAME] [--selector LABELS] [--for TIME] ",
        {
            "name": {
                "type": plain_text,
                "metavar": "NAME",
                "help": "the policy, or plugin:NAME of the QoS manager",
            },
            "mode": {"choices": ("enforce", "dry-run", "off", "reset"), "help": "its mode"},
            "--namespace": {
                "action": "append",
                "default": [],
                "metavar": "NAME",
                "help": "only for pods of this namespace; may be repeated",
            },
            "--selector": {
                "type": label_selector,
                "metavar": "LABELS",
                "help": "only for pods with these labels, as kubectl takes them: app=web,tier!=front",
            },
            "--for": {
                "dest": "duration",
                "type": duration_s,
                "metavar": "TIME",
                "help": "end after this time, such as 10m",
            },
            **_REASON,
            **_ADMIN_SOCKET,
            **_TIMEOUT,
            **_OUTPUT,
        },
    ),
    Command(
        "doctor",
        "doctor:doctor",
        "examine the installation on this node: what is wrong, and what to do",
        ": the kubelet's endpoint, cgroup drivers, CPU manager, koordlet, hook servers, kernel, rights of "
        "the unit, folders. It works without the daemon, too. The exit code is 1 if there is a "
        "problem; warnings leave it 0.",
        "",
        _READING,
    ),
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
        "instance need run; the exit code is 1 if something cannot be used, or a file holds nothing that is "
        "read.",
        "FILE... [--node-labels K=V,...] [--node-annotations K=V,...] [--pod FILE] [--strict] "
        "[--output text|json] ",
        {
            "files": {"nargs": "+", "metavar": "FILE", "help": "file or folder with the objects"},
            "--node-labels": {**_PAIRS, "help": "labels of the node, beside those of its Node object"},
            "--node-annotations": {**_PAIRS, "help": "annotations of the node, in the same way"},
            "--pod": {"metavar": "FILE", "help": "also show what applies to the Pod in this file"},
            "--strict": {
                "action": "store_true",
                "help": "names of keys and fields that Koordinator does not have are errors, too",
            },
            "--output": {"choices": ("text", "json"), "default": "text", "help": "(default: text)"},
        },
    ),
    Command(
        "simulate",
        "simulate:simulate",
        "show what the policies would do to the pods of a manifest",
        ". FILE holds a Pod, Deployment, StatefulSet, DaemonSet, Job, CronJob, a list or several of them, or "
        "a recorded RunPodSandboxRequest or CreateContainerRequest in JSON; - is standard input. No runtime "
        "and no instance need run: policies are those of the configuration, strategies and node those of the "
        "files. The exit code is 1 if a policy would refuse a pod.",
        "-f FILE... [--node-objects-dir DIR] [--node-labels K=V,...] [--webhook] [--output text|json|yaml] ",
        {
            "-f --file": {
                "action": "append",
                "required": True,
                "metavar": "FILE",
                "help": "manifest or recorded request; may be given several times",
            },
            "--node-labels": {**_PAIRS, "help": "labels of the node, beside those of its Node object"},
            "--webhook": {
                "action": "store_true",
                "help": "first change the pods as Koordinator's webhook does",
            },
            "--output": {"choices": ("text", "json", "yaml"), "default": "text", "help": "(default: text)"},
        },
    ),
    Command(
        "record",
        "record:record",
        "record intercepted calls and what policies decided on them",
        ", after a snapshot of the node and of all pods, until Ctrl-C or for a time. Environment values, "
        "command lines and credentials are left out. The exit code is 1 if the file becomes too large: what "
        "is in it can be replayed.",
        "--out FILE [--for TIME] [--max-size SIZE] ",
        {
            "--out": {
                "required": True,
                "metavar": "FILE",
                "help": "a new file; compressed if its name ends with .gz",
            },
            "--for": {
                "dest": "duration",
                "type": duration_s,
                "metavar": "TIME",
                "help": "end after this time, such as 1h (default: with Ctrl-C)",
            },
            "--max-size": {
                "type": size_bytes,
                "default": 256 << 20,
                "metavar": "SIZE",
                "help": "end before the file is larger than this (default: 256Mi)",
            },
            **_ADMIN_SOCKET,
        },
    ),
    Command(
        "replay",
        "replay:replay",
        "show what the policies would decide otherwise on recorded calls",
        ". Policies and settings are those of the configuration; node, strategies and pods those of the "
        "recording. No runtime and no instance need run. The exit code is 1 if something would differ.",
        "FILE [--all] [--output text|json|yaml] ",
        {
            "file": {"metavar": "FILE", "help": "what the command record has written"},
            "--all": {"action": "store_true", "help": "show each call, not only kinds of differences"},
            "--output": {"choices": ("text", "json", "yaml"), "default": "text", "help": "(default: text)"},
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
        "steer:bypass",
        "let all calls pass without policies (on), or end that (off)",
        ". Signals the instance that serves on the proxy's socket, so it works even if the API hangs.",
        "(on | off) [--reason TEXT] ",
        {
            "state": {"choices": ("on", "off"), "help": "kept by an upgrade, not by a restart"},
            **_REASON,
            **_ADMIN_SOCKET,
            **_TIMEOUT,
        },
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
    Command(
        "check-removal",
        "process:check_removal",
        "fail while a kubelet's endpoint is the proxy's socket; packages ask before they are removed",
        ". Names the file or flag, and what to set instead.",
    ),
)
"""In the order of the help."""
