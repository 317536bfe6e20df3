"""One registration file: what is taken, what is reported, what is bad."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.hooks.policy import FailurePolicy, Hook
from runtimeproxy.hooks.remote.registrations import (
    HOOK_NAMES,
    MAX_PATH_BYTES,
    Registration,
    ResponseMode,
    parse_registration,
)

ENDPOINT = "/var/run/koordlet/koordlet.sock"
HOOKS = ["PreRunPodSandbox", "PreCreateContainer"]
DEFAULT_TIMEOUT_S = 2.0


def file(**values: Any) -> bytes:
    """A file with these keys (`_` for `-`) besides a good endpoint and hooks; None leaves a key out."""
    table: dict[str, Any] = {"remote-endpoint": ENDPOINT, "runtime-hooks": HOOKS}
    table |= {key.replace("_", "-"): value for key, value in values.items()}
    return json.dumps({key: value for key, value in table.items() if value is not None}).encode()


def parsed(data: bytes) -> tuple[Registration | None, tuple[str, ...]]:
    return parse_registration("koordlet.json", data, DEFAULT_TIMEOUT_S)


def good(data: bytes) -> Registration:
    registration, problems = parsed(data)
    assert registration is not None
    assert problems == ()
    return registration


def test_what_koordlet_writes() -> None:
    assert good(file(failure_policy="Ignore")) == Registration(
        name="koordlet.json",
        endpoint=ENDPOINT,
        failure_policy=FailurePolicy.IGNORE,
        hooks=frozenset({Hook.PRE_RUN_POD_SANDBOX, Hook.PRE_CREATE_CONTAINER}),
        timeout_s=DEFAULT_TIMEOUT_S,
        answers=ResponseMode.AUTO,
    )


def test_every_hook() -> None:
    names = [
        "PreRunPodSandbox",
        "PostStopPodSandbox",
        "PreCreateContainer",
        "PreStartContainer",
        "PostStartContainer",
        "PreUpdateContainerResources",
        "PostStopContainer",
    ]
    assert list(HOOK_NAMES) == names
    assert good(file(runtime_hooks=names)).hooks == {
        Hook.PRE_RUN_POD_SANDBOX,
        Hook.POST_STOP_POD_SANDBOX,
        Hook.PRE_CREATE_CONTAINER,
        Hook.PRE_START_CONTAINER,
        Hook.POST_START_CONTAINER,
        Hook.PRE_UPDATE_CONTAINER_RESOURCES,
        Hook.POST_STOP_CONTAINER,
    }


def test_a_name_that_koordinator_has_for_nri_is_taken_without_a_word() -> None:
    assert good(file(runtime_hooks=["PreRemoveRunPodSandbox"])).hooks == frozenset()


@pytest.mark.parametrize("scheme", ["", "unix:", "unix://", "/", "unix:/", "unix:///"])
def test_endpoints(scheme: str) -> None:
    assert good(file(remote_endpoint=scheme + ENDPOINT)).endpoint == ENDPOINT


@pytest.mark.parametrize(
    ("values", "attribute", "expected"),
    [
        pytest.param({"failure_policy": "Fail"}, "failure_policy", FailurePolicy.FAIL, id="fail"),
        pytest.param(
            {"failure_policy": ""}, "failure_policy", FailurePolicy.IGNORE, id="empty failure policy"
        ),
        pytest.param({"timeout_seconds": 1}, "timeout_s", 1.0, id="timeout"),
        pytest.param({"timeout_seconds": 0.25}, "timeout_s", 0.25, id="short timeout"),
        pytest.param({"timeout_seconds": 120}, "timeout_s", 120.0, id="longest timeout"),
        pytest.param({"answers": "complete"}, "answers", ResponseMode.COMPLETE, id="complete"),
        pytest.param({"answers": "partial"}, "answers", ResponseMode.PARTIAL, id="partial"),
        pytest.param({"answers": "auto"}, "answers", ResponseMode.AUTO, id="auto"),
    ],
)
def test_values(values: dict[str, Any], attribute: str, expected: object) -> None:
    assert getattr(good(file(**values)), attribute) == expected


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\xef\xbb\xbf" + file(), id="byte order mark"),
        pytest.param(b"\n " + file() + b"\n", id="space"),
        pytest.param(file().replace(b"remote-endpoint", b"Remote-Endpoint"), id="case of a key"),
        pytest.param(file()[:-1] + b', "failure-policy": null}', id="null"),
    ],
)
def test_what_koordinators_proxy_takes_too(data: bytes) -> None:
    assert good(data).endpoint == ENDPOINT


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        pytest.param(
            {"failure_policy": "fail"},
            "failure-policy: 'fail' is unknown, Ignore is used; did you mean Fail?",
            id="failure policy in lower case",
        ),
        pytest.param(
            {"failure_policy": "Abort"},
            "failure-policy: 'Abort' is unknown, Ignore is used; there are: Fail, Ignore",
            id="failure policy",
        ),
        pytest.param(
            {"runtime_hooks": [*HOOKS, "PreCreateContainr"]},
            "runtime-hooks: no hook is named 'PreCreateContainr'; did you mean PreCreateContainer?",
            id="hook",
        ),
        pytest.param(
            {"runtime_hooks": [*HOOKS, "prestartcontainer", "prestartcontainer"]},
            "runtime-hooks: no hook is named 'prestartcontainer'; did you mean PreStartContainer?",
            id="case of a hook",
        ),
        pytest.param(
            {"failure_polizy": "Fail"},
            "'failure-polizy': unknown key; did you mean failure-policy?",
            id="key",
        ),
        pytest.param(
            {"timeout_seconds": 0}, "timeout-seconds: must be above 0 and at most 120, 2 is used", id="0 s"
        ),
        pytest.param(
            {"timeout_seconds": 121},
            "timeout-seconds: must be above 0 and at most 120, 2 is used",
            id="121 s",
        ),
        pytest.param(
            {"timeout_seconds": float("nan")},
            "timeout-seconds: must be above 0 and at most 120, 2 is used",
            id="nan",
        ),
        pytest.param(
            {"answers": "most"},
            "answers: 'most' is none of auto, complete, partial; auto is used",
            id="answers",
        ),
    ],
)
def test_what_is_reported_and_leaves_the_rest_in_force(values: dict[str, Any], problem: str) -> None:
    registration, problems = parsed(file(**values))
    assert problems == (problem,)
    assert registration == good(file())


@pytest.mark.parametrize("hooks", [None, []], ids=["missing", "empty"])
def test_a_server_without_hooks(hooks: list[str] | None) -> None:
    registration, problems = parsed(file(runtime_hooks=hooks))
    assert registration is not None
    assert registration.hooks == frozenset()
    assert problems == ("runtime-hooks: names no hook, so the server is never called",)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        pytest.param(b"", "the file is empty", id="empty"),
        pytest.param(b" \n", "the file is empty", id="blank"),
        pytest.param(b"[]", "not a JSON object", id="list"),
        pytest.param(b"null", "not a JSON object", id="null"),
        pytest.param(b"\xff\xfe", "not valid JSON: not UTF-8", id="not UTF-8"),
        pytest.param(b"[" * 100_000, "not valid JSON: ", id="deep"),
        pytest.param(b"1" * 100_000, "not valid JSON: ", id="long number"),
        pytest.param(file()[:30], "not valid JSON: line 1 column ", id="half"),
        pytest.param(file(remote_endpoint=None), "remote-endpoint: is missing or empty", id="no endpoint"),
        pytest.param(file(remote_endpoint=""), "remote-endpoint: is missing or empty", id="empty endpoint"),
        pytest.param(file(remote_endpoint=7), "remote-endpoint: must be a string", id="endpoint's type"),
        pytest.param(
            file(remote_endpoint="koordlet.sock"),
            "remote-endpoint: 'koordlet.sock' is not an absolute path of a socket",
            id="relative endpoint",
        ),
        pytest.param(
            file(remote_endpoint="tcp://127.0.0.1:1"),
            "remote-endpoint: 'tcp://127.0.0.1:1' is not an",
            id="tcp",
        ),
        pytest.param(
            file(remote_endpoint="unix:a"), "remote-endpoint: 'unix:a' is not an", id="unix and relative"
        ),
        pytest.param(file(remote_endpoint="/a/"), "remote-endpoint: '/a/' does not name", id="folder"),
        pytest.param(file(remote_endpoint="/a\0b"), "remote-endpoint: '/a\\x00b' does not name", id="NUL"),
        pytest.param(
            file(remote_endpoint="/\ud800"), "remote-endpoint: '/\\ud800' does not name", id="surrogate"
        ),
        pytest.param(
            file(remote_endpoint="/" + "a" * MAX_PATH_BYTES),
            "remote-endpoint: the path has 108 bytes, at most 107 are possible",
            id="long endpoint",
        ),
        pytest.param(file(failure_policy=1), "failure-policy: must be a string", id="failure policy's type"),
        pytest.param(
            file(runtime_hooks="PreRunPodSandbox"), "runtime-hooks: must be a list", id="hooks' type"
        ),
        pytest.param(file(runtime_hooks=[1]), "runtime-hooks: must be a list of strings", id="a hook's type"),
        pytest.param(file(timeout_seconds="2"), "timeout-seconds: must be a number", id="timeout's type"),
        pytest.param(file(timeout_seconds=True), "timeout-seconds: must be a number", id="timeout is a bool"),
        pytest.param(file(answers=[]), "answers: must be a string", id="answers' type"),
    ],
)
def test_bad_files(data: bytes, problem: str) -> None:
    registration, (text,) = parsed(data)
    assert registration is None
    assert text.startswith(problem)


def test_what_is_reported_is_bounded() -> None:
    names = [f"Hook{number}" for number in range(1_000)]
    keys = dict.fromkeys(names, "x" * 1_000)
    registration, problems = parsed(file(runtime_hooks=[*names, "x" * 1_000], **keys))
    assert registration is not None
    assert len(problems) == 20
    assert max(map(len, problems)) < 500


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
tables = st.dictionaries(
    st.sampled_from(["remote-endpoint", "failure-policy", "runtime-hooks", "timeout-seconds", "answers"])
    | st.text(),
    json_values | st.sampled_from([ENDPOINT, "Fail", HOOKS, "partial"]),
)


@given(st.binary() | tables.map(lambda table: json.dumps(table).encode()))
def test_no_content_raises(data: bytes) -> None:
    registration, problems = parsed(data)
    if registration is None:
        assert len(problems) == 1
    else:
        assert registration.endpoint.startswith("/")
        assert 0 < registration.timeout_s <= 120
    for problem in problems:
        problem.encode()
        assert problem.isprintable()


@given(st.integers(min_value=0, max_value=len(file()) - 1))
def test_no_beginning_of_a_file_is_a_file(end: int) -> None:
    assert parsed(file()[:end])[0] is None
