"""Start: serves at once, takes no socket from another process, reports problems."""

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.http2.frames import EMPTY_SETTINGS
from runtimeproxy.testing import FakeRuntime
from tests.daemon.conftest import Daemons
from tests.daemon.driving import BATCH_SHARES, batch_pod, pod, policy_file, release, shares_of
from tests.daemon.site import IMPORT_FIFO, site_folder
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient, outcome_of
from tests.lab.deadline import wait_until
from tests.lab.programs import missing
from tests.lab.proxy_process import ProxyProcess
from tests.peers.blocking import Http2Client

GREETS = """\
import os, socket, sys
os.setuid(int(sys.argv[2]))
with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
    client.settimeout(30)
    client.connect(sys.argv[1])
    try:
        client.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n")
        sys.stdout.buffer.write(client.recv(9))
    except ConnectionError:
        pass
"""
"""A client that begins as HTTP/2 clients do, and returns the first bytes of the answer."""

IS_FORKED = False
"""Each start is whole."""

WITHOUT_TEMPORARY = """\
import os, sys, tempfile
tempfile.tempdir = "/proc"
sys.argv = sys.argv[3:]
import runpy
runpy.run_module("runtimeproxy", run_name="__main__", alter_sys=False)
"""

WITHOUT_WRITABLE_CODE = """\
import ctypes, os, sys
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):
    sys.exit("no PR_SET_MDWE")
os.execv(sys.argv[1], sys.argv[1:])
"""
"""What MemoryDenyWriteExecute= of the unit does. Source: prctl(2), PR_SET_MDWE, Linux 6.3."""

LOAD_TIMEOUT = "KOORD_RUNTIMEPROXY_HOOKS_LOAD_TIMEOUT_S"

BOTH_LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])


def with_slow_policy(daemons: Daemons, fifo: Path) -> None:
    folder = fifo.parent / "slow"
    daemons.environment.update(site_folder(folder, slow="slow_to_import:Slow"))
    daemons.environment[IMPORT_FIFO] = str(fifo)


def errors(daemon: ProxyProcess) -> list[str]:
    return wait_until(
        lambda: [record["message"] for record in daemon.log_records if record["level"] == "error"], "errors"
    )


@BOTH_LOOPS
def test_serves_what_the_runtime_answers_and_changes_what_its_policies_say(client: CriClient) -> None:
    assert client.wait_until_serving(30).runtime_name == "fake-runtime"
    assert shares_of(batch_pod(client).run().create()) == BATCH_SHARES


@BOTH_LOOPS
def test_needs_no_memory_that_is_writable_and_executable(daemons: Daemons) -> None:
    wrapper = (sys.executable, "-c", WITHOUT_WRITABLE_CODE)
    if subprocess.run([*wrapper, "/bin/true"], check=False, capture_output=True).returncode:
        missing("this kernel has no PR_SET_MDWE: Linux has it since 6.3")
    daemon = daemons.start(wrapper=wrapper)
    with CriClient(daemon.socket) as client:
        assert shares_of(batch_pod(client).run().create()) == BATCH_SHARES
        wait_until(
            lambda: outcome_of(lambda: client.raw("/grpc.health.v1.Health/Check"))[0] == "OK", "health"
        )
    assert daemon.terminate() == 0
    # The pod has no cgroup here, which the audit says.
    others = [record for record in daemon.log_records if record["logger"] != "runtimeproxy.audit"]
    assert not [record for record in others if record["level"] in {"warning", "error"}]


@BOTH_LOOPS
def test_tells_its_service_manager(daemon: ProxyProcess) -> None:
    assert "READY=1" in daemon.states
    assert any(state.startswith("STATUS=") and "policies" in state for state in daemon.states)
    assert daemon.terminate() == 0
    with pytest.raises(ChildProcessError):
        daemon.wait_for_state("never")
    assert daemon.states.count("STOPPING=1") == 1


def test_tells_it_again_where_the_queue_was_full(daemon: ProxyProcess, client: CriClient) -> None:
    daemon.refuse_states()
    daemon.signal(signal.SIGHUP)
    wait_until(lambda: any("configuration reloaded" in line for line in daemon.log), "the reload")
    # The end of the reload was told before this answer.
    client.runtime.Version(api_pb2.VersionRequest(), timeout=CALL_TIMEOUT_S)
    daemon.wait_for_state("READY=1")


