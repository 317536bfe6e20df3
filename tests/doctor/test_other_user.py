"""`doctor` and `bypass` as another user than root: no traceback, no false alarm, and what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtimeproxy.listener import listen

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user in another process")

USER = 65534
CODE = f"""
import sys
from argparse import Namespace
from pathlib import Path

from runtimeproxy.cli import main
from runtimeproxy.commands.doctor import findings_as_json
from runtimeproxy.config.sources import read
from runtimeproxy.doctor.checks import examine
from runtimeproxy.doctor.gather import ApiAnswer, gather
from runtimeproxy.hooks.carried import BY_CALLS
from runtimeproxy.offline import Offline
import json, os

def doctor(folder):
    reading = read(Namespace(config=str(folder / "config.toml")), {{}})
    found = gather(reading, Offline(reading.settings), BY_CALLS, ApiAnswer(), folder)
    return findings_as_json(examine(found))

folder = Path(sys.argv[1])
# As root first: the other user may not be able to read all modules.
try:
    doctor(folder)
    main(["bypass", "on", "--endpoint", "/none"])
finally:
    os.setgroups([])
    os.setgid({USER})
    os.setuid({USER})
if len(sys.argv) > 2:
    sys.exit(main(sys.argv[2:]))
print(json.dumps(doctor(folder)))
"""


@pytest.fixture
def node(socket_folder: Path) -> Path:
    """A node whose files and sockets are root's alone, in a folder that everybody may enter."""
    for each in (socket_folder, *socket_folder.parents):
        mode = each.stat().st_mode
        if not mode & 0o001:
            each.chmod(mode | 0o111)
    files = {
        "proc/11/comm": "kubelet\n",
        "proc/11/cmdline": "kubelet\0--config=/etc/kubelet.yaml\0",
        "etc/kubelet.yaml": "containerRuntimeEndpoint: unix:///other.sock\n",
        "proc/13/comm": "koordlet\n",
        "proc/13/cmdline": "koordlet\0",
        "var/run/nri/nri.sock": "",
        "kubelet/config.yaml": "kind: KubeletConfiguration\n",
        "node.d/slo.yaml": "kind: ConfigMap\n",
        "servers/a.json": json.dumps(
            {"remote-endpoint": f"{socket_folder}/own/s.sock", "runtime-hooks": ["PreCreateContainer"]}
        ),
        "policies/own.py": "nonsense\n",
        "own/state/x": "",
        "kube/config": "{}",
    }
    for name, text in files.items():
        path = socket_folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (socket_folder / "config.toml").write_text(
        f"""
        [proxy]
        endpoint = "{socket_folder}/own/p.sock"
        runtime_endpoint = "{socket_folder}/own/r.sock"
        [hooks]
        server_config_dir = "{socket_folder}/servers"
        policies_dir = "{socket_folder}/policies"
        [node]
        objects_dir = "{socket_folder}/node.d"
        kubelet_dir = "{socket_folder}/kubelet"
        [state]
        dir = "{socket_folder}/own/state"
        [kubernetes]
        enabled = true
        kubeconfig = "{socket_folder}/kube/config"
        """
    )
    for name in ("etc/kubelet.yaml", "kubelet/config.yaml"):
        (socket_folder / name).chmod(0o600)
    for name in ("var/run/nri", "node.d", "policies", "own", "kube"):
        (socket_folder / name).chmod(0o700)
    return socket_folder


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", CODE, *words], capture_output=True, text=True, check=False)


def test_doctor_says_what_it_may_not_see(node: Path) -> None:
    done = run(str(node))
    assert (done.returncode, done.stdout[:1]) == (0, "["), done.stderr
    found = json.loads(done.stdout)
    (user,) = (each for each in found if each["check"] == "user")
    assert user["text"].startswith(f"user {USER} may not read ")
    for path in ("policies", "node.d", "kubelet/config.yaml", "kube/config"):
        assert f"{node}/{path}" in user["text"]
    assert "/etc/kubelet.yaml" in user["text"]
    assert "/var/run/nri/nri.sock" in user["text"]
    assert user["advice"] == "run doctor as root"
    # What root alone may see is no problem of the node.
    assert [each["text"] for each in found if each["level"] == "problem"] == []
    by_check = {each["check"]: each["text"] for each in found}
    assert by_check["daemon"] == f"{node}/own/p.sock: this user may not connect"
    assert by_check["runtime"] == f"{node}/own/r.sock: this user may not connect"
    assert by_check["hook servers"] == f"a.json: {node}/own/s.sock: this user may not connect"
    assert "this user may not read /etc/kubelet.yaml" in by_check["kubelet"]
    assert by_check["CPU manager"].endswith("is not known to this user")
    assert by_check["node objects"] == f"this user may not read {node}/node.d"
    assert by_check["state folder"] == f"this user may not see {node}/own/state"
    assert by_check["API server"] == f"this user may not read {node}/kube/config"


def test_a_configuration_that_it_may_not_read_is_no_problem_of_the_node(node: Path) -> None:
    config = node / "config.toml"
    config.chmod(0o600)
    found = json.loads(run(str(node)).stdout)
    assert [each["text"] for each in found if each["level"] == "problem"] == []
    (daemon,) = (each["text"] for each in found if each["check"] == "daemon")
    assert daemon.endswith("but the configuration may name another socket")
    # The default one may be there, or not, or in a folder that only root enters.
    (runtime,) = (each for each in found if each["check"] == "runtime")
    assert runtime["level"] != "problem"


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_bypass_speaks_of_permission(node: Path, mode: int) -> None:
    """Whether the user may read the lock or not."""
    endpoint = str(node / "p.sock")
    listener = listen(endpoint)
    try:
        Path(f"{endpoint}.lock").chmod(mode)
        done = run(str(node), "bypass", "on", "--endpoint", endpoint)
    finally:
        listener.release()
    assert done.returncode == 3
    said = f"{endpoint}: user {USER} may not send a signal to the instance here; run the command as root"
    assert done.stderr.endswith(f"koord-runtime-proxy: {said}\n")
