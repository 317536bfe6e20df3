"""Items 1 to 11: the message arrives as it was sent, and a changed one changes nowhere else."""

from __future__ import annotations

import random

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import FakeRuntime
from runtimeproxy.testing.builders import container_config, create_container_request, pod_sandbox_config
from tests.conformance.asking_policy import PolicyDesk
from tests.conformance.conftest import ProxyStarter
from tests.conformance.messages import (
    BATCH_ANNOTATIONS,
    BATCH_SHARES,
    CREATE,
    LIST,
    RUNTIME,
    UNKNOWN,
    UNPARSABLE,
    asking_create,
    backwards,
    batch_create,
    plain_create,
    unknown_places,
    with_unknown,
)
from tests.conformance.services import ECHO
from tests.peers.bytes_client import BytesClient

CREATED = api_pb2.CreateContainerResponse(container_id="c" * 64).SerializeToString()
ENVIRONMENT = [(b"A", "1"), (b"\xff\xfe\x00", "RAW"), (b"2", "A"), (b"", "EMPTY"), (b"1", "A")]


def sent(runtime: FakeRuntime, through: BytesClient, path: str, request: bytes) -> bytes:
    """Makes a call that always succeeds; returns the request as the runtime has got it."""
    method = path.rpartition("/")[2]
    runtime.on(method, response=b"", times=1)
    assert through.call(path, request).code == "OK"
    return runtime.recorded.wait(method)[0].raw


@pytest.mark.conformance(1)
@pytest.mark.parametrize("path", [LIST, CREATE], ids=["passing", "held"])
def test_unknown_field_at_top_level(runtime: FakeRuntime, through: BytesClient, path: str) -> None:
    request = (plain_create().SerializeToString() if path == CREATE else b"") + UNKNOWN

    assert sent(runtime, through, path, request) == request


@pytest.mark.conformance(2)
def test_unknown_fields_in_nested_messages(runtime: FakeRuntime, through: BytesClient) -> None:
    message = plain_create()
    with_unknown(message)
    request = message.SerializeToString()

    assert sent(runtime, through, CREATE, request) == request
    assert through.call(ECHO, request).message == request


@pytest.mark.conformance(3)
def test_changed_request_keeps_unknown_fields(runtime: FakeRuntime, through: BytesClient) -> None:
    message = batch_create()
    with_unknown(message)
    places = unknown_places(message)

    got = api_pb2.CreateContainerRequest.FromString(
        sent(runtime, through, CREATE, message.SerializeToString())
    )

    assert got.config.linux.resources.cpu_shares == BATCH_SHARES
    assert len(places) > 8
    assert unknown_places(got) == places


@pytest.mark.conformance(4)
@pytest.mark.parametrize(
    "method",
    [
        each.name
        for service in api_pb2.DESCRIPTOR.services_by_name.values()
        for each in service.methods
        if not each.server_streaming
    ],
)
def test_response_is_the_same_bytes(runtime: FakeRuntime, through: BytesClient, method: str) -> None:
    """No response is rewritten, so the item holds for all methods; server streams are in item 20."""
    service = "ImageService" if "Image" in method else "RuntimeService"
    response = random.Random(method).randbytes(3000)
    runtime.on(method, response=response)

    assert through.call(f"/runtime.v1.{service}/{method}").message == response


@pytest.mark.conformance(5, 6)
def test_environment_mounts_and_devices_keep_order_and_bytes(
    runtime: FakeRuntime, through: BytesClient
) -> None:
    """A policy of the daemon changes the resources; duplicates and a value that is not UTF-8 stay."""
    message = batch_create()
    config = message.config
    del config.envs[:]
    config.envs.extend(api_pb2.KeyValue(key=key, value=value) for value, key in ENVIRONMENT)
    for path in ("/z", "/a", "/z", "/m"):
        config.mounts.add(container_path=path, host_path=f"/host{path}")
        config.devices.add(container_path=path, host_path=f"/dev{path}", permissions="rw")

    got = api_pb2.CreateContainerRequest.FromString(
        sent(runtime, through, CREATE, message.SerializeToString())
    ).config

    assert got.linux.resources.cpu_shares == BATCH_SHARES
    assert [(each.value, each.key) for each in got.envs] == ENVIRONMENT
    assert list(got.mounts) == list(config.mounts)
    assert list(got.devices) == list(config.devices)


@pytest.mark.conformance(5, 6)
def test_changed_environment_keeps_the_other_variables(
    runtime: FakeRuntime, through: BytesClient, desk: PolicyDesk
) -> None:
    """A policy that changes the environment itself replaces the last variable of the name."""
    message = asking_create(desk.annotations)
    del message.config.envs[:]
    message.config.envs.extend(api_pb2.KeyValue(key=key, value=value) for value, key in ENVIRONMENT)
    runtime.on("CreateContainer", response=CREATED)

    call = through.start(CREATE, message.SerializeToString())
    desk.question().answer(env={"A": "3", "NEW": "4"})

    assert list(call) == [CREATED]
    got = runtime.recorded.wait("CreateContainer")[0].message.config
    expected = [*ENVIRONMENT[:-1], (b"3", "A"), (b"4", "NEW")]
    assert [(each.value, each.key) for each in got.envs] == expected


