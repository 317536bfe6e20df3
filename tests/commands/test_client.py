"""What goes wrong between a command and the daemon is one sentence that says what to do."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import grpc
import pytest
import yaml

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.commands.client import explained
from runtimeproxy.commands.exit_codes import ExitCode
from tests.commands.conftest import Run, Served
from tests.commands.messages import explained_pod, status
from tests.peers.aio import RawServer
from tests.peers.error_codes import Codes


def test_a_daemon_that_is_not_there(run: Run, tmp_path: Path) -> None:
    for command in (("status",), ("pods",), ("explain", "a"), ("audit",)):
        done = run(*command, "--endpoint", str(tmp_path / "none.sock"))
        assert (done.code, done.out) == (3, "")
        assert done.err.count("\n") == 1
        assert "no daemon listens here; start it (systemctl start koord-runtime-proxy), or name" in done.err
    done = run("policy", "cpuset", "off", "--admin-socket", str(tmp_path / "none.sock"))
    assert done.code == 3
    assert "or name its admin socket with --admin-socket" in done.err


def test_a_socket_where_no_process_listens(run: Run, socket_folder: Path) -> None:
    path = socket_folder / "stale.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    done = run("status", "--endpoint", str(path))
    assert done.code == 3
    assert "no daemon listens here; start it" in done.err


def test_a_file_that_is_no_socket(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run("status", "--endpoint", str(tmp_path / "file"))
    assert done.code == 3
    assert "is not a socket" in done.err


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user in a process of its own")
def test_a_user_who_may_not_connect(served: Served) -> None:
    served.path.chmod(0o600)
    folder = served.path.parent
    while folder != folder.parent:
        folder.chmod(folder.stat().st_mode | 0o111)
        folder = folder.parent
        if folder == Path(tempfile.gettempdir()):
            break
    # A first run imports all modules: that user may not be able to read the interpreter's own.
    code = (
        "import os, sys; from runtimeproxy.cli import main; "
        "main([*sys.argv[1:], '--endpoint=/none']); os.setuid(65534); sys.exit(main())"
    )
    words = [sys.executable, "-c", code, "status", *served.flags]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "user 65534 may not connect to this socket; run the command as root" in done.stderr


def test_a_daemon_without_an_api(run: Run, served: Served) -> None:
    done = run("status", *served.flags)
    assert done.code == 3
    assert "this daemon does not serve this call of the API runtimeproxy.v1" in done.err
    # The API decides, whatever version a program calls itself.
    assert not re.search(r"\d+\.\d+", done.err.replace(str(served.path), ""))


def test_a_daemon_that_hangs(run: Run, socket_folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(socket_folder / "hangs.sock"))
        silent.listen()
        done = run("status", "--endpoint", str(socket_folder / "hangs.sock"), "--timeout", "50ms")
    assert done.code == 3
    assert "the daemon did not answer in time; --timeout gives it more" in done.err


async def test_a_daemon_that_ends_the_call_with_any_code(run: Run, socket_folder: Path) -> None:
    codes, path = Codes(), socket_folder / "codes.sock"
    async with RawServer(path, *codes.scripts):
        for _ in codes.scripts:
            done = await asyncio.to_thread(run, "status", "--endpoint", str(path), "--timeout", "30s")
            assert (done.out, done.err.count("\n")) == ("", 1)
            assert done.code in (ExitCode.FAILED, ExitCode.NO_DAEMON)
        assert codes.all_sent.is_set()


def test_a_newer_daemon_with_fields_and_values_that_are_not_known(run: Run, served: Served) -> None:
    newer = status().SerializeToString()
    # Field 1000, a varint; and a state that does not exist yet.
    newer += b"\xc0\x3e\x01" + api_pb2.GetStatusResponse(daemon=api_pb2.Daemon(state=99)).SerializeToString()  # type: ignore[arg-type]
    served.api.answers["GetStatus"] = api_pb2.GetStatusResponse.FromString(newer)
    done = run("status", *served.flags)
    assert done.code == 0
    assert done.out.startswith("daemon    99: version 0.2.0")
    assert json.loads(run("status", *served.flags, "--output", "json").out)["daemon"]["state"] == 99


@pytest.mark.parametrize(
    ("code", "details", "exit_code", "text"),
    [
        ("NOT_FOUND", "koord-runtime-proxy: no pod web", ExitCode.NOT_FOUND, "no pod web"),
        ("FAILED_PRECONDITION", "two pods: a/x, b/x", ExitCode.NOT_FOUND, "two pods: a/x, b/x"),
        ("INVALID_ARGUMENT", "no pod is given", ExitCode.USAGE, "no pod is given"),
        ("UNAVAILABLE", "koord-runtime-proxy: draining", ExitCode.NO_DAEMON, "/s: draining"),
        ("UNAVAILABLE", "Socket closed", ExitCode.NO_DAEMON, "does not let this user in"),
        ("RESOURCE_EXHAUSTED", "64 watchers; call again", ExitCode.NO_DAEMON, "/s: 64 watchers; call again"),
        ("INTERNAL", "oops", ExitCode.FAILED, "/s: INTERNAL: oops"),
    ],
)
def test_errors_of_calls(code: str, details: str, exit_code: ExitCode, text: str) -> None:
    error = explained(code, details, "/s")
    assert error.code == exit_code
    assert text in str(error)


def test_the_daemons_socket_is_that_of_the_configuration(run: Run, served: Served) -> None:
    served.api.answers["GetStatus"] = status()
    assert run("status", "--koord-runtimeproxy-endpoint", str(served.path)).code == 0


def test_a_wrong_configuration_is_no_reason_to_show_nothing(
    run: Run, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.api.answers["GetStatus"] = status()
    (tmp_path / "config.toml").write_text(f"[proxy]\nendpoint = '{served.path}'\ndrain_s = 'x'\n")
    done = run("status", "--config", str(tmp_path / "config.toml"))
    assert done.code == 0
    assert "drain_s" in done.err
    assert "; the default is used\n" in done.err
    # Once, however often the daemon is asked.
    served.api.answers["WatchAudit"] = []
    done = run("audit", "--since", "1h", "--config", str(tmp_path / "config.toml"))
    assert (done.code, done.err.count("the default is used")) == (0, 1)


def test_an_endpoint_that_is_no_socket_path(run: Run) -> None:
    for words in (("status", "--endpoint", "tcp://x"), ("policy", "a", "off", "--admin-socket", "x")):
        assert run(*words).code == 2


def test_json_and_yaml_are_the_same_and_that_of_protobuf(run: Run, served: Served) -> None:
    served.api.answers["Explain"] = explained_pod()
    shown = json.loads(run("explain", "demo/spark", *served.flags, "--output", "json").out)
    assert yaml.safe_load(run("explain", "demo/spark", *served.flags, "--output", "yaml").out) == shown
    field = shown["targets"][0]["fields"][0]
    assert field["observedValue"] == "512"
    assert field["claims"][0]["role"] == "ROLE_SET"
    # Fields without presence are always there; those with presence only if they have a value.
    assert field["isDifferent"] is False
    assert "original" not in field


def test_the_deadline_and_metadata_of_a_call(run: Run, served: Served) -> None:
    served.api.answers["GetStatus"] = (grpc.StatusCode.DEADLINE_EXCEEDED, "slow")
    assert run("status", *served.flags).code == 3


@pytest.mark.parametrize(
    "words",
    [
        ("explain", "\udcff"),
        ("explain", ""),
        ("explain", "a/b/c/d"),
        ("pods", "--namespace", "\udcff"),
        ("audit", "--limit", "-1"),
        ("audit", "--limit", "99999999999"),
        ("audit", "--kind", "\udcff"),
        ("policy", "\udcff", "off"),
        ("policy", "a", "off", "--for", "9" * 400 + "d"),
        ("policy", "a", "off", "--reason", "\udcff"),
        ("status", "--timeout", "0s"),
        ("status", "--output", "xml"),
    ],
    ids=ascii,
)
def test_bad_input_is_one_line(run: Run, words: tuple[str, ...]) -> None:
    done = run(*words)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)


def test_texts_are_shown_in_every_locale(served: Served) -> None:
    pod = api_pb2.Pod(namespace="a", name="w\u00e9b")
    served.api.answers["WatchPods"] = [api_pb2.WatchPodsResponse(snapshot=api_pb2.PodSnapshot(pods=[pod]))]
    command = [sys.executable, "-m", "runtimeproxy", "pods", *served.flags]
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert r"w\xe9b" in done.stdout
