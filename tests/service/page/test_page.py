"""What the listener answers for the page: files, data, and requests that it does not serve."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.service.http import HttpRequest, HttpResponse
from runtimeproxy.service.page.page import MOST_ASKING, NodePage, is_own_host
from runtimeproxy.testing import FakeRuntime
from tests.daemon.driving import batch_pod
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.programs import REPOSITORY
from tests.lab.proxy_process import ProxyOptions, ProxyProcess

NAMES = frozenset({"node-a", "node-a.example.org"})
PARTS = ("status", "node", "pods", "audit", "auditFrom")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1:9751", True),
        ("10.0.0.5", True),
        ("[::1]:9751", True),
        ("[::1]", True),
        ("fe80::1", True),
        ("localhost", True),
        ("LOCALHOST:9751", True),
        ("page.localhost:1", True),
        ("Node-A:9751", True),
        ("node-a.example.org", True),
        ("", False),
        ("node-a.attacker.example", False),
        ("attacker.example:9751", False),
        ("localhost.attacker.example", False),
        ("127.0.0.1.attacker.example", False),
        ("[attacker.example]", False),
        ("[127.0.0.1]attacker.example", False),
        ("[::1]attacker.example:9751", False),
        ("[::1", False),
        ("127.0.0.1:80attacker.example", False),
        ("localhost:80@attacker.example", False),
        ("1", False),
    ],
)
def test_hosts_that_another_site_cannot_have(host: str, expected: bool) -> None:
    assert is_own_host(host, NAMES) is expected


def test_without_the_page_nothing_of_it_is_imported() -> None:
    program = (
        "import sys, runtimeproxy.service.daemon, runtimeproxy.service.metrics.collector\n"
        "print([name for name in sys.modules if name.startswith('runtimeproxy.service.page')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_texts_go_into_text_nodes_only() -> None:
    folder = REPOSITORY / "runtimeproxy" / "service" / "page"
    script = (folder / "page.js").read_text()
    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
        assert name not in script
    document = (folder / "page.html").read_text()
    assert "<script src=" in document
    assert not any(word in document for word in ("<script>", "<style", " style=", " onload=", "://"))
    assert "url(" not in (folder / "page.css").read_text()


class Connection(http.client.HTTPConnection):
    """A client of a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(str(self._path))


class Site:
    """A daemon with a listener, and the fake runtime behind it."""

    def __init__(self, folder: Path, *, has_page: bool) -> None:
        self.socket = folder / "metrics.sock"
        self.runtime = FakeRuntime(folder / "runtime.sock")
        config = f"[metrics]\nlisten = '{self.socket}'\npage = {str(has_page).lower()}\n"
        config += f"[cgroups]\nenabled = false\n[node]\nsysfs_root = '{folder / 'none'}'\n"
        options = ProxyOptions(str(folder / "runtime.sock"), config=config, is_forked=True)
        self.daemon = ProxyProcess(folder, options)

    def get(
        self, path: str, method: str = "GET", host: str = "localhost"
    ) -> tuple[int, dict[str, str], bytes]:
        connection = Connection(self.socket)
        try:
            connection.request(method, path, headers={"Host": host})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def data(self, tags: list[str] | None = None) -> dict[str, Any]:
        status, _, body = self.get(f"/page/data?known={'.'.join(tags or [])}")
        assert status == 200
        found: dict[str, Any] = json.loads(body)
        return found


def sites(folder: Path, *, has_page: bool) -> Iterator[Site]:
    site = Site(folder, has_page=has_page)
    with site.runtime, site.daemon:
        wait_until(site.socket.exists, "the listener")
        yield site


@pytest.fixture(scope="module")
def site(module_folder: Path) -> Iterator[Site]:
    yield from sites(module_folder, has_page=True)


@pytest.mark.parametrize(
    ("path", "content_type", "start"),
    [
        ("/page", "text/html; charset=utf-8", b"<!doctype html>"),
        ("/page?x=1", "text/html; charset=utf-8", b"<!doctype html>"),
        ("/page/page.css", "text/css; charset=utf-8", b"/*"),
        ("/page/page.js", "text/javascript; charset=utf-8", b"//"),
        ("/page/icon.svg", "image/svg+xml", b"<svg "),
        ("/page/data", "application/json", b"{"),
    ],
)
def test_what_is_served(site: Site, path: str, content_type: str, start: bytes) -> None:
    status, fields, body = site.get(path)
    assert (status, fields["Content-Type"]) == (200, content_type)
    assert body.startswith(start)
    assert fields["Cache-Control"] == "no-store"
    assert fields["X-Content-Type-Options"] == "nosniff"
    assert fields["Referrer-Policy"] == "no-referrer"
    assert fields["Cross-Origin-Resource-Policy"] == "same-origin"
    assert fields["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'; ")
    assert "unsafe" not in fields["Content-Security-Policy"]
    assert "Access-Control-Allow-Origin" not in fields
    status, fields, body = site.get(path, "HEAD")
    assert (status, int(fields["Content-Length"]) > 0, body) == (200, True, b"")


