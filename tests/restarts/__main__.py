"""`python -m tests.restarts`: restarts the proxy and the runtime under load and prints what clients see."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.bench.stands import containerd_is_there
from tests.lab.programs import tools_folder
from tests.restarts import managed, table, verdicts, versions
from tests.restarts.load import Client, clients
from tests.restarts.managed import ManagedKind
from tests.restarts.proxy_restarts import restarted
from tests.restarts.runtime_restarts import runtime_restarted
from tests.restarts.stands import RuntimeName, stand
from tests.restarts.supervisors import MEANINGS, Kind

_RUNTIME = "runtime"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what was asked for; 1 if it does not show what it must, else 0."""
    chosen = _parser().parse_args(arguments)
    runtime: RuntimeName = chosen.runtime
    used = clients()
    load = ", ".join(f"{part:.2f}" for part in os.getloadavg())
    print(
        f"{os.cpu_count()} CPUs, Linux {platform.release()}, Python {platform.python_version()}; {runtime};"
    )
    print(f"clients: {', '.join(client.name for client in used)}; load average {load}", flush=True)
    if chosen.other:
        return _end(_change_version(versions.KINDS, chosen.restarts, used, chosen.other, chosen.this))
    kinds = chosen.kind or [*Kind, *ManagedKind, _RUNTIME]
    proxies = [Kind(kind) for kind in kinds if kind in list(Kind)]
    faults = _restart_proxy(runtime, proxies, chosen.restarts, used)
    beside = [ManagedKind(kind) for kind in kinds if kind in list(ManagedKind)]
    faults += _restart_beside_manager(beside, chosen.restarts, used)
    if _RUNTIME in kinds:
        faults += _restart_runtime(runtime, chosen.runtime_restarts, used)
    return _end(faults)


def _end(faults: Sequence[str]) -> int:
    print("\n".join(faults or ["all as it must be"]))
    return 1 if faults else 0


def _restart_proxy(
    runtime: RuntimeName, kinds: Sequence[Kind], restarts: int, used: Sequence[Client]
) -> list[str]:
    faults: list[str] = []
    for kind in kinds:
        print(f"\n{kind}: {MEANINGS[kind]}", flush=True)
        with stand(runtime) as running:
            report = restarted(running, kind, restarts, used)
        print("\n".join(table.proxy_lines(report)), flush=True)
        faults += verdicts.proxy_faults(report)
    return faults


def _restart_beside_manager(kinds: Sequence[ManagedKind], restarts: int, used: Sequence[Client]) -> list[str]:
    """Before the fake runtime, whose cgroups are plain files."""
    faults: list[str] = []
    for kind in kinds:
        print(f"\n{kind}: {managed.MEANINGS[kind]}", flush=True)
        number = -(-2 * restarts // managed.FLIPS) if kind is ManagedKind.STRATEGIES else restarts
        with stand("fake") as running:
            report = managed.restarted_beside_manager(running, kind, number, used)
        print("\n".join(table.managed_lines(report)), flush=True)
        faults += verdicts.managed_faults(report)
    return faults


def _change_version(
    kinds: Sequence[Kind], restarts: int, used: Sequence[Client], other: Path, this: Path
) -> list[str]:
    """Before the fake runtime, whose cgroups are plain files."""
    faults: list[str] = []
    for kind in kinds:
        print(f"\n{kind}, to {this}, back to {other}, and so on", flush=True)
        with stand("fake") as running:
            report = versions.restarted_as_other(running, kind, restarts, used, other, this)
        print("\n".join(table.versions_lines(report)), flush=True)
        faults += verdicts.versions_faults(report)
    return faults


def _restart_runtime(runtime: RuntimeName, restarts: int, used: Sequence[Client]) -> list[str]:
    print("\nruntime: the runtime behind the proxy ends and starts again", flush=True)
    with stand(runtime) as running:
        seen = runtime_restarted(running, restarts, used)
    print("\n".join(table.runtime_lines(seen)), flush=True)
    return verdicts.runtime_faults(seen)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.restarts", description=__doc__)
    kinds = [*Kind, *ManagedKind, _RUNTIME]
    parser.add_argument("--kind", action="append", choices=kinds, help="what is restarted (all)")
    parser.add_argument("--restarts", type=int, default=50, help="of the proxy, of each kind (50)")
    parser.add_argument("--runtime-restarts", type=int, default=20, help="of the runtime (20)")
    parser.add_argument(
        "--runtime", choices=("containerd", "fake"), default=_runtime(), help="(what is there)"
    )
    parser.add_argument(
        "--other",
        type=Path,
        help="virtual environment with another version: each restart changes the version",
    )
    parser.add_argument(
        "--this", type=Path, default=Path(sys.prefix), help="that with the version to change to (this one)"
    )
    return parser


def _runtime() -> RuntimeName:
    built = (tools_folder() / "containerd").is_file()
    return "containerd" if built and os.geteuid() == 0 and containerd_is_there() else "fake"


if __name__ == "__main__":
    sys.exit(main())
