"""Samples from Malachite, Katalyst's metrics daemon, over HTTP: in a thread of its own, used while fresh.

A pass of the sampler waits for no answer: it takes the values that are there, and reads the kernel's files
for all others. So whatever is wrong with Malachite, away, late, slow or wrong, costs a value its source only.
"""

from __future__ import annotations

import errno
import logging
import math
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from operator import sub
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from runtimeproxy.errors import described
from runtimeproxy.logs import FailureLog
from runtimeproxy.process import without_tls
from runtimeproxy.qosmanager.samples.kernel_files import FileGroup, ImplausibleError, Numbers, Values
from runtimeproxy.qosmanager.samples.malachite_answers import (
    NODE_GROUPS,
    AnswerError,
    Reading,
    Readings,
    cgroup_path,
    cgroup_readings,
    covers,
    data_of,
    node_readings,
)
from runtimeproxy.qosmanager.snapshot import LOOK_BACK_S, NODE_CGROUP, Level, Metric

if TYPE_CHECKING:
    from http import client as http_client
    from types import ModuleType

    from runtimeproxy.qosmanager.plugin import Need


def _client_without_tls() -> ModuleType:
    """Python's HTTP client, which would import OpenSSL."""
    is_loaded = not sys.modules.keys().isdisjoint(("ssl", "http.client"))
    with without_tls():
        import http.client
    # Later imports get the whole client.
    return http.client if is_loaded else sys.modules.pop("http.client")


if not TYPE_CHECKING:
    http_client = _client_without_tls()

logger = logging.getLogger(__name__)

STALE_S: Final = 30.0
"""Older data is not used.
Source: katalyst-core pkg/metaserver/agent/metric/provisioner/malachite/client, UpdateTimeout."""
_OLD: Final = f"its data is older than {STALE_S:.0f} s"
_HELD_S: Final = STALE_S - LOOK_BACK_S - 1
"""How old data may be when it becomes a sample: plugins look at samples of the last `LOOK_BACK_S` seconds."""
POLL_S: Final = 10.0
"""Each cgroup is asked for once in this time. Malachite itself reads every 10 s by default.
Source: Malachite server/release/static/config/default.toml."""
_LEAST_ELAPSED_S: Final = 5
"""Two readings that are closer make no rate: their times are whole seconds, and a fifth is wrong enough."""
_MOST_AHEAD_S: Final = 2.0
"""Data from further in the future is not used: one of the clocks was set."""
_LEAST_PAUSE_S: Final = 0.1
"""The thread wakes up no more often."""
_FAILURE_PAUSES_S: Final = (0.0, 1.0, 2.0, 4.0, 8.0)
"""Pauses after failures in a row; the last one after all further ones."""
_IDLE_S: Final = 120.0
"""Without a pass for so long nothing is asked for."""
REQUEST_S: Final = 2.0
"""How long one answer may take, from the connection to its last byte."""
MOST_BYTES: Final = 1 << 20
"""The most that is read of one answer about the node, head included; those of 512 CPUs have a fifth of it."""
_MOST_CGROUP_BYTES: Final = 1 << 17
"""The same of a cgroup; one is 6 to 20 KiB."""
_PIECE_BYTES: Final = 1 << 16
_TOO_LONG: Final = "the answer is too long"


class RequestError(Exception):
    """No whole answer; the text says why."""


class _BoundedSocket(socket.socket):
    """A connection of which a request reads so many bytes, until its deadline; `begin` begins one."""

    _left_bytes = 0
    _deadline_s = 0.0

    def begin(self, most_bytes: int, deadline_s: float) -> None:
        self._left_bytes, self._deadline_s = most_bytes, deadline_s
        self.limit()

    def limit(self) -> None:
        """Has the next call take no longer than is left. Raises TimeoutError."""
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self.settimeout(left_s)

    # All bytes of `makefile` come from it.
    def recv_into(self, *arguments: Any) -> int:  # noqa: ANN401 - those of socket.socket
        self.limit()
        count = super().recv_into(*arguments)
        self._left_bytes -= count
        if self._left_bytes < 0:
            raise RequestError(_TOO_LONG)
        return count


