"""Measures the policy `network-qos` in network namespaces: `python -m tests.network`; as root."""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tests.network.load import Flow, Load, greedy
from tests.network.namespaces import Family, NodeNetwork
from tests.network.stand import CEILINGS_MBIT, GUARANTEES_MBIT, RunningPod, Stand

_FAMILIES: tuple[Family, Family] = (4, 6)
_SETTLE_S = 2.0
_TOLERANCE = 0.1
_LIMITS_MBIT = (5, 10, 40)
_MANY = range(1, 51)


class Row(NamedTuple):
    """One measured rate."""

    what: str
    wanted_mbit: float
    seen_mbit: float

    @property
    def is_within(self) -> bool:
        """Whether it is as wanted, to a tenth."""
        return abs(self.seen_mbit - self.wanted_mbit) <= _TOLERANCE * self.wanted_mbit

    def __str__(self) -> str:
        off_percent = 100 * (self.seen_mbit / self.wanted_mbit - 1)
        return f"| {self.what} | {self.wanted_mbit:g} | {self.seen_mbit:.2f} | {off_percent:+.1f} % |"


class Bench:
    """Measures on one node."""

    def __init__(self, stand: Stand, network: NodeNetwork, seconds: float) -> None:
        self._stand = stand
        self._network = network
        self._seconds = seconds

    def classes(self) -> Iterator[Row]:
        """Guarantees of all classes at one time, and the ceiling of each alone."""
        with ExitStack() as stack:
            pods = {qos: stack.enter_context(self._stand.pod(qos)) for qos in GUARANTEES_MBIT}
            for family in _FAMILIES:
                rates = self._rates([self._sent(pod, (family,)) for pod in pods.values()])
                for (qos, wanted), seen in zip(GUARANTEES_MBIT.items(), rates, strict=True):
                    yield Row(f"IPv{family}: {qos} beside the others, guarantee", wanted, seen)
            for family in _FAMILIES:
                for qos, wanted in CEILINGS_MBIT.items():
                    (seen,) = self._rates([self._sent(pods[qos], (family,))])
                    yield Row(f"IPv{family}: {qos} alone, ceiling", wanted, seen)

    def limits(self) -> Iterator[Row]:
        """Limits of a pod, in each direction; four flows of both families."""
        for mbit in _LIMITS_MBIT:
            with self._stand.pod("LS", {"egressLimit": f"{mbit}M", "ingressLimit": f"{mbit}M"}) as pod:
                (sent,) = self._rates([self._sent(pod, _FAMILIES * 2)])
                yield Row("a pod's limit of what it sends", mbit, sent)
                flows = greedy(self._network.peer, pod.network, pod.network.addresses, _FAMILIES * 2)
                (received,) = self._rates([flows])
                yield Row("a pod's limit of what it receives", mbit, received)

    def delays_s(self) -> list[float]:
        """From a pod's start to its addresses in nft, one pod after the other."""
        delays, pods = [], []
        for number in _MANY:
            pods.append(self._stand.addressed_pod(number))
            began_s = time.monotonic()
            self._stand.wait_for_addressed_pods([number])
            delays.append(time.monotonic() - began_s)
        for pod in pods:
            self._stand.remove(pod)
        return sorted(delays)

    def _sent(self, pod: RunningPod, families: Sequence[Family]) -> tuple[Flow, ...]:
        return greedy(pod.network, self._network.peer, self._network.peer_addresses, families)

    def _rates(self, groups: Sequence[Sequence[Flow]]) -> list[float]:
        with Load(groups) as load:
            load.mbit_per_second(_SETTLE_S)
            return load.mbit_per_second(self._seconds)


def _measured(seconds: float) -> tuple[list[Row], Mapping[str, float]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="net-")))
        network = stack.enter_context(NodeNetwork())
        stand = stack.enter_context(Stand(folder, network.node, network))
        stand.start()
        bench = Bench(stand, network, seconds)
        rows = [*bench.classes(), *bench.limits()]
        delays_s = bench.delays_s()
    return rows, {"median": statistics.median(delays_s), "longest": delays_s[-1]}


def main() -> int:
    """Prints the table; 1 if a rate is off by more than a tenth."""
    parser = argparse.ArgumentParser(prog="python -m tests.network", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement (5)")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("network namespaces need root")
    rows, delays_s = _measured(options.seconds)
    print("| what | wanted, Mbit/s | measured | |\n| --- | --- | --- | --- |")
    for row in rows:
        print(row)
    print("\n" + ", ".join(f"{name} {value * 1000:.0f} ms" for name, value in delays_s.items()), end=" ")
    print(f"from the start of a pod to its addresses in nft, of {len(_MANY)} pods")
    return 0 if all(row.is_within for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
