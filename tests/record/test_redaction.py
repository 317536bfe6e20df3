"""Nothing secret stays in a message, and what policies read does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.hooks.fields import Field
from runtimeproxy.record.redaction import (
    MAX_ANNOTATION_CHARS,
    annotation_value,
    hashed,
    keeps_annotation,
    redact,
    redacted_document,
    shown_value,
)

KEY = bytes(32)
OTHER_KEY = bytes([1]) * 32
PRIVATE = "qLxA7zP-private-"
"""What is secret begins with it; no name or path below has it."""

private_texts = st.text(max_size=20).map(lambda text: PRIVATE + text)
names = st.sampled_from(["a", "PASSWORD", "HOME", "x.y"])
other_annotations = st.sampled_from(
    ["example.com/x", "plain", "koordinator.sh.example.com/x", "xkubernetes.io/y", "io.kubernetesx/z"]
)
credentials = st.sampled_from(
    ["koordinator.sh/token", "kubernetes.io/dockerSecret", "kubectl.kubernetes.io/last-applied-configuration"]
)
annotation_maps = st.dictionaries(other_annotations | credentials, private_texts, max_size=3)
kept = st.dictionaries(
    st.sampled_from(
        ["koordinator.sh/x", "node.koordinator.sh/y", "io.kubernetes.container.hash", "kubernetes.io/z"]
    ),
    st.sampled_from(["", "1", '{"policy": "auto"}']),
    max_size=3,
)


@st.composite
def containers(draw: st.DrawFn) -> api_pb2.ContainerConfig:
    return api_pb2.ContainerConfig(
        metadata=api_pb2.ContainerMetadata(name="main"),
        image=api_pb2.ImageSpec(image="busybox", annotations=draw(annotation_maps)),
        command=draw(st.lists(private_texts, max_size=3)),
        args=draw(st.lists(private_texts, max_size=3)),
        envs=[
            api_pb2.KeyValue(key=draw(names), value=draw(private_texts).encode())
            for _ in range(draw(st.integers(0, 3)))
        ],
        mounts=[api_pb2.Mount(host_path="/var/lib/x", container_path="/x")],
        annotations=draw(annotation_maps) | draw(kept),
        labels={"koordinator.sh/qosClass": "LS"},
        log_path="main/0.log",
    )


@st.composite
def sandboxes(draw: st.DrawFn) -> api_pb2.PodSandboxConfig:
    return api_pb2.PodSandboxConfig(
        metadata=api_pb2.PodSandboxMetadata(name="pod", uid="u", namespace="n"),
        annotations=draw(annotation_maps) | draw(kept),
        labels={"koordinator.sh/qosClass": "LS"},
        log_directory="/var/log/pods/x",
    )


messages = st.one_of(
    sandboxes().map(lambda config: api_pb2.RunPodSandboxRequest(config=config)),
    st.builds(
        lambda container, sandbox: api_pb2.CreateContainerRequest(
            pod_sandbox_id="s", config=container, sandbox_config=sandbox
        ),
        containers(),
        sandboxes(),
    ),
    st.builds(
        lambda found, more: api_pb2.UpdateContainerResourcesRequest(
            container_id="c", annotations=found | more
        ),
        annotation_maps,
        kept,
    ),
    st.builds(
        lambda sandbox, configs: api_pb2.RestorePodRequest(config=sandbox, container_configs=configs),
        sandboxes(),
        st.lists(containers(), max_size=2),
    ),
    private_texts.map(
        lambda text: api_pb2.PullImageRequest(auth=api_pb2.AuthConfig(username="u", password=text, auth=text))
    ),
)


def redacted(message: Any, key: bytes) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    redact(copy, key)
    return copy


@given(messages)
def test_no_secret_is_left(message: Any) -> None:
    before = message.SerializeToString()
    found = redacted(message, KEY)
    assert PRIVATE.encode() not in found.SerializeToString()
    assert PRIVATE not in json.dumps(json_format.MessageToDict(found), ensure_ascii=False)
    assert message.SerializeToString() == before


@given(containers())
def test_what_policies_read_stays(config: api_pb2.ContainerConfig) -> None:
    found = redacted(config, KEY)
    assert found.labels == config.labels
    assert found.mounts == config.mounts
    assert found.log_path == config.log_path
    assert [each.key for each in found.envs] == [each.key for each in config.envs]
    assert len(found.command) == len(config.command)
    assert found.annotations.keys() == config.annotations.keys()
    for name, value in config.annotations.items():
        if not value.startswith(PRIVATE):
            assert found.annotations[name] == value


def test_fields_that_are_not_known_are_dropped() -> None:
    # Field 900, a text.
    data = b"\xa2\x38\x06secret"
    message = api_pb2.ContainerConfig.FromString(data)
    assert b"secret" in message.SerializeToString()
    assert redacted(message, KEY).SerializeToString() == b""


@pytest.mark.parametrize(
    ("name", "is_kept"),
    [
        ("koordinator.sh/cpuBurst", True),
        ("scheduling.koordinator.sh/resource-status", True),
        ("kubernetes.io/config.seen", True),
        ("io.kubernetes.container.hash", True),
        ("katalyst.kubewharf.io/qos_level", True),
        ("huawei.com/npu-core", True),
        ("nothuawei.com/npu-core", False),
        ("CAMBRICON_DSMLU_PROFILE", True),
        ("CAMBRICON_OTHER", False),
        ("koordinator.sh/api-key", False),
        ("kubectl.kubernetes.io/last-applied-configuration", False),
        ("notkubernetes.io/x", False),
        ("example.com/kubernetes.io", False),
        ("sidecar", False),
    ],
)
def test_which_annotations_are_kept(name: str, is_kept: bool) -> None:
    assert keeps_annotation(name) is is_kept
    assert (annotation_value(name, "1", KEY) == "1") is is_kept


@pytest.mark.parametrize(
    "value",
    [
        "-----BEGIN PRIVATE KEY-----",
        "Bearer abc",
        "eyJhbGciOiJIUzI1NiJ9.e30.x",
        "AKIAIOSFODNN7EXAMPLE",
        "https://user:pw@example.com/",
        "x" * (MAX_ANNOTATION_CHARS + 1),
    ],
)
def test_values_that_are_credentials_or_long_are_not_kept(value: str) -> None:
    assert annotation_value("koordinator.sh/x", value, KEY).startswith("redacted:")


def test_equal_texts_have_equal_hashes_under_one_key() -> None:
    assert hashed("a", KEY) == hashed("a", KEY) != hashed("b", KEY)
    assert hashed("a", KEY) != hashed("a", OTHER_KEY)
    assert hashed("", KEY) == ""


def test_records() -> None:
    document = {
        "name": "x",
        "annotations": {"koordinator.sh/x": "1", "example.com/y": "2"},
        "annotation_changes": {"example.com/y": None, "example.com/z": "3"},
    }
    found = redacted_document(document, KEY)
    assert found["annotations"] == {"koordinator.sh/x": "1", "example.com/y": hashed("2", KEY)}
    assert found["annotation_changes"] == {"example.com/y": None, "example.com/z": hashed("3", KEY)}
    assert found["name"] == "x"


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        (Field("annotations", "koordinator.sh/x"), "1", "1"),
        (Field("annotations", "koordinator.sh/x"), "Bearer abc", "<set>"),
        (Field("annotations", "example.com/x"), "1", "<set>"),
        (Field("annotations", "example.com/x"), None, ""),
        (Field("env", "X"), "1", "<set>"),
        (Field("resources", "cpu_shares"), 2, "2"),
    ],
)
def test_values_of_decisions(field: Field, value: Any, text: str) -> None:
    assert shown_value(field, value) == text
