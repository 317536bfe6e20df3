"""What all built-in policies cost one call, in functions of the product that are called for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

import policies
from runtimeproxy.hooks import ContainerView, Hook, PodView
from runtimeproxy.hooks.chain import Chain
from runtimeproxy.hooks.fields import View
from runtimeproxy.hooks.loaded import bind
from runtimeproxy.hooks.loading import built_in
from runtimeproxy.hooks.workers import Workers
from runtimeproxy.node.snapshot import Feature, FixedNode, Input, InputState, Node, Pool, Pools
from runtimeproxy.qos import KubeQoSClass, QoSClass
from runtimeproxy.slo.strategies import Strategies
from tests.hooks.asking import decide
from tests.slo.configs import good

_ROOT = Path(policies.__file__).parents[1]
_PRODUCT = tuple(f"{_ROOT / name}/" for name in ("runtimeproxy", "policies"))

POD = PodView(name="web", uid="u1", qos=QoSClass.LS, kube_qos=KubeQoSClass.BURSTABLE)
REQUESTS = {("u1", "main"): {"cpu": 1000, "memory": 1 << 30}}


def node(strategies: Strategies, pools: Pools | None = None) -> FixedNode:
    """A node of which all is known, with all features that any policy needs, but for group identity."""
    features = frozenset(Feature) - {Feature.BVT}
    states = dict.fromkeys(Input, InputState.KNOWN)
    return FixedNode(
        Node(strategies=strategies, pools=pools, features=features, requests=REQUESTS, states=states)
    )


@contextmanager
def called() -> Iterator[list[str]]:
    names: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(_PRODUCT):
            names.append(f"{code.co_filename.removeprefix(f'{_ROOT}/')}:{code.co_qualname}")

    sys.setprofile(note)
    try:
        yield names
    finally:
        sys.setprofile(None)


async def cost(chain: Chain, hook: Hook, view: View) -> list[str]:
    # The first call fills what is remembered. One that takes long on a busy machine is looked at meanwhile.
    await decide(chain, hook, view=view)
    measured = []
    for _ in range(10):
        with called() as names:
            await decide(chain, hook, view=view)
        measured.append(names)
    return min(measured, key=len)


@pytest.mark.parametrize(
    ("hook", "view", "most_of_each"),
    [
        (Hook.PRE_CREATE_CONTAINER, ContainerView(name="main", pod=POD), 9),
        (Hook.PRE_RUN_POD_SANDBOX, POD, 11),
    ],
)
async def test_policies_with_nothing_to_say_cost_next_to_nothing(
    workers: Workers, hook: Hook, view: View, most_of_each: int
) -> None:
    chain = Chain([bind(each()) for each in built_in()], workers, node=node(Strategies()))
    asked = len(chain.policies_for(hook, POD))
    names = await cost(chain, hook, view)
    without = await cost(Chain([], workers), hook, view)
    assert asked > 4
    assert len(names) - len(without) <= most_of_each * asked, "\n".join(names)


async def test_a_call_that_all_policies_decide_on_takes_few_functions(workers: Workers) -> None:
    memory = {"memoryQOS": {"enable": True, "minLimitPercent": 20}}
    strategies = good(
        {
            "resource-qos-config": {"clusterStrategy": {"lsClass": memory}},
            "cpu-burst-config": {"clusterStrategy": {"policy": "cpuBurstOnly", "cpuBurstPercent": 20}},
        }
    ).strategies
    pools = Pools(ls=(Pool(0, 0, frozenset({0, 1})),))
    chain = Chain([bind(each()) for each in built_in()], workers, node=node(strategies, pools))
    names = await cost(chain, Hook.PRE_CREATE_CONTAINER, ContainerView(name="main", pod=POD))
    assert len(names) <= 185, "\n".join(names)
