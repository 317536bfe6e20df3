"""The commands that write and read recordings."""

from __future__ import annotations

import gzip
import json
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy import __version__
from tests.commands.conftest import Run, Served

HEADER = {"header": {"format": 1, "daemon": __version__, "time": 1.0, "policies": []}}
REQUEST = {
    "config": {"metadata": {"name": "web", "namespace": "demo", "uid": "u"}, "linux": {"resources": {}}}
}
SHARES = {"resources.cpu_shares": {"value": "7", "policy": "gone"}}


def call(number: int, **decision: Any) -> dict[str, Any]:
    decisions = [{"hook": "pre_run_pod_sandbox", **decision}] if decision else []
    body = {
        "number": number,
        "time": 2.0,
        "method": "RunPodSandbox",
        "request": REQUEST,
        "decisions": decisions,
    }
    return {"call": body}


def lines(*entries: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in entries)


def answers(*data: bytes) -> list[api_pb2.RecordResponse]:
    return [api_pb2.RecordResponse(lines=each) for each in data]


@pytest.mark.parametrize("name", ["day.jsonl", "day.jsonl.gz"])
def test_a_recording_is_written(run: Run, served: Served, tmp_path: Path, name: str) -> None:
    served.api.answers["Record"] = answers(lines(HEADER), lines(call(1), call(2)))
    path = tmp_path / name
    done = run("record", "--out", str(path), *served.admin_flags)
    assert (done.code, done.out) == (0, "")
    assert f"{path}: 3 entries, {path.stat().st_size} bytes" in done.err
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    data = path.read_bytes()
    found = gzip.decompress(data) if name.endswith(".gz") else data
    assert found == lines(HEADER, call(1), call(2))
    assert run("replay", str(path)).code == 0


