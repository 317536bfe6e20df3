"""What can be wrong with the answers of a server that plays Malachite."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from runtimeproxy.qosmanager.samples import malachite
from runtimeproxy.qosmanager.samples.malachite import STALE_S
from tests.qosmanager.samples.malachite_server import Answer, Output, as_json, http_answer

MIB: Final = 1 << 20
HEAD: Final = b"HTTP/1.1 200 OK\r\n"


class Malachite(Protocol):
    """What answers as long as nothing is wrong."""

    age_s: int
    """How old its data is."""
    ended: threading.Event
    """Ends what would go on."""

    def answer(self, output: Output, path: str) -> object: ...


Fault = Callable[["Malachite"], Answer]


def late(site: Malachite) -> Answer:
    def answer(output: Output, path: str) -> object:
        # Whole, and too late.
        site.ended.wait(malachite.REQUEST_S + 1)
        return site.answer(output, path)

    return answer


def changed(change: Callable[[bytes], bytes]) -> Fault:
    """Sends what this makes of the document."""

    def fault(site: Malachite) -> Answer:
        def answer(output: Output, path: str) -> None:
            whole = Whole()
            site.answer(whole, path)
            output.write(http_answer(change(whole.body)))

        return answer

    return fault


class Whole:
    """The body of an answer."""

    body = b""

    def write(self, data: bytes, /) -> None:
        self.body = data.partition(b"\r\n\r\n")[2]


def as_texts(value: Any) -> Any:
    """All numbers as texts."""
    if isinstance(value, Mapping):
        return {key: as_texts(each) for key, each in value.items()}
    if isinstance(value, list):
        return [as_texts(each) for each in value]
    return str(value) if isinstance(value, int | float) else value


def wrong_types(body: bytes) -> bytes:
    document = json.loads(body)
    return json.dumps({"status": 0, "data": as_texts(document.get("data"))}).encode()


def sending(head: bytes, piece: bytes, count: int | None) -> Fault:
    """Sends so many pieces, or goes on as long as it is read."""

    def fault(site: Malachite) -> Answer:
        def answer(output: Output, _: str) -> bool:
            output.write(head)
            sent = 0
            while sent != count and not site.ended.is_set():
                output.write(piece)
                sent += 1
            return False

        return answer

    return fault


def trickling(site: Malachite) -> Answer:
    """Begins an answer that is not too long, and goes on a byte at a time."""

    def answer(output: Output, _: str) -> bool:
        output.write(HEAD + b"Content-Length: 65536\r\n\r\n")
        while not site.ended.wait(0.05):
            output.write(b"0")
        return False

    return answer


def old(site: Malachite) -> Answer:
    site.age_s = int(STALE_S) + 1
    return site.answer


def status_1(site: Malachite) -> Answer:
    def answer(output: Output, path: str) -> None:
        whole = Whole()
        site.answer(whole, path)
        output.write(as_json(json.loads(whole.body or b"{}").get("data"), status=1))

    return answer


PIECE: Final = b"0" * 65_536
CHUNK: Final = b"%x\r\n%s\r\n" % (len(PIECE), PIECE)
FAULTS: Final[Mapping[str, tuple[Fault, str]]] = {
    "late": (late, "no whole answer within 2 s"),
    "wrong-json": (changed(lambda body: body[:-2]), "the answer is not JSON"),
    "wrong-types": (changed(wrong_types), "the answer has no update_time"),
    "64-mb": (
        sending(HEAD + b"Content-Length: %d\r\n\r\n" % (64 * MIB), PIECE, 1_024),
        "the answer is too long",
    ),
    "64-mb-without-a-length": (sending(HEAD + b"\r\n", PIECE, 1_024), "the answer is too long"),
    "no-end": (
        sending(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", CHUNK, None),
        "the answer is too long",
    ),
    "old": (old, "its data is older than 30 s"),
    "status-1": (status_1, "status is 1"),
}
"""What it does, and the reason that is told."""
