"""Katalyst's dynamic configuration on a real API server, with the rights of the daemon's account."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.daemon.conftest import Daemons
from tests.daemon.test_dynamic_config import PATH, config, node_of, wait_for
from tests.e2e_api.conftest import NODE, crd
from tests.katalyst.objects import custom_config, target
from tests.lab.deadline import wait_until
from tests.lab.kube_api_server import NAMESPACE, KubeApiServer

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def in_namespace(document: dict[str, Any]) -> dict[str, Any]:
    # Katalyst's objects are in a namespace, and the server says when they were created.
    metadata = {"name": document["metadata"]["name"], "namespace": NAMESPACE}
    return {key: each for key, each in document.items() if key != "status"} | {"metadata": metadata}


def test_targets_of_a_cluster(cluster: KubeApiServer, kubeconfig: Path, daemons: Daemons) -> None:
    for kind in ("AdminQoSConfiguration", "KatalystCustomConfig"):
        definition = crd("config.katalyst.kubewharf.io", "v1alpha1", kind)
        definition["spec"]["scope"] = "Namespaced"
        cluster.admin.send("POST", CRDS, definition)
    daemon = daemons.start(
        f'[kubernetes]\nenabled = true\nkatalyst_targets = true\nkubeconfig = "{kubeconfig}"\n'
        f'[slo]\nstart_spread_s = 0\n[node]\nname = "{NODE}"\n'
    )
    everywhere = in_namespace(target("all", config=config(False)))

    def create(document: dict[str, Any]) -> None:
        # The server knows the kind some moments after its definition.
        def is_created() -> bool:
            try:
                cluster.apply(json.dumps(document))
            except Exception:  # noqa: BLE001 - whatever the client raises
                return False
            return True

        wait_until(lambda: is_created() or None, document["metadata"]["name"])

    create(in_namespace(custom_config({0: ["pool"]})))
    create(everywhere)
    wait_for(daemon, "false", f"{NAMESPACE}/all")
    create(in_namespace(target("pool-a", selector="pool=a", config=config(True))))
    wait_for(daemon, "true", f"{NAMESPACE}/pool-a")
    create(in_namespace(target("mine", nodes=[NODE], last="1h", config=config(False))))
    wait_for(daemon, "false", f"{NAMESPACE}/mine")
    assert {each.name.rpartition("/")[2]: each.is_applied for each in node_of(daemon).katalyst_targets} == {
        "all": False,
        "mine": True,
        "pool-a": False,
    }
    create(in_namespace(target("bad", nodes=["x"])))
    wait_until(
        lambda: any("not valid" in each for each in node_of(daemon).problems) or None, "what is said of it"
    )
    assert PATH in {each.path for each in node_of(daemon).strategies}
