"""Recording a daemon's calls through the admin socket."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from tests.daemon.driving import BATCH_SHARES, batch_pod
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess
from tests.service.api.test_admin import socket_of


def entries_of(responses: Iterator[api_pb2.RecordResponse]) -> Iterator[tuple[str, dict[str, Any]]]:
    for response in responses:
        for line in response.lines.splitlines():
            yield from json.loads(line).items()


def test_calls_are_recorded_until_the_client_ends(daemon: ProxyProcess, client: CriClient) -> None:
    wait_until(socket_of(daemon).exists, "the admin socket")
    with grpc.insecure_channel(f"unix:{socket_of(daemon)}") as channel:
        admin: Any = api_pb2_grpc.AdminStub(channel)
        batch_pod(client, "early").run().create()
        responses = admin.Record(api_pb2.RecordRequest(), timeout=60, wait_for_ready=True)
        entries = entries_of(responses)
        assert next(entries)[0] == "header"
        with pytest.raises(grpc.RpcError) as caught:
            next(iter(admin.Record(api_pb2.RecordRequest(), timeout=30)))
        assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS
        batch_pod(client, "one").run().create()
        found: list[tuple[str, dict[str, Any]]] = []
        while [kind for kind, _ in found].count("response") < 2:
            found.append(next(entries))
        kinds = [kind for kind, _ in found]
        assert kinds.count("record") == 2
        methods = [body["method"] for kind, body in found if kind == "call"]
        assert methods == ["RunPodSandbox", "CreateContainer"]
        (create,) = [body for kind, body in found if kind == "call" and body["method"] == "CreateContainer"]
        ((decision),) = create["decisions"]
        assert decision["fields"]["resources.cpu_shares"]["value"] == str(BATCH_SHARES)
        responses.cancel()

        def begin_again() -> bool:
            again = admin.Record(api_pb2.RecordRequest(), timeout=30)
            try:
                return next(entries_of(again))[0] == "header"
            except grpc.RpcError as error:
                # The daemon has not seen yet that the first client is gone.
                assert error.code() is grpc.StatusCode.ALREADY_EXISTS  # noqa: PT017 - one of two outcomes
                return False
            finally:
                again.cancel()

        wait_until(begin_again, "the end of the first recording")


def test_the_end_of_the_daemon_ends_it(daemon: ProxyProcess) -> None:
    wait_until(socket_of(daemon).exists, "the admin socket")
    with grpc.insecure_channel(f"unix:{socket_of(daemon)}") as channel:
        admin: Any = api_pb2_grpc.AdminStub(channel)
        responses = admin.Record(api_pb2.RecordRequest(), timeout=60, wait_for_ready=True)
        next(responses)
        daemon.terminate()
        with pytest.raises(grpc.RpcError) as caught:
            for _ in responses:
                pass
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def recorded_lines(path: Path) -> list[bytes]:
    """The whole lines of a compressed recording that goes on."""
    if not path.exists():
        return []
    data = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(path.read_bytes())
    return data.splitlines()


@pytest.mark.parametrize("end", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_the_commands(daemon: ProxyProcess, client: CriClient, end: signal.Signals) -> None:
    """A recording that ends with Ctrl-C or is killed is replayed without differences."""
    wait_until(socket_of(daemon).exists, "the admin socket")
    path = daemon.folder / "day.jsonl.gz"
    python, option, module, *_ = daemon.command()
    words = (python, option, module, "record", "--out", str(path), "--admin-socket", str(socket_of(daemon)))
    with subprocess.Popen(words, env=daemon.environment(), stderr=subprocess.PIPE, text=True) as recorder:
        wait_until(lambda: recorded_lines(path), "the beginning of the recording")
        batch_pod(client, "one").run().create()
        wait_until(lambda: sum(b'{"response"' in each for each in recorded_lines(path)) == 2, "the responses")
        recorder.send_signal(end)
        _, errors = recorder.communicate(timeout=30)
    if end is signal.SIGINT:
        assert recorder.returncode == 0
        assert f"{path}: " in errors
        assert gzip.decompress(path.read_bytes()).endswith(b"}\n")
    done = daemon.run("replay", str(path), "--output", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["calls"], found["differences"], found["skippedCalls"]) == (2, [], [])
    assert found["isCutOff"] is (end is signal.SIGKILL)
