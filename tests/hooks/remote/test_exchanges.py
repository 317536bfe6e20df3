"""The hooks of the protocol."""

from __future__ import annotations

from cri_api.koordinator.v1alpha1 import api_pb2
from runtimeproxy.hooks.policy import Hook
from runtimeproxy.hooks.remote.protocol import EXCHANGES, NO_SUCH_METHOD
from runtimeproxy.hooks.remote.registrations import HOOK_NAMES

METHODS = api_pb2.DESCRIPTOR.services_by_name["RuntimeHookService"].methods_by_name


def test_the_hooks_are_those_of_the_protocol() -> None:
    paths = {f"/runtime.v1alpha1.RuntimeHookService/{name}" for name in METHODS}
    assert {exchange.method for exchange in EXCHANGES.values()} == paths
    assert NO_SUCH_METHOD not in paths


def test_a_hook_has_the_method_of_its_registered_name() -> None:
    assert set(HOOK_NAMES.values()) == set(EXCHANGES)
    for name, hook in HOOK_NAMES.items():
        assert EXCHANGES[hook].method.endswith(f"/{name}Hook")


def test_only_pre_hooks_have_an_effect() -> None:
    effective = {hook for hook, exchange in EXCHANGES.items() if exchange.change is not None}
    assert effective == {hook for hook in Hook if hook in EXCHANGES and hook.startswith("pre_")}
