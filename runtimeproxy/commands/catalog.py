"""All subcommands, with their arguments and help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from runtimeproxy.commands.arguments import Command
from runtimeproxy.commands.values import (
    duration_s,
    label_selector,
    natural,
    past_moment,
    plain_text,
    size_bytes,
)

_Options = Mapping[str, Mapping[str, Any]]


def _option(metavar: str, text: str, **more: object) -> Mapping[str, Any]:
    return {"metavar": metavar, "help": text, **more}


def _text(metavar: str, text: str, **more: object) -> Mapping[str, Any]:
    return _option(metavar, text, type=plain_text, **more)


def _switch(text: str) -> Mapping[str, Any]:
    return {"action": "store_true", "help": text}


def _output(*forms: str, text: str = "(default: text)") -> _Options:
    return {"--output": {"choices": ("text", *forms), "default": "text", "help": text}}


_REPEATED: Final[Mapping[str, Any]] = {"action": "append", "default": []}
_NODE_LABELS: Final[_Options] = {
    "--node-labels": _option("K=V,...", "labels of the node, beside those of its Node object", **_REPEATED),
}
_OUTPUT_TEXT: Final = "text for people; JSON or YAML as the API has it (default: text)"
_OUTPUT: Final = _output("json", "yaml", text=_OUTPUT_TEXT)
_FORMS: Final = _output("json", "yaml")
"""Of commands that need no daemon."""
_TIMEOUT: Final[_Options] = {
    "--timeout": _option(
        "TIME", "how long the daemon may take (default: 10s)", type=duration_s, default=10.0
    ),
}
_ENDPOINT: Final[_Options] = {
    "--endpoint": _option("SOCKET", "the daemon's socket (default: that of the configuration)"),
}
_READING: Final[_Options] = {**_ENDPOINT, **_TIMEOUT, **_OUTPUT}
"""Of commands that ask the daemon."""
_ADMIN_SOCKET: Final[_Options] = {
    **_ENDPOINT,
    "--admin-socket": _option("SOCKET", "the daemon's admin socket (default: that of the configuration)"),
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
    "start",
    "stop",
    "upgrade",
    "gap",
    "mode",
    "bypass",
    "strategy",
)
_REASON: Final[_Options] = {
    "--reason": _text("TEXT", "why, for the status; at most 256 characters"),
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
        usage="[--namespace NAME] [--policy POLICY] [--wide] ",
        arguments={
            "--namespace": _text("NAME", "only pods of this namespace"),
            "--policy": _text(
                "POLICY",
                "only pods that this policy or hook server has changed, or plugin:NAME (QoS manager)",
            ),
            "--wide": _switch("a row for the pod and for each container, with the values that policies set"),
            **_READING,
            **_output("json", "yaml", "name", text=f"{_OUTPUT_TEXT}; name: NAMESPACE/NAME of each"),
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
            "pod": _text(
                "POD", "[NAMESPACE/]POD[/CONTAINER]; a pod by its name, its uid, or the beginning of an id"
            ),
            "--all": _switch("also what nothing changes, and all policies"),
            **_READING,
        },
    ),
    Command(
        "audit",
        "audit:audit",
        "show what policies changed, refused, or failed to do",
        ", and how the daemon, modes, bypass and strategies changed: the entries that the daemon remembers, "
        "the last 500 about policies and 200 others, a line for each field. With --since or --until they "
        "come from audit.file and its rotations, if that is set; while the daemon is down from there, too, "
        "or from the state folder.",
        "[--since TIME] [--until TIME] [--follow] [--pod POD] [--policy POLICY] ",
        {
            "--since": _option(
                "TIME",
                "only from then on: 2h or 3d (ago), yesterday, 3 days ago, 14:30, 2026-11-20, or RFC 3339",
                type=past_moment,
            ),
            "--until": _option("TIME", "only until then, in the same way", type=past_moment),
            "--follow": _switch("go on with decisions to come, until Ctrl-C"),
            "--pod": _text("POD", "only this pod, by [NAMESPACE/]NAME or uid"),
            "--policy": _text("POLICY", "only this policy"),
            "--kind": _option(
                "KIND",
                f"only entries of this kind: {', '.join(AUDIT_KINDS)}; may be repeated",
                choices=AUDIT_KINDS,
                **_REPEATED,
            ),
            "--limit": _option(
                "NUMBER",
                "at most so many of the past entries, the newest ones (default: all)",
                type=natural,
                default=0,
            ),
            **_READING,
        },
    ),
    Command(
        "policy",
        "steer:policy",
        "set the mode of a policy, for all pods or some, for a time or until it is reset",
        ". It stands above the configuration, also after a reload and a restart; reset takes it back.",
        "POLICY (enforce | dry-run | off | reset) [--namespace NAME] [--selector LABELS] [--for TIME] ",
        {
            "name": _text("POLICY", "the policy, or plugin:NAME of the QoS manager"),
            "mode": {"choices": ("enforce", "dry-run", "off", "reset"), "help": "its mode"},
            "--namespace": _option("NAME", "only for pods of this namespace; may be repeated", **_REPEATED),
            "--selector": _option(
                "LABELS",
                "only for pods with these labels, as kubectl takes them: app=web,tier!=front",
                type=label_selector,
            ),
            "--for": _option("TIME", "end after this time, such as 10m", dest="duration", type=duration_s),
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
        "problem; warnings leave it 0. With --record-tree it examines nothing, but writes what tells which "
        "policies work on this node into a new file of JSON, to be read by people and sent to others: "
        "release, options and switches of the kernel, distribution, architecture, processor, CPUs, "
        "NUMA nodes, block devices, resctrl, the runtime's version, and of the cgroups at the root, "
        "of kubepods, of its classes, of one pod and one container the names, modes and resource "
        "values of the files. It has no names of pods, images, hosts, users, volumes or mount points, "
        "no processes, command lines, environments or addresses. What this user may not read is named "
        "in it.",
        "[--record-tree FILE] ",
        {
            "--record-tree": _option("FILE", "a new file, for what tells which policies work on this node"),
            **_READING,
        },
    ),
    Command(
        "check-config",
        "checks:check_config",
        "check flags, environment, file, policies and hook servers' registrations",
        ". Prints every problem, and the exit code is 2 then; warnings leave it 0.",
        arguments=_FORMS,
    ),
    Command(
        "check-slo",
        "checks:check_slo",
        "show what strategies say, where each value comes from, and what is wrong",
        ". FILE holds Kubernetes objects (the ConfigMap slo-controller-config, this node's Node and "
        "NodeSLO, Katalyst's AdminQoSConfigurations), or is a folder of such files or of a mounted "
        "ConfigMap. Nothing is changed, and no instance need run; the exit code is 1 if something cannot be "
        "used, or a file holds nothing that is read.",
        "FILE... [--node-labels K=V,...] [--node-name NAME] [--node-annotations K=V,...] [--pod FILE] "
        "[--strict] [--output text|json] ",
        {
            "files": _option("FILE", "file or folder with the objects", nargs="+"),
            **_NODE_LABELS,
            "--node-name": _option("NAME", "name of the node, else that of its Node object"),
            "--node-annotations": _option("K=V,...", "annotations of the node, in the same way", **_REPEATED),
            "--pod": _option("FILE", "also show what applies to the Pod in this file"),
            "--strict": _switch("names of keys and fields that Koordinator does not have are errors, too"),
            **_output("json"),
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
            "-f --file": _option(
                "FILE",
                "manifest or recorded request; may be given several times",
                action="append",
                required=True,
            ),
            **_NODE_LABELS,
            "--webhook": _switch("first change the pods as Koordinator's webhook does"),
            **_output("json", "yaml"),
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
            "--out": _option("FILE", "a new file; compressed if its name ends with .gz", required=True),
            "--for": _option(
                "TIME",
                "end after this time, such as 1h (default: with Ctrl-C)",
                dest="duration",
                type=duration_s,
            ),
            "--max-size": _option(
                "SIZE",
                "end before the file is larger than this (default: 256Mi)",
                type=size_bytes,
                default=256 << 20,
            ),
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
            "file": _option("FILE", "what the command record has written"),
            "--all": _switch("show each call, not only kinds of differences"),
            **_output("json", "yaml"),
        },
    ),
    Command(
        "list-policies",
        "checks:list_policies",
        "list all policies with their methods and settings",
        ". Also those that cannot be loaded, with the reason; the exit code is 1 then.",
        arguments=_output("json", "yaml", "name", text="name: one a line, for scripts (default: text)"),
    ),
    Command("version", "process:version", "show the version", arguments=_FORMS),
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
        {"--dry-run": _switch("only show the changes"), **_FORMS},
    ),
    Command(
        "check-removal",
        "process:check_removal",
        "fail while a kubelet's endpoint is the proxy's socket; packages ask before they are removed",
        ". Names the file or flag, and what to set instead.",
    ),
)
"""In the order of the help."""