@pytest.mark.parametrize(
    ("path", "method", "host", "expected"),
    [
        ("/page/other", "GET", "localhost", 404),
        ("/page/../page/page.py", "GET", "localhost", 404),
        ("/page/page.py", "GET", "localhost", 404),
        ("/pages", "GET", "localhost", 404),
        ("/page", "POST", "localhost", 405),
        ("/page/data", "PUT", "localhost", 405),
        ("/page", "GET", "attacker.example", 421),
        ("/page/data", "GET", "attacker.example", 421),
        ("/page/pod?id=1", "GET", "attacker.example", 421),
        ("/", "GET", "attacker.example", 421),
        ("/page/pod", "GET", "localhost", 404),
        ("/page/pod?id=none", "GET", "localhost", 404),
        # Prometheus may use any name.
        ("/metrics", "GET", "prometheus.example", 200),
    ],
)
def test_other_requests(site: Site, path: str, method: str, host: str, expected: int) -> None:
    assert site.get(path, method, host)[0] == expected


def test_parts_that_are_known_are_left_out(site: Site) -> None:
    first = site.data()
    assert set(first) == {"tags", *PARTS}
    assert len(set(first["tags"])) == len(PARTS)
    again = site.data(first["tags"])
    # The status has numbers that change all the time.
    assert set(again) <= {"tags", "status"}
    assert set(site.data(["unknown"])) == {"tags", *PARTS}


def test_pods_and_decisions_come_and_go(site: Site) -> None:
    tags = site.data()["tags"]
    with CriClient(site.daemon.socket) as client:
        pod = batch_pod(client, "<b>batch</b>").run().create().start()

        def started() -> dict[str, Any] | None:
            found = site.data(tags)
            pods = found.get("pods", [])
            return found if pods and pods[0].get("containers") and found.get("audit") else None

        found = wait_until(started, "the pod on the page")
        assert [each["name"] for each in found["pods"]] == ["<b>batch</b>"]
        assert found["pods"][0]["policies"] == ["batch-resource"]
        fields = {each["field"] for each in found["audit"] if each["kind"] == "changed"}
        assert "resources.cpu_shares" in fields
        times = [each["time"] for each in found["audit"]]
        assert times == sorted(times, reverse=True)
        assert found["status"]["clients"]["watchers"] == 1
        pod.remove()
    wait_until(lambda: site.data()["pods"] == [], "the end of the pod")
    # The same as at the beginning, by its tag.
    assert "pods" not in site.data(tags)


def test_the_root_leads_to_the_page(site: Site) -> None:
    status, fields, body = site.get("/")
    assert (status, fields["Location"], body) == (302, "/page", b"")
    assert fields["Content-Security-Policy"].startswith("default-src 'none'; ")


def test_one_pod_is_explained_as_by_the_api(site: Site) -> None:
    with CriClient(site.daemon.socket) as client:
        api = api_pb2_grpc.RuntimeProxyStub(client.channel)
        pod = batch_pod(client, "explained").run().create().start()
        status, _, body = site.get(f"/page/pod?id={pod.id}")
        assert status == 200
        shown = json.loads(body)
        found = MessageToDict(api.Explain(api_pb2.ExplainRequest(pod=pod.id)))
        for answer in (shown, found):
            answer.pop("time")
        assert shown == {key: part for key, part in found.items() if key not in ("pod", "strategies")}
        reasons = [
            claim["reason"]
            for target in shown["targets"]
            for field in target["fields"]
            for claim in field["claims"]
        ]
        assert any("batch-cpu" in each and " = " in each for each in reasons)
        pod.remove()


def test_browsers_that_ask_for_one_pod_share_its_answer_and_few_wait() -> None:
    asked: list[str] = []

    class Explainer:
        async def explain(self, pod: str, _container: str) -> api_pb2.ExplainResponse:
            asked.append(pod)
            return api_pb2.ExplainResponse(notes=["b"])

    async def load() -> Any:
        return SimpleNamespace(explainer=Explainer())

    async def ask() -> list[HttpResponse]:
        with ThreadPoolExecutor(1) as thread:
            page = NodePage(load, thread)
            request = HttpRequest("/page/pod", "id=a", {"host": "localhost"})
            return await asyncio.gather(*(page.respond(request) for _ in range(MOST_ASKING + 1)))

    *answered, refused = asyncio.run(ask())
    assert [(each.status, each.data) for each in answered] == [("200 OK", b'{"notes":["b"]}')] * MOST_ASKING
    assert refused.status == "503 Service Unavailable"
    assert asked == ["a"]


def test_events_of_the_daemon_are_shown(site: Site) -> None:
    data = site.data()
    entries = data["audit"]
    assert data["auditFrom"] == {}, "none is missing"
    start = [each for each in entries if each["kind"] == "start"]
    assert [each["target"] for each in start] == ["daemon"]
    assert "hook" not in start[0]


def test_without_the_key_there_is_no_page(socket_folder: Path) -> None:
    for site in sites(socket_folder, has_page=False):
        assert site.get("/")[0] == 404
        assert site.get("/page")[0] == 404
        assert site.get("/page/data")[0] == 404
        assert site.get("/metrics")[0] == 200
