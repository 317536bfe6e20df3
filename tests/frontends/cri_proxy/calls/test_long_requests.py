"""Long requests are read, shown, edited and recorded in worker threads, fairly between connections."""

from __future__ import annotations

import asyncio
import gc
import gzip
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType

import pytest
from google.protobuf.message import Message

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.core.services import CoreServices
from runtimeproxy.frontends.cri_proxy.calls.grpc_framing import frame_message
from runtimeproxy.frontends.cri_proxy.calls.intercepted_call import MAX_PARTS_BYTES
from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallServices, CallSettings
from runtimeproxy.frontends.cri_proxy.calls.long_work import Check, LongWork, StoppedError
from runtimeproxy.frontends.cri_proxy.interception import DEFAULT_MAX_MESSAGE_BYTES, Outcome
from runtimeproxy.hooks import CLEAR, ContainerChange, MountSpec, PodChange, PodView
from runtimeproxy.hooks.remote.registrations import HOOK_NAMES
from runtimeproxy.pods.records import PodRecord
from runtimeproxy.testing.builders import container_config, pod_sandbox_config
from tests.frontends.cri_proxy.calls.scripted import (
    CONTAINER_ID,
    POD_ID,
    RecordedReply,
    Surroundings,
    create,
    policy,
    server,
    waited,
)

MANY = {f"key-{number:06}": "value" for number in range(12_000)}
"""About 256 KiB, which any pod's author may set."""

SHARES = ContainerChange(annotations={"added": "yes"})


