"""The fuzzers: each runs a plan against a node of its own and reports what it found."""

from __future__ import annotations

import asyncio
import itertools
import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

import grpc
import uvloop

from runtimeproxy.signals import BYPASS_OFF
from tests.daemon.driving import BATCH_SHARES, batch_pod, shares_of
from tests.daemon.upgrading import Family
from tests.fuzz.header_blocks import Difference, compare
from tests.fuzz.node import NRI_SOCKET, Node, Variant
from tests.fuzz.nri import Findings, attack_core, attack_sockets
from tests.fuzz.servers import HostileNriRuntime, HostileServer
from tests.fuzz.sessions import Attack, Sessions
from tests.fuzz.witness import IMAGES, Calls, Seen, Witness
from tests.lab import procfs
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until

SLOW_MS: Final = 3_000.0
"""The longest call of a client that behaves, on a machine that does other things, too."""
HOSTILE: Final = "hostile.sock"
PORTION: Final = 10_000
"""Sessions between two lines of progress."""
BLOCKS_OF_A_CONNECTION: Final = 8


@dataclass(frozen=True)
class Plan:
    """What to run: everything that is sent follows from the seed."""

    seed: int
    sessions: int
    threads: int = 4
    variant: Variant = field(default_factory=Variant)


@dataclass(frozen=True)
class Report:
    """What a fuzzer has done and found."""

    seed: int
    what: str
    count: int
    seconds: float
    deaths: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """One line, and one for each note and finding."""
        rate = self.count / max(self.seconds, 1e-9)
        done = f"{self.count:,} {self.what}, seed {self.seed}, {rate:,.0f}/s"
        line = f"{done}: {len(self.deaths)} ended the daemon"
        return "\n".join(
            [line, *(f"  {note}" for note in self.notes), *(f"  ! {each}" for each in self.problems)]
        )


Fuzzer = Callable[[Plan], Report]


def sessions(plan: Plan) -> Report:
    """Hostile HTTP/2 clients."""
    with Node(plan.variant) as node:
        attack = Attack(node.proxy.socket, Sessions(plan.seed), plan.threads)
        took_s = 0.0
        with Witness(node.proxy.socket) as witness:
            while attack.done < plan.sessions:
                count = min(PORTION, plan.sessions - attack.done)
                took_s += attack.run(count, lambda: not node.proxy.alive())
                if node.revive():
                    print(f"  the daemon ended before session {attack.done}: {node.deaths[-1]}", flush=True)
                elif plan.sessions > PORTION:
                    print(f"  {attack.done:,} sessions, {attack.done / took_s:,.0f}/s", flush=True)
        excesses = [*node.excesses(), *node.chatter(took_s)]
        lines = len(node.proxy.log)
        notes = [
            ", ".join(f"{count:,} {kind}" for kind, count in sorted(attack.kinds.items())),
            f"{attack.answered:,} answered, {attack.refused:,} not connected, {lines:,} log lines",
        ]
        return _report(plan, "sessions", attack.done, took_s, node, witness.seen, excesses, notes)