def test_the_admin_socket_is_that_of_the_configuration(
    run: Run, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.api.answers["Record"] = answers(lines(HEADER))
    monkeypatch.setenv("KOORD_RUNTIMEPROXY_API_ADMIN_SOCKET", str(served.path))
    assert run("record", "--out", str(tmp_path / "day.jsonl")).code == 0


def test_it_ends_after_its_time(run: Run, served: Served, tmp_path: Path) -> None:
    ended = threading.Event()

    def answer(_: Any) -> Iterator[api_pb2.RecordResponse]:
        yield api_pb2.RecordResponse(lines=lines(HEADER))
        ended.wait(30)

    served.api.answers["Record"] = answer
    path = tmp_path / "day.jsonl"
    done = run("record", "--out", str(path), "--for", "1s", *served.admin_flags)
    ended.set()
    assert done.code == 0
    assert path.read_bytes() == lines(HEADER)


def test_a_file_that_is_there_is_kept(run: Run, served: Served, tmp_path: Path) -> None:
    served.api.answers["Record"] = answers(lines(HEADER))
    path = tmp_path / "day.jsonl"
    path.write_text("mine")
    done = run("record", "--out", str(path), *served.admin_flags)
    assert done.code == 2
    assert f"{path} exists already; name a new file" in done.err
    assert path.read_text() == "mine"


def test_it_ends_before_it_is_too_large(run: Run, served: Served, tmp_path: Path) -> None:
    served.api.answers["Record"] = answers(lines(HEADER), lines(call(1)), lines(call(2)))
    path = tmp_path / "day.jsonl"
    size = len(lines(HEADER, call(1)))
    done = run("record", "--out", str(path), "--max-size", str(size), *served.admin_flags)
    assert done.code == 1
    assert f"would have more than {size} bytes" in done.err
    assert path.read_bytes() == lines(HEADER, call(1))


@pytest.mark.parametrize(
    ("code", "details", "exit_code", "text"),
    [
        (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "not read in time; record again",
            3,
            "not read in time; record again",
        ),
        (grpc.StatusCode.ALREADY_EXISTS, "another recording goes on", 1, "another recording goes on"),
    ],
)
def test_errors_of_the_daemon(
    run: Run,
    served: Served,
    tmp_path: Path,
    code: grpc.StatusCode,
    details: str,
    exit_code: int,
    text: str,
) -> None:
    served.api.answers["Record"] = (code, details)
    path = tmp_path / "day.jsonl"
    done = run("record", "--out", str(path), *served.admin_flags)
    assert done.code == exit_code
    assert text in done.err
    assert not path.exists()


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A policy that is gone had set shares of two pods, and refused a third."""
    path = tmp_path / "day.jsonl"
    entries = call(1, fields=SHARES), call(2, fields=SHARES), call(3, refusal="no", policy="gone")
    path.write_bytes(lines(HEADER, *entries, call(4)))
    return path


def test_what_would_differ(run: Run, recording: Path) -> None:
    done = run("replay", str(recording))
    assert done.code == 1
    rows = [each.split() for each in done.out.splitlines()]
    assert rows[1] == ["2", "RunPodSandbox", "resources.cpu_shares", "7", "-", "gone", "-", "demo/web"]
    assert rows[2] == ["1", "RunPodSandbox", "refusal", "no", "-", "gone", "-", "demo/web"]
    assert "4 calls from 1970-01-01T00:00:02.000+00:00 to " in done.out
    assert "3 would differ" in done.out
    assert len(run("replay", str(recording), "--all").out.splitlines()) == len(rows) + 1


def test_for_programs(run: Run, recording: Path) -> None:
    document = json.loads(run("replay", str(recording), "--output", "json").out)
    assert document == yaml.safe_load(run("replay", str(recording), "--output", "yaml").out)
    assert (document["calls"], document["differingCalls"], document["isCutOff"]) == (4, 3, False)
    assert document["differences"][0] == {
        "time": "1970-01-01T00:00:02.000+00:00",
        "number": 1,
        "method": "RunPodSandbox",
        "namespace": "demo",
        "pod": "web",
        "container": "",
        "hook": "pre_run_pod_sandbox",
        "field": "resources.cpu_shares",
        "was": "7",
        "now": None,
        "wasBy": "gone",
        "nowBy": "",
    }


def test_it_says_what_is_missing(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "day.jsonl"
    update = {"containerId": "c", "linux": {}}
    unknown = {
        "number": 1,
        "time": 2.0,
        "method": "UpdateContainerResources",
        "request": update,
        "decisions": [{"hook": "pre_update_container_resources"}],
    }
    of_server = {"resources.cpu_shares": {"value": "7", "policy": "koordlet.json"}}
    entries = lines(HEADER, {"call": unknown}, {"call": {**unknown, "method": "Dance"}}, {"new": {}})
    path.write_bytes(entries + lines(call(3, fields=of_server)) + b'{"call": {"numb')
    done = run("replay", str(path))
    assert done.code == 0
    assert done.out.splitlines()[0] == "nothing would differ"
    assert "1 call not replayed: its pod or container is not in the recording" in done.out
    assert "1 call not replayed: this version does not know the call" in done.out
    assert "1 value of hook servers not compared" in done.out
    assert "the recording was cut off" in done.out


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is not a recording: it has no header"),
        (b"kind: Pod\n", "is not a recording: line 1 is not JSON"),
        (b"[1]\n", "is not a recording: line 1 is not an object"),
        (lines(call(1)), "is not a recording: it does not begin with a header"),
        (lines({"header": {"format": 2, "daemon": "9.9"}}), "replay it with the newer version"),
        (lines(HEADER, {"call": {"number": 1}}), "has an entry 'call' that cannot be read"),
        (lines(HEADER, {"node": {"pools": {"Eval": 1}}}), "which this version does not know"),
        (lines(HEADER, {"record": {"kind": "pod", "id": "x", "body": {"name": 5}}}), "cannot be read"),
        (gzip.compress(b"x\n", mtime=0), "is not a recording: line 1 is not JSON"),
    ],
)
def test_what_cannot_be_replayed(run: Run, tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "day.jsonl"
    path.write_bytes(data)
    done = run("replay", str(path))
    assert (done.code, done.out) == (2, "")
    assert str(path) in done.err
    assert reason in done.err


def test_a_compressed_recording_that_was_cut_off(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "day.jsonl.gz"
    with gzip.open(path, "wb") as file:
        file.write(lines(HEADER, call(1)))
        file.flush()
        whole = path.read_bytes()
        file.write(lines(call(2)))
    path.write_bytes(whole + path.read_bytes()[len(whole) :][:5])
    done = run("replay", str(path))
    assert done.code == 0
    assert "1 call from" in done.out
    assert "the recording was cut off" in done.out


def test_no_file(run: Run, tmp_path: Path) -> None:
    done = run("replay", str(tmp_path / "none"))
    assert done.code == 2
    assert "cannot be read: No such file or directory" in done.err