@pytest.mark.conformance(7)
def test_all_fields_of_a_mount_survive_a_change(runtime: FakeRuntime, through: BytesClient) -> None:
    message = batch_create()
    mapping = api_pb2.IDMapping(host_id=100_000, container_id=0, length=65_536)
    mount = message.config.mounts.add(
        container_path="/data",
        host_path="/host",
        readonly=True,
        selinux_relabel=True,
        propagation=api_pb2.PROPAGATION_BIDIRECTIONAL,
        uidMappings=[mapping],
        gidMappings=[mapping, mapping],
        recursive_read_only=True,
        image=api_pb2.ImageSpec(image="volume:1", annotations={"k": "v"}),
        image_sub_path="inner/path",
        mount_options=["noexec"],
    )
    mount.MergeFromString(UNKNOWN)

    got = api_pb2.CreateContainerRequest.FromString(
        sent(runtime, through, CREATE, message.SerializeToString())
    )

    assert got.config.linux.resources.cpu_shares == BATCH_SHARES
    assert {field.number for field, _ in mount.ListFields()} >= set(range(6, 12))
    assert got.config.mounts[0].SerializeToString() == mount.SerializeToString()


@pytest.mark.conformance(8)
@pytest.mark.parametrize("path", [LIST, CREATE], ids=["passing", "held"])
def test_empty_messages(runtime: FakeRuntime, through: BytesClient, path: str) -> None:
    runtime.on(path.rpartition("/")[2], response=b"")

    assert through.call(path, b"").message == b""
    assert runtime.recorded.wait(path.rpartition("/")[2])[0].raw == b""


@pytest.mark.conformance(9)
@pytest.mark.parametrize("make", [plain_create, batch_create], ids=["no policy", "same values already"])
def test_unchanged_request_is_not_encoded_again(
    runtime: FakeRuntime, through: BytesClient, make: type[object]
) -> None:
    """An encoding that no library makes arrives as it is, also where a policy wants what is there
    already.
    """
    message = make()
    assert isinstance(message, api_pb2.CreateContainerRequest)
    if make is batch_create:
        got = sent(runtime, through, CREATE, message.SerializeToString())
        message = api_pb2.CreateContainerRequest.FromString(got)
        runtime.recorded.clear()
    request = backwards(message)
    assert request != message.SerializeToString()

    assert sent(runtime, through, CREATE, request) == request


@pytest.mark.conformance(10)
def test_what_the_kubelet_leaves_unset_stays_unset(
    runtime: FakeRuntime, through: BytesClient, desk: PolicyDesk
) -> None:
    """A change of the environment makes no `linux`, no `windows`, no sandbox config."""
    message = asking_create(desk.annotations)
    message.config.ClearField("linux")
    message.sandbox_config.ClearField("linux")
    runtime.on("CreateContainer", response=CREATED)

    call = through.start(CREATE, message.SerializeToString())
    desk.question().answer(env={"NEW": "1"})

    assert list(call) == [CREATED]
    message.config.envs.add(key="NEW", value=b"1")
    assert runtime.recorded.wait("CreateContainer")[0].message == message


@pytest.mark.conformance(10)
def test_partial_update_stays_partial(runtime: FakeRuntime, through: BytesClient) -> None:
    """The CPU manager sends a cpuset only; the batch resource policy owns other fields and adds none."""
    pod = pod_sandbox_config("batch", qos="BE", annotations=BATCH_ANNOTATIONS)
    sandbox = api_pb2.RunPodSandboxResponse.FromString(
        through.call(
            f"{RUNTIME}/RunPodSandbox", api_pb2.RunPodSandboxRequest(config=pod).SerializeToString()
        ).message
    ).pod_sandbox_id
    create = create_container_request(sandbox, container_config("main", pod=pod), pod)
    made = api_pb2.CreateContainerResponse.FromString(
        through.call(CREATE, create.SerializeToString()).message
    ).container_id
    update = api_pb2.UpdateContainerResourcesRequest(
        container_id=made, linux=api_pb2.LinuxContainerResources(cpuset_cpus="0-1")
    ).SerializeToString()

    assert through.call(f"{RUNTIME}/UpdateContainerResources", update).code == "OK"
    assert runtime.recorded.wait("UpdateContainerResources")[0].raw == update


@pytest.mark.conformance(11)
def test_request_that_does_not_parse_is_forwarded_as_it_came(
    runtime: FakeRuntime, through: BytesClient, direct: BytesClient
) -> None:
    assert sent(runtime, through, CREATE, UNPARSABLE) == UNPARSABLE
    # The runtime's own opinion of it is handed on.
    assert through.call(CREATE, UNPARSABLE) == direct.call(CREATE, UNPARSABLE)
    assert through.call(f"{RUNTIME}/Version").code == "OK"


@pytest.mark.conformance(11, 33)
def test_request_that_does_not_parse_is_refused_by_a_setting(
    runtime: FakeRuntime, start_proxy: ProxyStarter
) -> None:
    config = '[hooks]\non_unparsable = "refuse"\n[cgroups]\nenabled = false\n'
    daemon = start_proxy(runtime.socket_path, config)

    with BytesClient(daemon.socket) as client:
        answer = client.call(CREATE, UNPARSABLE)
        assert client.call(f"{RUNTIME}/Version").code == "OK"

    assert answer.code == "INVALID_ARGUMENT"
    assert answer.text.startswith("koord-runtime-proxy: ")
    assert not runtime.recorded.of("CreateContainer")