def runtimes(plan: Plan) -> Report:
    """Hostile runtimes; images are served by one that behaves."""
    count = max(plan.sessions // 20, 1)
    with Node(plan.variant, runtime_socket=HOSTILE) as node:
        attack = Attack(node.proxy.socket, Sessions(plan.seed, ("valid", "cut")), plan.threads)
        path = node.folder / HOSTILE
        with HostileServer(path, plan.seed) as server, Witness(node.proxy.socket, IMAGES) as witness:
            took_s = attack.run(count, lambda: not node.proxy.alive())
            node.revive()
        path.symlink_to(node.runtime.socket_path)
        excesses = [*_served_again(node), *node.excesses(), *node.chatter(took_s)]
        notes = [f"{server.accepted:,} connections to the runtime, {server.answers:,} answers"]
        return _report(plan, "sessions", attack.done, took_s, node, witness.seen, excesses, notes)


def _served_again(node: Node) -> list[str]:
    """Whether a runtime that behaves is found again, and serves a whole life of a pod."""
    with CriClient(node.proxy.socket) as client:
        try:
            client.wait_until_serving(CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            return [f"the runtime that behaves is not found: {error}"]
        calls = Calls(client, node.proxy.socket)
        calls.life(0)
        return [f"after it: {each}" for each in calls.failed]


def hook_servers(plan: Plan) -> Report:
    """Hostile hook servers; pods and containers get what they would without them."""
    count = max(plan.sessions // 40, 1)
    with Node(plan.variant) as node:
        path = node.folder / "hook.sock"
        with HostileServer(path, plan.seed, right=0.8) as server:
            node.register(path)
            began_s = time.monotonic()
            with ExitStack() as stack:
                witnesses = [
                    stack.enter_context(Witness(node.proxy.socket, pace_s=0.0))
                    for _ in range(max(plan.threads // 2, 1))
                ]
                # One that answers wrongly too often is skipped for a while.
                with suppress(TimeoutError):
                    wait_until(
                        lambda: server.answers >= count or not node.proxy.alive(), "answers", 5 + count / 10
                    )
                node.revive()
            took_s = time.monotonic() - began_s
        excesses = [*node.excesses(), *node.chatter(took_s)]
        notes = [f"{server.accepted:,} connections", *(str(each.seen) for each in witnesses[1:])]
        for each in witnesses[1:]:
            excesses += [f"beside it: {failed}" for failed in (each.seen.failed if each.seen else ())]
        return _report(plan, "answers", server.answers, took_s, node, witnesses[0].seen, excesses, notes)


def upgrades(plan: Plan) -> Report:
    """Upgrades, bypass and reloading at any moment, beside hostile clients; no call of others may fail."""
    count = max(plan.sessions // 2_000, 1)
    random = Random(plan.seed)
    with Node(plan.variant, config="[proxy]\nupgrade_drain_s = 1\n") as node:
        attack = Attack(node.proxy.socket, Sessions(plan.seed), max(plan.threads // 2, 1))
        is_over = threading.Event()
        attacking = threading.Thread(target=attack.run, args=(plan.sessions * 100, is_over.is_set))
        began_s, problems = time.monotonic(), []
        with Family(node.proxy) as family, Witness(node.proxy.socket) as witness:
            attacking.start()
            try:
                for _ in range(count):
                    before = family.serving
                    for _ in range(random.randrange(3)):
                        family.signal(random.choice((signal.SIGHUP, BYPASS_OFF)))
                    family.upgrade()
                    # It refuses the next one until its predecessor has ended.
                    family.wait_until_ended(before)
            except TimeoutError as error:
                problems.append(f"{error}: {family.note}\n" + "\n".join(node.proxy.log[-30:]))
            finally:
                is_over.set()
                attacking.join()
            took_s = time.monotonic() - began_s
            problems += [line for line in node.proxy.log if "Fatal Python error" in line]
        notes = [f"{attack.done:,} hostile sessions beside them"]
        return _report(plan, "upgrades", count, took_s, node, witness.seen, problems, notes)


def kills(plan: Plan) -> Report:
    """SIGKILL at any moment under load, with a checkpoint that is damaged, truncated or cannot be written."""
    count = max(plan.sessions // 2_000, 1)
    random = Random(plan.seed)
    with Node(plan.variant) as node:
        began_s, problems = time.monotonic(), []
        attack = Attack(node.proxy.socket, Sessions(plan.seed), plan.threads)
        for _ in range(count):
            fault = random.choice(FAULTS)
            fault(node, random)
            attack.run(random.choice((10, 100, 300)), lambda: not node.proxy.alive())
            if node.revive():
                continue
            problems += _served_again(node)
            node.proxy.kill()
            _damage(node, random)
            node.start()
            problems += _served_again(node)
        took_s = time.monotonic() - began_s
        problems += node.excesses()
        return _report(
            plan, "kills", count, took_s, node, None, problems, [f"{attack.done:,} sessions between"]
        )


def _no_fault(node: Node, random: Random) -> None:
    """Everything works."""


def _full_disk(node: Node, random: Random) -> None:
    """No file can grow: as on a full disk, every write of the checkpoint fails."""
    most = random.choice((0, 100, 50_000))
    resource.prlimit(node.proxy.pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


def _few_files(node: Node, random: Random) -> None:
    """Hardly a descriptor is left."""
    used = procfs.open_files(node.proxy.pid)
    _, hard = resource.prlimit(node.proxy.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(node.proxy.pid, resource.RLIMIT_NOFILE, (used + random.choice((8, 20, 40)), hard))


def _no_state(node: Node, random: Random) -> None:
    """The state's folder disappears."""
    shutil.rmtree(node.proxy.state_folder, ignore_errors=True)


def _damage(node: Node, random: Random) -> None:
    """Does something to the files of the checkpoint."""
    for path in sorted(node.proxy.state_folder.glob("*")):
        change = random.randrange(6)
        if not path.is_file() or change > 3:
            continue
        data = bytearray(path.read_bytes())
        if change == 0:
            data = data[: random.randrange(len(data) + 1)]
        elif change == 1:
            data = bytearray(random.randbytes(5_000))
        for _ in range(20 if change == 2 and data else 0):
            data[random.randrange(len(data))] = random.randrange(256)
        if change == 3:
            path.unlink()
        else:
            path.write_bytes(data)


FAULTS: Final = (_no_fault, _full_disk, _few_files, _no_state)


def header_blocks(plan: Plan) -> Report:
    """The relay's reader of header blocks beside the `hpack` library."""
    began_s = time.monotonic()
    decoded, problems = 0, []
    connections = max(plan.sessions // BLOCKS_OF_A_CONNECTION, 1)
    for number in range(connections):
        try:
            decoded += compare(Random(plan.seed << 40 | number), BLOCKS_OF_A_CONNECTION)
        except Difference as error:
            problems.append(f"connection {number}: {error}")
    took_s = time.monotonic() - began_s
    notes = (f"{decoded:,} blocks decoded, the last of each other connection by neither",)
    return Report(plan.seed, "connections", connections, took_s, (), tuple(problems), notes)


def ttrpc_core(plan: Plan) -> Report:
    """Hostile ttrpc at the sans-io core, either end."""
    began_s, count = time.monotonic(), plan.sessions * 5
    found = attack_core(plan.seed, count)
    return _findings(plan, count, time.monotonic() - began_s, found)


def ttrpc_sockets(plan: Plan) -> Report:
    """Hostile peers of NRI connections over real sockets, either end, in both event loops."""
    began_s, count = time.monotonic(), max(plan.sessions // 4, 4)
    whole = Findings()
    for seed, new_loop in enumerate((uvloop.new_event_loop, asyncio.new_event_loop), plan.seed):
        with TemporaryDirectory(prefix="fuzz-") as folder:
            found = attack_sockets(Path(folder), seed, count // 2, plan.threads, new_loop)
        whole.kinds.update(found.kinds)
        whole.counts.update(found.counts)
        whole.problems += found.problems
        whole.slowest_s = max(whole.slowest_s, found.slowest_s)
    return _findings(plan, whole.kinds.total(), time.monotonic() - began_s, whole)


def nri_runtimes(plan: Plan) -> Report:
    """Hostile runtimes at their NRI socket; then one that behaves in their place."""
    count = max(plan.sessions // 100, 1)
    with Node(plan.variant, nri_socket=HOSTILE) as node:
        path, began_s = node.folder / HOSTILE, time.monotonic()
        with HostileNriRuntime(path, plan.seed) as server:
            with suppress(TimeoutError):
                wait_until(lambda: server.accepted >= count or not node.proxy.alive(), "plugins", 10 + count)
            node.revive()
        took_s = time.monotonic() - began_s
        path.symlink_to(node.folder / NRI_SOCKET)
        excesses = [*_plugin_again(node), *node.excesses(), *node.chatter(took_s, server.taken)]
        notes = [f"the plugin was taken {server.taken:,} times"]
        return _report(plan, "connections", server.accepted, took_s, node, None, excesses, notes)


def _plugin_again(node: Node) -> list[str]:
    """Whether the plugin finds a runtime that behaves, and a container gets its values there."""
    numbers = itertools.count()

    def has_values() -> bool:
        return shares_of(batch_pod(client, f"after-{next(numbers)}").run().create()) == BATCH_SHARES

    with CriClient(node.runtime.socket_path) as client:
        try:
            wait_until(has_values, "values")
        except (grpc.RpcError, TimeoutError) as error:
            return [f"a runtime that behaves is not found: {error}"]
    return []


def _findings(plan: Plan, count: int, took_s: float, found: Findings) -> Report:
    if found.slowest_s * 1000 > SLOW_MS:
        found.problems.append(f"one took {found.slowest_s:.1f} s")
    return Report(plan.seed, "sessions", count, took_s, (), tuple(found.problems), tuple(found.notes))


def _report(
    plan: Plan,
    what: str,
    count: int,
    took_s: float,
    node: Node,
    seen: Seen | None,
    problems: list[str],
    notes: list[str],
) -> Report:
    deaths = tuple(node.deaths)
    problems = [*(f"the daemon ended: {death}" for death in deaths), *problems]
    if seen is not None:
        notes = [*notes, str(seen)]
        # What a daemon that ended has cost is no finding of its own.
        if not deaths:
            problems += [f"beside it: {each}" for each in seen.failed]
            if seen.most_ms > SLOW_MS:
                problems.append(f"beside it: a call took {seen.most_ms:.0f} ms")
    return Report(plan.seed, what, count, took_s, deaths, tuple(problems), tuple(notes))


FUZZERS: Final[Mapping[str, Fuzzer]] = {
    "sessions": sessions,
    "header-blocks": header_blocks,
    "runtimes": runtimes,
    "hook-servers": hook_servers,
    "nri-runtimes": nri_runtimes,
    "ttrpc-core": ttrpc_core,
    "ttrpc-sockets": ttrpc_sockets,
    "upgrades": upgrades,
    "kills": kills,
}
