"""What works where, by the trees: `python -m tests.platforms.table` writes `systemd/PLATFORMS.md` anew."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from policies.system_config import GROUP_IDENTITY, IDLE_SAVER_WMARK, MIN_FREE_KBYTES, WATERMARK_SCALE_FACTOR
from runtimeproxy.fields.kernel_settings import KERNEL_SETTINGS
from runtimeproxy.fields.tables import PARAMETERS
from runtimeproxy.hooks.decision import missing_features, unmet_for
from runtimeproxy.hooks.loaded import LoadedPolicy, bind
from runtimeproxy.hooks.loading import built_in
from runtimeproxy.hooks.views import PodView
from runtimeproxy.node.snapshot import Feature, Node
from tests.lab.programs import REPOSITORY
from tests.platforms.trees import Platform, node_of, platforms

DOCUMENT: Final = REPOSITORY / "systemd" / "PLATFORMS.md"
BEGIN: Final = "<!-- begin: python -m tests.platforms.table -->\n"
END: Final = "<!-- end -->\n"
PROVIDED: Final = frozenset({Feature.TC, Feature.NFT, Feature.NET_ADMIN, Feature.RESCTRL_MOUNTED})
"""Features that no kernel lacks, but an administrator provides: the table takes them as given."""
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "network-qos": ("CONFIG_NET_SCH_HTB", "CONFIG_NF_TABLES", "CONFIG_NFT_LIMIT"),
}
"""Options that policies need and no file tells beforehand. Source: Linux net/sched, net/netfilter."""
OTHER_FEATURES: Final[Mapping[str, str]] = {
    Feature.CORE_SCHED: "none: `PR_SCHED_CORE` of prctl (`CONFIG_SCHED_CORE`)",
    Feature.RESCTRL: "none: the file system resctrl",
}
"""Features that have no file in cgroups, for people."""
RESCTRL_OPTIONS: Final = ("CONFIG_X86_CPU_RESCTRL", "CONFIG_RESCTRL_FS")
SYSCTLS: Final = (MIN_FREE_KBYTES, WATERMARK_SCALE_FACTOR, GROUP_IDENTITY, IDLE_SAVER_WMARK)
"""Those of `system-config`."""


class Cell(NamedTuple):
    """One policy on one platform."""

    state: str
    """`on`, `part`, `off`, or `cpu`: as the processor has it."""
    note: str = ""
    """What is missing, or why; empty if nothing is."""


def cell(policy: LoadedPolicy, platform: Platform, node: Node) -> Cell:
    """What the daemon decides of a policy on a node, by its own functions."""
    tree = platform.tree
    given = PROVIDED & policy.features
    node = replace(node, features=node.features | given)
    if Feature.RESCTRL in policy.features - node.features:
        if platform.architecture == "arm64":
            return Cell("off", "no resctrl; ARM MPAM is not built")
        if any(tree.config.get(each) == "y" for each in RESCTRL_OPTIONS):
            return Cell("cpu", "built with resctrl: works where the processor has RDT (Intel) or PQoS (AMD)")
    if (unmet := unmet_for(policy, PodView(), node)) is not None and not unmet.unknown_inputs:
        return Cell("off", str(unmet))
    if absent := [each for each in OPTIONS.get(policy.name, ()) if tree.config.get(each) == "n"]:
        return Cell("off", f"the kernel is built without {', '.join(absent)}")
    missing = sorted(missing_features(policy.optional_features, node))
    if missing and not policy.features and policy.optional_features <= frozenset(missing):
        return Cell("off", f"the kernel has none of {', '.join(missing)}")
    missing += _missing_settings(policy, platform)
    return Cell("part", f"without {', '.join(missing)}") if missing else Cell("on")


def _missing_settings(policy: LoadedPolicy, platform: Platform) -> list[str]:
    """The settings of the kernel that `system-config` sets and this one lacks."""
    if policy.name != "system-config":
        return []
    files = platform.tree.files
    missing = [name for name in SYSCTLS if f"proc/sys/{name.replace('.', '/')}" not in files]
    return missing + [
        name
        for name, each in KERNEL_SETTINGS.items()
        if each.files and not any(f"sys/{file}" in files for file in each.files)
    ]


@cache
def nodes() -> tuple[tuple[Platform, Node], ...]:
    """All platforms, and the node that the daemon sees on each."""
    found: list[tuple[Platform, Node]] = []
    for platform in platforms():
        with tempfile.TemporaryDirectory() as folder:
            found.append((platform, node_of(platform.tree, Path(folder))))
    return tuple(found)


def _policies() -> list[LoadedPolicy]:
    return sorted((bind(each()) for each in built_in()), key=lambda policy: policy.name)


def text() -> str:
    """The tables, as they are to stand in the document."""
    found = [platform for platform, _ in nodes()]
    cells = {policy.name: [cell(policy, *each) for each in nodes()] for policy in _policies()}
    notes: dict[str, int] = {}
    lines: list[str] = []
    for architecture in sorted({each.architecture for each in found}):
        columns = [index for index, each in enumerate(found) if each.architecture == architecture]
        lines += [f"### {architecture}", ""]
        lines += _rows(
            [("policy", *(_title(found[index]) for index in columns))],
            ((f"`{name}`", *(_shown(row[index], notes) for index in columns)) for name, row in cells.items()),
        )
        lines.append("")
    lines += [f"{number}. {note}" for note, number in notes.items()]
    lines += ["", "### What the notes name", ""]
    lines += _rows([("feature", "files, by their names in cgroup version 1")], _features())
    lines += ["", "### Where the trees come from", ""]
    lines += _rows([("tree", "platform", "kernel", "seen", "source")], _origins(found))
    return "\n".join(lines) + "\n"


def _title(platform: Platform) -> str:
    seen = "seen" if platform.is_seen else "not seen"
    kernel = platform.tree.kernel.partition("-")[0]
    return f"{platform.name}<br>{kernel}, cgroup v{platform.cgroup_version}<br>{seen}"


def _shown(each: Cell, notes: dict[str, int]) -> str:
    if not each.note:
        return each.state
    return f"{each.state} [{notes.setdefault(each.note, len(notes) + 1)}]"


def _features() -> Iterator[tuple[str, ...]]:
    files: dict[str, list[str]] = {}
    for name, each in PARAMETERS.items():
        if each.feature and each.processes is None:
            files.setdefault(each.feature, []).append(f"`{name}`")
    shown = {**{feature: ", ".join(names) for feature, names in files.items()}, **OTHER_FEATURES}
    for feature, of_feature in sorted(shown.items()):
        yield f"`{feature}`", of_feature


def _origins(found: Iterable[Platform]) -> Iterator[tuple[str, ...]]:
    by_file: dict[str, list[Platform]] = {}
    for each in found:
        by_file.setdefault(each.file, []).append(each)
    for file, of_file in by_file.items():
        first = of_file[0]
        source = "; ".join(first.sources) or "`doctor --record-tree`"
        if first.assumed:
            source += f". Assumed: {'; '.join(first.assumed)}"
        architectures = ", ".join(each.architecture for each in of_file)
        seen = "yes" if first.is_seen else "no"
        yield f"`{file}`", f"{first.name}, {architectures}", first.tree.kernel, seen, source


def _rows(head: Sequence[Sequence[str]], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head[0], ["---"] * len(head[0]), *rows]
    return [f"| {' | '.join(each)} |" for each in lines]


def written() -> str:
    """The document with the present tables."""
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}{text()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    DOCUMENT.write_text(written(), encoding="utf-8")