@pytest.fixture
def in_loop(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of functions that copied many entries in the loop's thread."""
    found: list[str] = []
    from cri_api import parsing
    from runtimeproxy.frontends.cri_proxy.calls import messages, run_pod_sandbox, update_resources
    from runtimeproxy.pods import resources

    def watch(module: object, name: str) -> None:
        original = getattr(module, name)

        def watched(entries: object, *args: object, **named: object) -> object:
            if threading.current_thread() is threading.main_thread() and len(entries) > 1000:  # type: ignore[arg-type]
                found.append(name)
            return original(entries, *args, **named)

        monkeypatch.setattr(module, name, watched)

    for module in (messages, resources):
        watch(module, "read_entries")
    from runtimeproxy.frontends.cri_proxy.calls import create_container

    for module in (run_pod_sandbox, create_container, resources):
        watch(module, "compact")
    for module in (run_pod_sandbox, create_container, update_resources, resources):
        watch(module, "kept_annotations")
    whole = parsing._Pieces.walk

    def walk(self: parsing._Pieces, *args: object) -> None:
        if threading.current_thread() is threading.main_thread():
            found.append("parse")
        whole(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(parsing._Pieces, "walk", walk)
    return found


def big_pod() -> api_pb2.PodSandboxConfig:
    return pod_sandbox_config(annotations=MANY)


async def test_a_life_with_many_annotations(desk: Surroundings, in_loop: list[str]) -> None:
    """The loop's thread copies none of them: not for parse, views, edits, records or hooks."""
    asked = policy(
        pod=PodChange(annotations={"added": "yes"}),
        container=SHARES,
        on_started=None,
        on_stopped=None,
        on_removed=None,
    )
    hooks = server(dict.fromkeys(HOOK_NAMES.values()))
    await desk.load(asked, hooks)
    run = await desk.run_pod(big_pod(), POD_ID)
    assert (await run.sent(api_pb2.RunPodSandboxRequest)).config.annotations["added"] == "yes"
    config = container_config(annotations=MANY)
    made = await desk.create(POD_ID, big_pod(), config, CONTAINER_ID)
    sent = await made.sent(api_pb2.CreateContainerRequest)
    assert {**MANY, "added": "yes"}.items() <= dict(sent.config.annotations).items()
    await desk.idle()
    of_container = api_pb2.StartContainerRequest(container_id=CONTAINER_ID)
    await desk.call("StartContainer", of_container).succeeded(api_pb2.StartContainerResponse())
    update = api_pb2.UpdateContainerResourcesRequest(container_id=CONTAINER_ID, annotations=MANY)
    update.linux.cpu_shares = 5
    answer = api_pb2.UpdateContainerResourcesResponse()
    await desk.call("UpdateContainerResources", update).succeeded(answer)
    short = api_pb2.UpdateContainerResourcesRequest(container_id=CONTAINER_ID, annotations={"new": "x"})
    await desk.call("UpdateContainerResources", short).succeeded(answer)
    record = desk.store.containers.get(CONTAINER_ID)
    assert record is not None
    assert {**MANY, "added": "yes", "new": "x"}.items() <= record.annotations.items()
    assert record.booked.cpu_shares == 5
    stop = api_pb2.StopContainerRequest(container_id=CONTAINER_ID)
    await desk.call("StopContainer", stop).succeeded(api_pb2.StopContainerResponse())
    remove = api_pb2.RemoveContainerRequest(container_id=CONTAINER_ID)
    await desk.call("RemoveContainer", remove).succeeded(api_pb2.RemoveContainerResponse())
    stop_pod = api_pb2.StopPodSandboxRequest(pod_sandbox_id=POD_ID)
    await desk.call("StopPodSandbox", stop_pod).succeeded(api_pb2.StopPodSandboxResponse())
    remove_pod = api_pb2.RemovePodSandboxRequest(pod_sandbox_id=POD_ID)
    await desk.call("RemovePodSandbox", remove_pod).succeeded(api_pb2.RemovePodSandboxResponse())
    await desk.idle()
    assert in_loop == []
    assert {method for method, _ in asked.seen} == set(type(asked).answers)
    assert {hook for hook, _ in hooks.seen} == {str(hook) for hook in HOOK_NAMES.values()}
    for name, view in (*asked.seen, *hooks.seen):
        shown = view if isinstance(view, PodView) else view.pod
        assert MANY.items() <= shown.annotations.items(), name


async def test_the_record_is_there_when_the_answer_comes(desk: Surroundings) -> None:
    """Also of a long request whose sandbox was never seen, and that no policy is asked about."""
    await desk.load()
    await desk.create(POD_ID, big_pod(), container_config(annotations=MANY), CONTAINER_ID)
    container, pod = desk.store.containers.get(CONTAINER_ID), desk.store.pods.get(POD_ID)
    assert container is not None
    assert pod is not None
    assert MANY.items() <= container.annotations.items()
    assert MANY.items() <= pod.annotations.items()


async def test_the_request_is_dropped_when_it_is_sent(desk: Surroundings) -> None:
    """The runtime may take long: what is needed then is the record."""
    await desk.load(policy(container=SHARES, on_started=None))
    await desk.run_pod(big_pod(), POD_ID)
    call = desk.call("CreateContainer", create(annotations=MANY))
    await call.reply.done()
    await desk.idle()
    assert kept_bytes(call.handler) < 1000
    await call.succeeded(api_pb2.CreateContainerResponse(container_id=CONTAINER_ID))


def kept_bytes(handler: object) -> int:
    """The request in all its forms, as far as a handler keeps it."""
    shared = (type, FunctionType, dict, asyncio.Future, CallServices, CoreServices)
    elsewhere = (*shared, RecordedReply, PodRecord)
    todo: list[object] = [handler]
    seen: dict[int, object] = {}
    size_bytes = 0
    while todo:
        each = todo.pop()
        if id(each) in seen or isinstance(each, elsewhere):
            continue
        seen[id(each)] = each
        if isinstance(each, bytes):
            size_bytes += len(each)
        elif isinstance(each, Message):
            size_bytes += each.ByteSize()
        elif isinstance(each, Mapping):
            size_bytes += sum(map(len, each))
        else:
            todo += [*getattr(each, "__dict__", {}).values(), *gc.get_referents(each)]
    return size_bytes


@pytest.mark.parametrize(
    "encode", [frame_message, lambda body: b"\1" + frame_message(gzip.compress(body, 1))[1:]]
)
async def test_more_parts_than_are_read(desk: Surroundings, encode: Callable[[bytes], bytes]) -> None:
    """They are found out before anything is parsed; a long opaque field is none."""
    asked = policy(pod=PodChange(annotations={"added": "yes"}))
    await desk.load(asked)
    request = api_pb2.RunPodSandboxRequest(config=pod_sandbox_config())
    tiny = request.SerializeToString() + many_annotations(MAX_PARTS_BYTES)
    call = desk.call("RunPodSandbox", encode(tiny), encoding="gzip")
    await call.reply.done()
    assert call.reply.forwarded == [None]
    assert desk.failures.causes == ["TooManyPartsError"]
    assert not asked.seen
    blob = b"\xaa\x7d" + b"\x80\x80\x80\x07" + bytes(14 * 1024 * 1024)  # field 2005, 14 MiB
    call = desk.call("RunPodSandbox", encode(request.SerializeToString() + blob), encoding="gzip")
    await call.reply.done()
    frame = call.reply.forwarded[0]
    assert frame is not None
    assert frame.endswith(blob)
    assert len(asked.seen) == 1


def many_annotations(size_bytes: int) -> bytes:
    """A sandbox's configuration with annotations of 16 bytes each, as bytes of a request."""
    entries = b"".join(b"\x3a\x0d\x0a\x08%08d\x12\x01x" % number for number in range(size_bytes // 15 + 1))
    length = len(entries)
    head = bytes(((length >> shift) & 0x7F) | 0x80 for shift in (0, 7, 14)) + bytes([length >> 21])
    return b"\x0a" + head + entries


async def test_a_call_that_gives_up_stops_its_thread(desk: Surroundings) -> None:
    """And the next call of the connection is read after that."""
    work = desk.services.long_work
    stopped = threading.Event()
    begun = threading.Event()

    def endless(check: Check) -> None:
        try:
            while True:
                begun.set()
                check()
        except StoppedError:
            stopped.set()
            raise

    giving_up = asyncio.ensure_future(work.run("one client", endless))
    assert await asyncio.to_thread(begun.wait, 30)
    giving_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await giving_up
    assert await work.run("one client", lambda check: "done") == "done"
    assert stopped.is_set()


async def test_one_connection_takes_one_thread() -> None:
    """Others are served beside it, however much it sends."""
    let_go = threading.Event()
    with ThreadPoolExecutor(2) as executor:
        work = LongWork(executor)
        busy = [asyncio.ensure_future(work.run("busy", lambda check: waited(let_go))) for _ in range(20)]
        await asyncio.sleep(0)
        for _ in range(3):
            assert await work.run("other", lambda check: "served") == "served"
        busy[10].cancel()
        let_go.set()
        assert (await asyncio.gather(*busy, return_exceptions=True)).count(None) == 19
    assert not len(work)


async def test_free_memory_is_given_back_after_long_requests() -> None:
    given_back = asyncio.Event()
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as executor:

        def give_back() -> None:
            loop.call_soon_threadsafe(given_back.set)

        work = LongWork(executor, give_back)
        await work.run("client", lambda check: None, 10 * 1024 * 1024)
        async with asyncio.timeout(30):
            await given_back.wait()


async def test_a_call_is_not_held_longer_by_others_of_its_connection() -> None:
    """Between reading it and showing it to policies, others may have their turns."""
    desk = Surroundings(CallSettings(budget_s=0.2))
    work = desk.services.long_work
    let_go = threading.Event()
    await desk.load(policy(pod=PodChange(annotations={"added": "yes"})))
    call = desk.call("RunPodSandbox", api_pb2.RunPodSandboxRequest(config=big_pod()))
    other = asyncio.ensure_future(work.run(None, lambda check: waited(let_go)))
    await call.reply.done()
    assert call.reply.forwarded == [None]
    assert desk.failures.causes == ["NoDecisionError"]
    let_go.set()
    await other
    await desk.close()


async def test_a_record_that_takes_too_long_is_left_out() -> None:
    """What policies decided counts; the records are compared with the runtime once it has answered."""
    desk = Surroundings(CallSettings(budget_s=0.2))
    let_go = threading.Event()
    await desk.load()
    call = desk.call("RunPodSandbox", api_pb2.RunPodSandboxRequest(config=big_pod()))
    from runtimeproxy.frontends.cri_proxy.calls.run_pod_sandbox import RunPodSandbox

    original = RunPodSandbox.prepare
    try:
        RunPodSandbox.prepare = lambda self: waited(let_go)  # type: ignore[method-assign]
        await call.reply.done()
    finally:
        RunPodSandbox.prepare = original  # type: ignore[method-assign]
        let_go.set()
    assert call.reply.forwarded == [None]
    await call.ended(Outcome.SUCCEEDED)
    assert desk.unsettled == 1
    await desk.close()


def compressed(request: api_pb2.RunPodSandboxRequest) -> bytes:
    return b"\1" + frame_message(gzip.compress(request.SerializeToString()))[1:]


async def test_what_a_compressed_request_opens_to_is_charged(desk: Surroundings) -> None:
    """First as much as it may become, then what it is."""
    await desk.load()
    request = api_pb2.RunPodSandboxRequest(config=pod_sandbox_config(annotations={"long": "x" * 200_000}))
    call = desk.call("RunPodSandbox", compressed(request), encoding="gzip")
    await call.reply.done()
    assert call.reply.reserved == [DEFAULT_MAX_MESSAGE_BYTES, request.ByteSize()]
    short = api_pb2.RunPodSandboxRequest(config=pod_sandbox_config(annotations={"short": "x" * 20_000}))
    call = desk.call("RunPodSandbox", compressed(short), encoding="gzip")
    await call.reply.done()
    assert call.reply.reserved in ([], [short.ByteSize()])


async def test_no_more_than_a_slice_is_opened_before_there_is_room() -> None:
    """A call that finds none in its time passes as it came, and takes no thread meanwhile."""
    desk = Surroundings(CallSettings(budget_s=0.2))
    await desk.load()
    request = api_pb2.RunPodSandboxRequest(config=pod_sandbox_config(annotations={"long": "x" * 200_000}))
    reply = RecordedReply()
    reply.has_room = False
    call = desk.call("RunPodSandbox", compressed(request), encoding="gzip", reply=reply)
    await call.reply.done()
    assert call.reply.forwarded == [None]
    assert call.reply.reserved == [DEFAULT_MAX_MESSAGE_BYTES]
    assert desk.failures.causes == ["NoDecisionError"]
    await desk.close()


def repeated(name: str, **fields: str) -> Callable[[api_pb2.ContainerConfig], None]:
    """Fills a list of a container's configuration with one entry, again and again."""

    def fill(config: api_pb2.ContainerConfig) -> None:
        entries = getattr(config, name)
        for _ in range(100_000):
            entries.add(**fields)

    return fill


def variables(config: api_pb2.ContainerConfig) -> None:
    for number in range(100_000):
        config.envs.add(key=str(number))


@pytest.mark.parametrize(
    "fill",
    [
        pytest.param(repeated("envs", key="ONE"), id="one variable"),
        pytest.param(variables, id="variables"),
        pytest.param(repeated("mounts", host_path="/a"), id="mounts"),
        pytest.param(repeated("devices", host_path="/a"), id="devices"),
        pytest.param(lambda config: config.annotations.update(MANY), id="annotations"),
        pytest.param(lambda config: config.linux.resources.unified.update(MANY), id="unified"),
    ],
)
async def test_a_hundred_thousand_parts_take_no_longer_than_they_are_many(
    desk: Surroundings, fill: Callable[[api_pb2.ContainerConfig], object]
) -> None:
    """Work that grows with the square of their number takes minutes. Measured: up to 1 s."""
    change = ContainerChange(
        env={"ONE": CLEAR, **{str(number): CLEAR for number in range(0, 100_000, 10)}, "NEW": "x"},
        annotations=dict.fromkeys(MANY, CLEAR),
        mounts=tuple(MountSpec(host_path="/", container_path=f"/{number}") for number in range(1000)),
    )
    asked = policy(container=lambda view: change if len(view.env) >= 0 else None)
    await desk.load(asked)
    request = api_pb2.CreateContainerRequest(pod_sandbox_id=POD_ID, sandbox_config=pod_sandbox_config())
    fill(request.config)
    before_s = time.process_time()
    call = desk.call("CreateContainer", request)
    sent = await call.sent(api_pb2.CreateContainerRequest)
    await call.succeeded(api_pb2.CreateContainerResponse(container_id=CONTAINER_ID))
    assert time.process_time() - before_s < 20
    assert asked.seen
    left = {variable.key for variable in sent.config.envs}
    assert "NEW" in left
    assert not {"ONE", "10", "99990"} & left
    assert not sent.config.annotations
