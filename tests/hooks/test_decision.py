"""Running a policy never raises, whatever the policy does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from runtimeproxy.errors import RefusalError, RuntimeProxyError, StatusCode
from runtimeproxy.hooks import ContainerChange, ContainerView, FailurePolicy, Hook
from runtimeproxy.hooks.audit import AuditKind, Subject
from runtimeproxy.hooks.decision import Failure, FailureKind, Progress, error_texts, run_policy
from runtimeproxy.hooks.fields import Merged
from runtimeproxy.hooks.policy import Mode
from runtimeproxy.node.snapshot import Node
from tests.hooks.policy_classes import Answer, scripted

VIEW = ContainerView(name="main")


class Exploding(Mapping[str, Any]):
    """A mapping of a policy's own that raises when it is read."""

    def __getitem__(self, key: str) -> Any:
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("mapping")

    def __len__(self) -> int:
        return 1


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def raising(error: BaseException) -> Answer:
    def answer(_: ContainerView) -> object:
        raise error

    return answer


def run(answer: Answer, **settings: Any) -> tuple[Progress, Failure]:
    subject = Subject(Hook.PRE_CREATE_CONTAINER, VIEW, 0.0)
    policy = scripted("p", answer, **settings)
    progress, failure = run_policy(policy, subject, Node(), Progress(Merged(VIEW)))
    assert failure is not None
    return progress, failure


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda _: ContainerChange(env=Exploding()), id="exploding-mapping"),
        pytest.param(raising(UnprintableError()), id="unprintable"),
        pytest.param(raising(KeyboardInterrupt()), id="interrupt"),
        pytest.param(raising(RecursionError()), id="recursion"),
        pytest.param(raising(RefusalError("x", 99)), id="refusal-code"),  # type: ignore[arg-type]  # nonsense
        pytest.param(raising(RefusalError(UnprintableError())), id="refusal-text"),  # type: ignore[arg-type]  # as above
    ],
)
def test_nothing_a_policy_does_gets_out(answer: Answer) -> None:
    progress, failure = run(answer)
    assert failure.kind is FailureKind.FAILED
    assert progress.enforced.fields == {}
    assert progress.refusal is None


def test_a_failure_can_refuse() -> None:
    progress, failure = run(raising(ValueError("boom")), failure_policy=FailurePolicy.FAIL)
    assert progress.refusal is not None
    assert progress.refusal.code is StatusCode.INTERNAL
    assert progress.refusal.text == f"p: {failure.reason}"
    assert failure.reason.startswith("ValueError: boom (test_decision.py:")


@pytest.mark.parametrize(
    ("hook", "settings", "is_refused"),
    [
        pytest.param(Hook.PRE_CREATE_CONTAINER, {"failure_policy": FailurePolicy.FAIL}, True, id="fail"),
        pytest.param(Hook.PRE_CREATE_CONTAINER, {}, False, id="ignore"),
        pytest.param(
            Hook.PRE_CREATE_CONTAINER,
            {"failure_policy": FailurePolicy.FAIL, "mode": Mode.DRY_RUN},
            False,
            id="dry-run",
        ),
        pytest.param(Hook.EVALUATE_CONTAINER, {"failure_policy": FailurePolicy.FAIL}, False, id="it-runs"),
    ],
)
def test_what_the_node_cannot_give_refuses_as_the_failure_policy_says(
    hook: Hook, settings: dict[str, Any], is_refused: bool
) -> None:
    change = ContainerChange(env={"A": "1"}, missing=("no /dev/x", "no /dev/y"))
    progress, failure = run_policy(
        scripted("p", lambda _: change, **settings), Subject(hook, VIEW, 0.0), Node(), Progress(Merged(VIEW))
    )
    assert failure is None
    if is_refused:
        assert progress.refusal is not None
        assert progress.refusal.code is StatusCode.FAILED_PRECONDITION
        assert progress.refusal.text == "p: no /dev/x; no /dev/y"
        assert progress.enforced.fields == {}
    else:
        assert progress.refusal is None
        said = [note.reason for note in progress.notes if note.kind is AuditKind.LEFT_OUT]
        assert said == ["no /dev/x", "no /dev/y"]


def test_nothing_but_what_is_missing_keeps_what_was_wanted_before() -> None:
    answer = ContainerChange(missing=("no /dev/x",))
    subject = Subject(Hook.PRE_CREATE_CONTAINER, VIEW, 0.0)
    progress, _ = run_policy(scripted("p", lambda _: answer), subject, Node(), Progress(Merged(VIEW)))
    assert progress.without_answer == {"p"}


@pytest.mark.parametrize(
    ("error", "env", "has_text"),
    [
        (ValueError("secret"), {"K": b"secret"}, False),
        (ValueError("secret"), {}, True),
        (RuntimeProxyError("plain"), {"K": b"secret"}, True),
    ],
)
def test_texts_of_foreign_exceptions_are_left_out_where_they_may_quote_the_environment(
    error: Exception, env: dict[str, bytes], has_text: bool
) -> None:
    reason, cause = error_texts(error, ContainerView(env=env))
    assert (str(error) in reason) is has_text
    assert "secret" not in cause