@BOTH_LOOPS
def test_serves_before_its_policies_are_loaded(daemons: Daemons, fifo: Path) -> None:
    with_slow_policy(daemons, fifo)
    daemon = daemons.prepare()
    daemon.spawn()
    with CriClient(daemon.socket) as client:
        assert client.wait_until_serving(30).runtime_name == "fake-runtime"
        waiting = client.runtime.RunPodSandbox.future(
            api_pb2.RunPodSandboxRequest(config=batch_pod(client).config), timeout=30
        )
        client.runtime.ListContainers(api_pb2.ListContainersRequest(), timeout=30)
        assert not waiting.done()
        assert "READY=1" not in daemon.states
        release(fifo)
        assert waiting.result().pod_sandbox_id
        daemon.wait_for_state("READY=1")


def test_a_held_call_waits_for_its_policies_within_the_budget(daemons: Daemons, fifo: Path) -> None:
    with_slow_policy(daemons, fifo)
    daemons.environment["KOORD_RUNTIMEPROXY_HOOKS_BUDGET_S"] = "0.2"
    daemon = daemons.prepare()
    daemon.spawn()
    with CriClient(daemon.socket) as client:
        client.wait_until_serving(30)
        assert pod(client).run().id
    assert "READY=1" not in daemon.states
    release(fifo)
    daemon.wait_for_state("READY=1")


@pytest.mark.slow
def test_policies_that_hang_while_they_load_keep_it_neither_from_being_ready_nor_from_ending(
    daemons: Daemons, fifo: Path
) -> None:
    with_slow_policy(daemons, fifo)
    daemons.environment[LOAD_TIMEOUT] = "60"
    daemon = daemons.start()
    assert any("policies are loading" in state for state in daemon.states)
    assert daemon.terminate() == 0


def test_a_policy_that_hangs_while_it_loads_is_left_out_until_it_is_there(
    daemons: Daemons, fifo: Path
) -> None:
    with_slow_policy(daemons, fifo)
    daemons.environment[LOAD_TIMEOUT] = "0.2"
    daemon = daemons.start()
    # On a busy machine others are late, too.
    (message,) = wait_until(
        lambda: [each for each in errors(daemon) if "slow_to_import" in each], "the error"
    )
    reason = "cannot be imported: has not returned within 0.2 s (hooks.load_timeout_s)"
    assert message.endswith(f"slow_to_import:Slow: {reason}")
    with CriClient(daemon.socket) as client:
        wait_until(lambda: shares_of(batch_pod(client).run().create()) == BATCH_SHARES, "the other policies")
    release(fifo)
    # The audit of the call above may be written after it.
    wait_until(lambda: any("slow" in each.get("policies", []) for each in daemon.log_records), "the policy")
    daemon.wait_for_state("STATUS=6 policies;")


def test_a_policy_that_cannot_be_loaded_is_left_out(daemons: Daemons, socket_folder: Path) -> None:
    daemons.environment.update(site_folder(socket_folder / "bad", misspelled="misspelled:Misspelled"))
    daemon = daemons.start("[policies.misspelled]\nmode = 'dry-run'\n")
    (message,) = errors(daemon)
    assert "containr: no such method; did you mean container?" in message
    # What it said with READY=1, and says again, may be that they are loading.
    daemon.wait_for_state("STATUS=5 policies (misspelled: not loaded, see the log)")
    with CriClient(daemon.socket) as client:
        assert shares_of(batch_pod(client).run().create()) == BATCH_SHARES


def test_a_policy_that_cannot_be_loaded_ends_the_start_where_that_is_wanted(
    daemons: Daemons, socket_folder: Path
) -> None:
    daemons.environment.update(site_folder(socket_folder / "bad", misspelled="misspelled:Misspelled"))
    daemon = daemons.prepare('[hooks]\non_load_error = "stop"\n')
    daemon.spawn()
    assert daemon.wait() == 2
    (message,) = errors(daemon)
    assert "containr" in message
    # Not even the lock beside the socket was made.
    assert not list(daemon.folder.glob("proxy.sock*"))


def test_it_serves_once_all_policies_are_loaded_where_that_is_wanted(daemons: Daemons, fifo: Path) -> None:
    with_slow_policy(daemons, fifo)
    daemons.environment[LOAD_TIMEOUT] = "60"
    daemon = daemons.prepare('[hooks]\non_load_error = "stop"\n')
    daemon.spawn()
    release(fifo)
    daemon.wait_for_state("READY=1")
    with CriClient(daemon.socket) as client:
        assert shares_of(batch_pod(client).run().create()) == BATCH_SHARES
    assert daemon.terminate() == 0


def test_a_signal_ends_it_before_it_has_a_socket(daemons: Daemons, fifo: Path) -> None:
    with_slow_policy(daemons, fifo)
    daemons.environment[LOAD_TIMEOUT] = "60"
    daemon = daemons.prepare('[hooks]\non_load_error = "stop"\n')
    daemon.spawn()
    with fifo.open("wb"):  # opens once the policy reads it
        assert daemon.terminate() == 0
    assert not list(daemon.folder.glob("proxy.sock*"))


