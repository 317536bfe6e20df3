"""Policies for the tests of the chain: each does one thing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ClassVar, Literal, TypeAlias

from runtimeproxy.errors import RefusalError
from runtimeproxy.hooks import ContainerChange, ContainerView, FailurePolicy, Mode, Policy, ResourceChange
from runtimeproxy.hooks.loaded import LoadedPolicy, bind
from runtimeproxy.hooks.settings import PolicySettings
from runtimeproxy.node.snapshot import Input, Node

Answer: TypeAlias = Callable[[ContainerView], object]


class Scripted(Policy):
    """Answers about containers with whatever a function returns."""

    name: ClassVar[str] = "scripted"

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        return self.answer(container)  # type: ignore[return-value]  # nonsense is what some tests need

    def on_started(self, container: ContainerView, node: Node) -> None:
        return self.answer(container)  # type: ignore[return-value]  # as above

    def on_stopped(self, container: ContainerView, node: Node) -> None:
        return self.answer(container)  # type: ignore[return-value]  # as above


def scripted(
    name: str,
    answer: Answer,
    *,
    mode: Literal[Mode.ENFORCE, Mode.DRY_RUN] = Mode.ENFORCE,
    failure_policy: FailurePolicy = FailurePolicy.IGNORE,
    timeout_s: float = 5.0,
    priority: int = 50,
    inputs: frozenset[Input] = frozenset(),
    optional_inputs: frozenset[Input] = frozenset(),
    features: frozenset[str] = frozenset(),
) -> LoadedPolicy:
    """Return a policy that answers with what a function returns."""
    settings = PolicySettings(mode=mode, failure_policy=failure_policy, timeout_s=timeout_s)
    attributes = {
        "name": name,
        "priority": priority,
        "inputs": inputs,
        "optional_inputs": optional_inputs,
        "features": features,
    }
    named: type[Scripted] = type("Named", (Scripted,), attributes)
    return bind(named(answer), settings)


def shares(value: int, reason: str = "") -> Answer:
    """Answer with CPU shares."""
    return lambda _: ContainerChange(resources=ResourceChange(cpu_shares=value), reason=reason)


def cgroup(**values: int) -> Answer:
    """Answer with cgroup values; `cpu_shares` stands for `cpu.shares`."""
    entries = {name.replace("_", ".", 1): value for name, value in values.items()}
    return lambda _: ContainerChange(cgroup=entries)


def nothing(_: ContainerView) -> None:
    """Answer nothing."""


def raising(_: ContainerView) -> object:
    raise ValueError("boom")


def refusing(_: ContainerView) -> object:
    raise RefusalError("not here")


class Hanging:
    """An answer that hangs until it is let go; then it asks for 999 shares."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.entered = threading.Semaphore(0)

    def __call__(self, container: ContainerView) -> object:
        self.entered.release()
        self.released.wait(30)
        return shares(999)(container)
