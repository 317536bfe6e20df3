"""What runs on the node, wherever that is known from."""

from __future__ import annotations

from runtimeproxy.pods.inventory import Inventory, RunningPods
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.pods.store import PodStore


async def test_what_runs_is_told_and_nobody_is_asked() -> None:
    """As by a runtime that calls a plugin with all pods and containers."""
    store, done = PodStore(), list[str]()
    store.pods.put(PodRecord(id="gone"))
    store.containers.put(ContainerRecord(id="main", pod_id="stays", state=Lifecycle.CREATED))
    inventory = Inventory(store)

    async def on_complete() -> None:
        done.append("complete")

    inventory.on_complete.append(on_complete)
    with store.listing() as since:
        store.pods.put(PodRecord(id="new"))
        pods = {"stays": PodRecord(id="stays")}
        containers = {"main": ContainerRecord(id="main", pod_id="stays", state=Lifecycle.RUNNING)}
        inventory.synchronize(RunningPods(pods, containers, since, since))
    assert not inventory.recovered.is_set()
    await inventory.complete()
    assert inventory.recovered.is_set()
    assert done == ["complete"]
    assert {pod.id for pod in store.pods} == {"stays", "new"}
    assert [(each.id, each.state) for each in store.containers] == [("main", Lifecycle.RUNNING)]
    # Without a source of lists these change nothing.
    inventory.compare_soon()
    inventory.confirm_all()
    assert done == ["complete"]