class HttpConnection:
    """Asks one server over a connection that stays open, one request at a time.

    No redirects, no proxies, no TLS.
    """

    def __init__(self, url: str, *, limit_s: float = REQUEST_S) -> None:
        """Connects to nothing yet.

        Args:
            url: `http://host:port`.
            limit_s: How long an answer may take, from the connection to its last byte; the resolver's time
                is its own.
        """
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or http_client.HTTP_PORT
        self._limit_s = limit_s
        self._socket: _BoundedSocket | None = None
        self._connection = http_client.HTTPConnection(self._host, self._port)

    def get(self, path: str, most_bytes: int) -> bytes:
        """Returns the body of the answer, of at most `most_bytes` with its head.

        Raises:
            RequestError: there is no whole answer.
            AnswerError: its status is not 200.
        """
        deadline_s = time.monotonic() + self._limit_s
        try:
            status, body = self._exchange(path, most_bytes, deadline_s)
        except TimeoutError:
            raise RequestError(f"no whole answer within {self._limit_s:g} s") from None
        except (OSError, http_client.HTTPException, ValueError) as error:
            is_forbidden = isinstance(error, OSError) and error.errno == errno.EAFNOSUPPORT
            hint = " (the unit has no network without 30-malachite.conf)" if is_forbidden else ""
            raise RequestError(described(error)[:200] + hint) from None
        if status != http_client.OK:
            raise AnswerError(f"HTTP status {status}")
        return body

    def close(self) -> None:
        self._connection.close()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _exchange(self, path: str, most_bytes: int, deadline_s: float) -> tuple[int, bytes]:
        # The server may have ended a connection that was left open: then there is another one.
        if self._socket is not None and self._connection.sock is not None:
            try:
                return self._request(self._socket, path, most_bytes, deadline_s)
            except ConnectionError:
                pass
        return self._request(self._connect(deadline_s), path, most_bytes, deadline_s)

    def _request(
        self, connected: _BoundedSocket, path: str, most_bytes: int, deadline_s: float
    ) -> tuple[int, bytes]:
        is_whole = False
        try:
            connected.begin(most_bytes, deadline_s)
            self._connection.request("GET", path)
            with self._connection.getresponse() as response:
                if response.length is not None and response.length > most_bytes:
                    raise RequestError(_TOO_LONG)
                body = b"".join(iter(lambda: response.read(_PIECE_BYTES), b""))
                if response.length:
                    raise RequestError("the answer ended too early")
            is_whole = True
        finally:
            if not is_whole:
                self.close()
        return response.status, body

    def _connect(self, deadline_s: float) -> _BoundedSocket:
        self.close()
        error = OSError("the host has no address")
        for *kind, _, address in socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM):
            made: _BoundedSocket | None = None
            try:
                made = _BoundedSocket(*kind)
                made.begin(0, deadline_s)
                made.connect(address)
            except OSError as failed:
                error = failed
                if made is not None:
                    made.close()
            else:
                self._socket = self._connection.sock = made
                return made
        raise error


class Group(NamedTuple):
    """A group of metrics that Malachite has."""

    files: FileGroup
    """The same in the kernel's files."""
    version: int
    """Of the cgroups' controller; 0 of the node."""
    most: float
    """A larger value cannot be."""


class _Entry:
    """One group of metrics of one cgroup: the reading of before, and the values."""

    __slots__ = ("at_s", "before", "before_s", "reason", "values")

    def __init__(self) -> None:
        self.before: Numbers | None = None
        self.before_s = 0.0
        self.values: Values | None = None
        self.at_s = 0.0
        """When Malachite read what the values are of, monotonic."""
        self.reason = "it has not answered yet"
        """Why there are no values, or will be none when these are old."""

    def take(self, at_s: float, reading: Reading, group: Group) -> None:
        """Makes values of a reading; the last ones stay if it is no newer."""
        try:
            values = self._values(at_s, reading, group)
        except ImplausibleError:
            self.before, self.values, self.reason = None, None, "its values cannot be"
            return
        if values is not None:
            self.values, self.at_s, self.reason = values, at_s, _OLD

    def _values(self, at_s: float, reading: Reading, group: Group) -> Values | None:
        """Raises ImplausibleError."""
        files = group.files
        if reading.rate is not None:
            values: Values | None = (reading.rate,)
        elif files.gauge is not None:
            values = files.gauge(reading.numbers)
        else:
            values = self._rate(at_s, reading.numbers, files)
        if values is not None and max(values) > group.most:
            raise ImplausibleError
        return values

    def _rate(self, at_s: float, numbers: Numbers, files: FileGroup) -> Values | None:
        before, elapsed_s = self.before, at_s - self.before_s
        if before is not None and elapsed_s < _LEAST_ELAPSED_S:
            return None
        self.before, self.before_s = numbers, at_s
        if before is None or len(before) != len(numbers) or elapsed_s > STALE_S or files.rate is None:
            self.values, self.reason = None, "its counters have been read once"
            return None
        growth = tuple(map(sub, numbers, before))
        if min(growth) < 0:
            self.values, self.reason = None, "a counter is less than before"
            return None
        return files.rate(growth, elapsed_s)


