"""Katalyst's dynamic configuration in the whole daemon: files apply soon; `status` has the reasons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from tests.daemon.conftest import Daemons
from tests.katalyst.objects import NODE, custom_config, target
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess
from tests.service.api.conftest import status_of

PATH = "reclaimedResourceConfig.enableReclaim"


def config(is_on: bool) -> dict[str, Any]:
    return {"reclaimedResourceConfig": {"enableReclaim": is_on}}


def write(file: Path, *documents: dict[str, Any]) -> None:
    new = file.with_name(f".{file.name}")
    new.write_text(json.dumps({"kind": "List", "items": documents}))
    new.replace(file)


def node_of(daemon: ProxyProcess) -> api_pb2.GetNodeResponse:
    with CriClient(daemon.socket) as client:
        response: api_pb2.GetNodeResponse = api_pb2_grpc.RuntimeProxyStub(client.channel).GetNode(
            api_pb2.GetNodeRequest()
        )
    return response


def value_of(daemon: ProxyProcess) -> tuple[str, str] | None:
    """The value that applies, and where it comes from."""
    fields = [each for each in node_of(daemon).strategies if each.path == PATH]
    return (fields[0].value, fields[0].provenance.strategy) if fields else None


def wait_for(daemon: ProxyProcess, value: str, name: str) -> None:
    wanted = (value, f"AdminQoSConfiguration {name}")
    wait_until(lambda: value_of(daemon) == wanted or None, f"{value} of {name}")


def test_targets_in_the_folder(daemons: Daemons) -> None:
    daemon = daemons.start(f"[node]\nname = '{NODE}'\n")
    daemon.objects_folder.mkdir()
    file = daemon.objects_folder / "katalyst.json"
    allowed = custom_config({0: ["pool"]})
    write(file, allowed, target("all", config=config(False)), target("b", selector="pool=b"))
    wait_for(daemon, "false", "all")
    mine = target("mine", nodes=[NODE], last="876000h", config=config(True))
    write(file, allowed, target("all", config=config(False)), target("b", selector="pool=b"), mine)
    wait_for(daemon, "true", "mine")
    with CriClient(daemon.socket) as client:
        status = status_of(api_pb2_grpc.RuntimeProxyStub(client.channel)).node
    assert {each.name: (each.is_applied, each.reason) for each in status.katalyst_targets} == {
        "all": (False, "mine applies by nodeNames, which goes before global"),
        "b": (False, "the node's labels do not match nodeLabelSelector pool=b"),
        "mine": (True, "names the node"),
    }
    assert list(node_of(daemon).katalyst_targets) == list(status.katalyst_targets)
    # An invalid one changes nothing, before and after a restart.
    write(file, allowed, target("all", config=config(False)), target("other"))
    problem = "AdminQoSConfiguration other: is for all nodes, as all is"

    def problems() -> list[str]:
        return list(node_of(daemon).problems)

    wait_until(lambda: problem in problems() or None, "what is said of the invalid one")
    assert value_of(daemon) == ("true", "AdminQoSConfiguration mine")
    assert daemon.terminate() == 0
    daemon.start()
    wait_until(lambda: problem in problems() or None, "what is said after the restart")
    assert value_of(daemon) == ("true", "AdminQoSConfiguration mine")
