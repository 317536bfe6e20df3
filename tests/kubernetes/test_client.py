"""The client on real sockets: TLS, credentials that rotate, and servers that misbehave."""

from __future__ import annotations

import base64
import threading
from pathlib import Path

import pytest
import trustme

from runtimeproxy.kubernetes import client as client_module
from runtimeproxy.kubernetes.access import load_access
from runtimeproxy.kubernetes.client import ApiClient, ApiError, Timeouts
from tests.kubernetes.api_server import ApiServer, cutting, hanging, refusing
from tests.kubernetes.conftest import PATIENT, WriteKubeconfig
from tests.lab.ports import free_port

PATH = "/api/v1/pods"


def _body(client: ApiClient) -> bytes:
    with client.get(PATH, {}) as response:
        return b"".join(response.pieces())


def test_a_token_file_that_rotates(
    server: ApiServer, write_kubeconfig: WriteKubeconfig, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("old")
    path = write_kubeconfig(server.url, tokenFile="token")
    client = ApiClient(lambda: load_access(path), PATIENT)
    server.tokens = {"new"}
    with pytest.raises(ApiError, match="401: Unauthorized") as caught:
        _body(client)
    assert caught.value.status == 401
    (tmp_path / "token").write_text("new")
    assert b"TestList" in _body(client)
    client.close()


def test_tls_with_an_authority(
    tls_server: ApiServer, authority: trustme.CA, write_kubeconfig: WriteKubeconfig
) -> None:
    data = base64.b64encode(authority.cert_pem.bytes()).decode()
    path = write_kubeconfig(tls_server.url, {"certificate-authority-data": data})
    client = ApiClient(lambda: load_access(path), PATIENT)
    assert b"TestList" in _body(client)
    # The authority is replaced: the next request uses the new one, and does not trust the server.
    other = base64.b64encode(trustme.CA(key_type=trustme.KeyType.ECDSA).cert_pem.bytes()).decode()
    write_kubeconfig(tls_server.url, {"certificate-authority-data": other})
    with pytest.raises(ApiError, match="the server's certificate is not accepted"):
        _body(client)
    client.close()


def test_the_name_in_the_certificate_counts(
    tls_server: ApiServer, authority: trustme.CA, write_kubeconfig: WriteKubeconfig
) -> None:
    data = base64.b64encode(authority.cert_pem.bytes()).decode()
    cluster: dict[str, object] = {"certificate-authority-data": data, "tls-server-name": "another"}
    path = write_kubeconfig(tls_server.url, cluster)
    client = ApiClient(lambda: load_access(path), PATIENT)
    with pytest.raises(ApiError, match="certificate is not accepted"):
        _body(client)
    client.close()


def test_a_kubeconfig_that_goes_bad_says_so(server: ApiServer, write_kubeconfig: WriteKubeconfig) -> None:
    path = write_kubeconfig(server.url)
    client = ApiClient(lambda: load_access(path), PATIENT)
    assert _body(client)
    path.write_text("{}")
    with pytest.raises(ApiError, match="current-context: is missing"):
        _body(client)
    client.close()


def test_a_server_that_is_away(write_kubeconfig: WriteKubeconfig) -> None:
    path = write_kubeconfig(f"http://127.0.0.1:{free_port()}")
    client = ApiClient(lambda: load_access(path), PATIENT)
    with pytest.raises(ApiError, match="Connection refused"):
        _body(client)
    client.close()


def test_errors_have_status_retry_and_causes(server: ApiServer, client: ApiClient) -> None:
    server.faults.append((PATH, refusing(503, "starting\nup", Retry_After="7")))
    with pytest.raises(ApiError, match="503: starting up") as caught:
        _body(client)
    assert (caught.value.status, caught.value.retry_after_s) == (503, 7.0)
    details = {"causes": [{"reason": "DisruptionBudget"}, "x"]}
    server.faults.append((PATH, lambda handler: handler.answer(429, {"details": details, "message": 7})))
    with pytest.raises(ApiError) as caught:
        _body(client)
    assert (caught.value.status, caught.value.causes) == (429, frozenset({"DisruptionBudget"}))
    server.faults.append((PATH, lambda handler: handler.answer(500, b"<html>")))
    with pytest.raises(ApiError, match="500: Internal Server Error"):
        _body(client)
    server.faults.append((PATH, lambda handler: handler.answer(302, b"", Location="http://example.org/")))
    with pytest.raises(ApiError, match="302"):
        _body(client)


def test_a_response_that_is_cut_off(server: ApiServer, client: ApiClient) -> None:
    server.faults.append((PATH, cutting(b'{"kind"')))
    with pytest.raises(ApiError):
        _body(client)
    assert b"TestList" in _body(client)


def test_a_server_that_hangs(server: ApiServer, write_kubeconfig: WriteKubeconfig) -> None:
    path = write_kubeconfig(server.url)
    client = ApiClient(lambda: load_access(path), Timeouts(response_s=0.1))
    server.faults.append((PATH, hanging))
    with pytest.raises(ApiError, match="no answer in time"):
        _body(client)
    client.close()


def test_an_answer_that_trickles_in_ends_at_the_whole_time(
    server: ApiServer, write_kubeconfig: WriteKubeconfig
) -> None:
    path = write_kubeconfig(server.url)
    client = ApiClient(lambda: load_access(path), Timeouts(total_s=0.0))
    with pytest.raises(ApiError, match="takes too long"):
        _body(client)
    client.close()


def test_answers_are_bounded(server: ApiServer, client: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_ANSWER_BYTES", 100)
    server.answers["/x"] = (200, {"a": "b" * 200})
    with pytest.raises(ApiError, match="more than 100 bytes"):
        client.send("POST", "/x", {})
    server.answers["/x"] = (200, b"[1]")
    with pytest.raises(ApiError, match="the answer is a list"):
        client.send("POST", "/x", {})


def test_objects_are_sent(server: ApiServer, client: ApiClient) -> None:
    assert client.send("PATCH", "/x", {"a": "ä"}, "application/merge-patch+json")["status"] == "Success"
    (request,) = server.requests
    assert (request.method, request.body) == ("PATCH", {"a": "ä"})
    assert request.content_type == "application/merge-patch+json"


def test_closing_ends_a_read_in_another_thread(server: ApiServer, client: ApiClient) -> None:
    began, ended = threading.Event(), threading.Event()

    def read() -> None:
        query = {"watch": "true", "resourceVersion": "100"}
        with client.get(PATH, query, is_watch=True, pause_s=60) as response:
            began.set()
            try:
                list(response.pieces())
            except ApiError:
                ended.set()
            ended.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert began.wait(60)
    client.close()
    assert ended.wait(60)
    thread.join()
    with pytest.raises(ApiError, match="the client is closed"):
        _body(client)