class _Target(NamedTuple):
    """An answer to ask for."""

    path: str
    cgroup: str
    groups: tuple[Metric, ...]
    """Those that plugins need, by their first metrics."""


class _Tally(NamedTuple):
    """Figures of one pass."""

    asked: int = 0
    given: int = 0
    reason: str = ""
    """The most frequent one of those that were not given."""


class MalachiteSource:
    """Asks for what plugins need, in a thread of its own; answers from memory, in any."""

    def __init__(
        self,
        url: str,
        groups: Mapping[Metric, Group],
        node_groups: Mapping[Metric, Group],
        *,
        numa_nodes: int,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        connection: HttpConnection | None = None,
    ) -> None:
        """Starts no thread yet.

        Args:
            url: `http://host:port`.
            groups: Of cgroups, by their first metric; those that Malachite does not have are left out.
            node_groups: The same of the node.
            numa_nodes: How many the node has.
            clock: Monotonic.
            wall_clock: Since the epoch.
            connection: Takes the place of one to `url`.
        """
        self.url = url
        self._groups = {metric: group for metric, group in groups.items() if covers(group.version, metric)}
        self._node_groups = {metric: group for metric, group in node_groups.items() if metric in NODE_GROUPS}
        self._numa_nodes = numa_nodes
        self._clock = clock
        self._wall_clock = wall_clock
        self._connection = connection or HttpConnection(url)
        self._failures = FailureLog(output=logger)
        self._lock = threading.Lock()
        """For entries and targets."""
        self._entries: dict[str, dict[Metric, _Entry]] = {}
        self._targets: list[_Target] = []
        self._next = 0
        self._failed = 0
        """Requests without a whole answer, in a row."""
        self._failure = ""
        self._passed_s = clock()
        self._tally = _Tally()
        self._wake = threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="malachite", daemon=True)
        self._thread.start()

    def close(self, wait_s: float = 0.0) -> None:
        """Has the thread end after its request; waits for that so long. It does not hold up the process."""
        self._is_closed = True
        self._wake.set()
        if self._thread is None:
            self._connection.close()
        elif wait_s:
            self._thread.join(wait_s)

    def follow(self, levels: Mapping[str, Level], needs: Iterable[Need]) -> None:
        """Asks for the needed metrics of these cgroups from now on; what is known of others is dropped."""
        needed = {(need.level, need.metric) for need in needs}
        entries: dict[str, dict[Metric, _Entry]] = {}
        targets: list[_Target] = []
        for cgroup, level in levels.items():
            is_node = cgroup == NODE_CGROUP
            groups = {
                metric: group
                for metric, group in (self._node_groups if is_node else self._groups).items()
                if any((level, each) in needed for each in group.files.metrics)
            }
            if not groups:
                continue
            known = self._entries.get(cgroup, {})
            entries[cgroup] = {metric: known.get(metric) or _Entry() for metric in groups}
            if is_node:
                paths = dict.fromkeys(NODE_GROUPS[metric][0] for metric in groups)
                targets += (_Target(path, cgroup, tuple(groups)) for path in paths)
            else:
                targets.append(_Target(cgroup_path(cgroup), cgroup, tuple(groups)))
        with self._lock:
            is_first = not self._targets
            self._entries, self._targets = entries, targets
        if is_first:
            self._wake.set()

    def values(self, wanted: Iterable[tuple[str, Metric]]) -> list[Values | None]:
        """The values of one pass: of each cgroup and first metric of a group, or None. Data is fresh."""
        now_s = self._passed_s = self._clock()
        found: list[Values | None] = []
        reasons: Counter[str] = Counter()
        asked = 0
        with self._lock:
            for cgroup, metric in wanted:
                entries = self._entries.get(cgroup)
                entry = None if entries is None else entries.get(metric)
                if entry is None:
                    found.append(None)
                    continue
                asked += 1
                if entry.values is not None and now_s - entry.at_s <= _HELD_S:
                    found.append(entry.values)
                    continue
                found.append(None)
                reasons[entry.reason] += 1
        missing = reasons.total()
        reason = self._failure or max(reasons, key=lambda each: (reasons[each], each), default="")
        self._tally = _Tally(asked, asked - missing, reason if missing else "")
        return found

    def report(self) -> tuple[bool, str]:
        """Whether the last pass had values of Malachite, and why not all of them were."""
        asked, given, reason = self._tally
        if not reason:
            return given > 0, ""
        text = f"{asked - given} of {asked} groups of values are read from the kernel's files"
        return given > 0, f"{text}: Malachite at {self.url}: {reason}"

    def poll(self) -> float:
        """Asks for what is due; returns the seconds until something is due again."""
        with self._lock:
            targets = self._targets
        if not targets or self._clock() - self._passed_s > _IDLE_S:
            return POLL_S
        count = math.ceil(len(targets) * _LEAST_PAUSE_S / POLL_S)
        for _ in range(count):
            self._next = (self._next + 1) % len(targets)
            if self._is_closed or not self._ask(targets[self._next]):
                break
        pause_s = count * POLL_S / len(targets)
        if self._failed:
            return max(pause_s, _FAILURE_PAUSES_S[min(self._failed, len(_FAILURE_PAUSES_S)) - 1])
        return pause_s

    def _run(self) -> None:
        while not self._is_closed:
            pause_s = POLL_S
            try:
                pause_s = self.poll()
            except Exception as error:  # noqa: BLE001 - a bug costs its values, not the process
                self._failures.report(
                    "malachite", "bug", f"a request failed: {described(error)}", error=error
                )
            self._wake.wait(pause_s)
            self._wake.clear()
        self._connection.close()

    def _ask(self, target: _Target) -> bool:
        """Asks for one answer; whether there is a whole one."""
        is_node = target.cgroup == NODE_CGROUP
        try:
            body = self._connection.get(target.path, MOST_BYTES if is_node else _MOST_CGROUP_BYTES)
        except RequestError as error:
            self._failed += 1
            self._failure = str(error)
            self._failures.report("malachite", self._failure, f"{self.url}: {self._failure}")
            return False
        except AnswerError as error:
            self._answered()
            self._take(target, dict.fromkeys(target.groups, str(error)))
            return True
        self._answered()
        self._take(target, self._readings(target, body, is_node=is_node))
        return True

    def _answered(self) -> None:
        if self._failed:
            logger.info("%s answers again", self.url)
        self._failed, self._failure = 0, ""

    def _readings(self, target: _Target, body: bytes, *, is_node: bool) -> Readings:
        try:
            data = data_of(body)
            if is_node:
                return node_readings(target.path, data, self._numa_nodes)
            versions = {metric: self._groups[metric].version for metric in target.groups}
            return cgroup_readings(data, target.cgroup, versions, self._numa_nodes)
        except AnswerError as error:
            return dict.fromkeys(target.groups, str(error))

    def _take(self, target: _Target, readings: Readings) -> None:
        now_s, wall_s = self._clock(), self._wall_clock()
        groups = self._node_groups if target.cgroup == NODE_CGROUP else self._groups
        with self._lock:
            entries = self._entries.get(target.cgroup, {})
            for metric, reading in readings.items():
                entry = entries.get(metric)
                if entry is None:
                    continue
                if isinstance(reading, str):
                    entry.reason = reading
                    continue
                age_s = wall_s - reading.updated_s
                if age_s < -_MOST_AHEAD_S:
                    entry.reason = "its data is in the future"
                elif age_s > STALE_S:
                    entry.reason = _OLD
                else:
                    entry.take(now_s - age_s, reading, groups[metric])