def test_policies_of_files_count(daemons: Daemons) -> None:
    daemon = daemons.prepare()
    policy_file(daemon, "quiet", shares=77)
    policy_file(daemon, "bad").write_text("\n1 / 0\n")
    daemon.start()
    (message,) = errors(daemon)
    assert f"{daemon.policies_folder}/bad.py:2: ZeroDivisionError" in message
    with CriClient(daemon.socket) as client:
        assert shares_of(pod(client).run().create()) == 77


def test_a_socket_on_which_another_process_listens_is_refused(daemons: Daemons) -> None:
    daemon = daemons.prepare()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(daemon.socket))
        other.listen()
        inode = daemon.socket.stat().st_ino
        daemon.spawn()
        assert daemon.wait() == 1
        assert "another process listens" in "\n".join(daemon.log)
        assert daemon.socket.stat().st_ino == inode


def test_a_file_that_is_no_socket_is_left_alone(daemons: Daemons) -> None:
    daemon = daemons.prepare()
    daemon.socket.write_text("precious")
    daemon.spawn()
    assert daemon.wait() == 1
    assert daemon.socket.read_text() == "precious"


def test_what_a_killed_instance_left_is_removed(daemons: Daemons, daemon: ProxyProcess) -> None:
    temporary = Path(daemons.environment["TMPDIR"])
    (first,) = temporary.iterdir()
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    daemon.kill()
    daemon.start()
    (second,) = temporary.iterdir()
    assert second != first
    daemon.terminate()
    assert list(temporary.iterdir()) == []


def test_a_runtime_that_is_away_at_the_start_may_come_later(daemons: Daemons, runtime: FakeRuntime) -> None:
    runtime.stop()
    daemon = daemons.start()
    with CriClient(daemon.socket) as client:
        waiting = client.runtime.Version.future(api_pb2.VersionRequest(), timeout=30)
        runtime.start()
        assert waiting.result().runtime_name == "fake-runtime"
    wait_until(lambda: "records recovered" in "\n".join(daemon.log), "the records")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize(
    ("allowed", "answer"), [("", b""), ("allowed_uids = [12345]", EMPTY_SETTINGS)], ids=["refused", "allowed"]
)
def test_peers_other_than_root_are_refused_unless_allowed(
    daemons: Daemons, socket_folder: Path, allowed: str, answer: bytes
) -> None:
    daemon = daemons.start(f'[proxy]\nsocket_mode = "0666"\n{allowed}\n')
    socket_folder.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", GREETS, str(daemon.socket), "12345"], capture_output=True, check=True
    )
    assert done.stdout == answer


def test_only_its_own_directory_is_needed(daemons: Daemons) -> None:
    """Everything is written below one folder: the sockets with a lock, and the temporary directory."""
    daemon = daemons.start()
    # The admin socket follows once it serves.
    wait_until((daemon.folder / "admin").exists, "the folder of the admin socket")
    assert {path.name for path in daemon.folder.iterdir()} == {
        "admin",
        "config.toml",
        "hooks",
        "notify.sock",
        "proxy.log",
        "proxy.sock",
        "proxy.sock.lock",
        "state",
    }


def test_without_a_temporary_directory_the_runtime_answers_health(daemons: Daemons) -> None:
    daemons.environment["TMPDIR"] = "/proc"
    daemon = daemons.prepare(wrapper=(sys.executable, "-c", WITHOUT_TEMPORARY))
    daemon.start()
    left = "health and reflection are left to the runtime"
    wait_until(lambda: left in "\n".join(daemon.log), "the line of the log")
    with CriClient(daemon.socket) as client:
        client.wait_until_serving(30)


FEW_FILES = """\
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_with_few_file_descriptors_each_client_that_is_taken_is_served(daemons: Daemons) -> None:
    """Each needs two: a client that is taken without one for its upstream would wait for nothing."""
    daemon = daemons.prepare(wrapper=(sys.executable, "-c", FEW_FILES))
    daemon.start()
    served = 0
    with contextlib.ExitStack() as stack, contextlib.suppress(ConnectionError):
        for _ in range(64):
            client = stack.enter_context(Http2Client(daemon.socket))
            assert client.call("/runtime.v1.RuntimeService/Version").trailers["grpc-status"] == "0"
            served += 1
    # It has about 30 open itself, and keeps four for its work.
    assert 12 <= served < 32
    wait_until(
        lambda: "a client was refused" in (text := "\n".join(daemon.log)) or "room is short" in text,
        "the line about the lack of room",
    )
