"""A kube-apiserver with etcd, as processes of their own on free ports of this host."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from runtimeproxy.kubernetes.access import load_access
from runtimeproxy.kubernetes.client import ApiClient, ApiError
from tests.lab.deadline import wait_until
from tests.lab.ports import free_port
from tests.lab.programs import go_tool

NAMESPACE: Final = "koordinator-system"
_START_S: Final = 120.0
_END_S: Final = 30.0


class KubeApiServer:
    """Both programs, from `with` to the end of its block.

    Attributes:
        admin: A client that may do everything.
        port: The API server's, of 127.0.0.1.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._etcd_port, self._peer_port, self.port = (free_port() for _ in range(3))
        self._etcd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._certificates = folder / "certificates"
        (folder / "tokens.csv").write_text('admin-token,admin,1,"system:masters"\n')
        self.admin = ApiClient(lambda: load_access(self.kubeconfig("admin", "admin-token")))

    def __enter__(self) -> Self:
        try:
            self._start_etcd()
            self.start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        self.admin.close()
        self.kill()
        _end(self._etcd)

    def start(self) -> None:
        """Starts the API server, and waits until it answers."""
        key = self._folder / "service-account.key"
        if not key.exists():
            made = rsa.generate_private_key(65537, 2048)
            pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
            key.write_bytes(made.private_bytes(pem, serialization.PrivateFormat.TraditionalOpenSSL, plain))
        with (self._folder / "kube-apiserver.log").open("ab") as log:
            self._server = subprocess.Popen(
                [
                    go_tool("kube-apiserver"),
                    f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
                    "--bind-address=127.0.0.1",
                    "--advertise-address=127.0.0.1",
                    f"--secure-port={self.port}",
                    f"--cert-dir={self._certificates}",
                    f"--token-auth-file={self._folder / 'tokens.csv'}",
                    "--authorization-mode=RBAC",
                    "--service-account-issuer=https://lab",
                    f"--service-account-key-file={key}",
                    f"--service-account-signing-key-file={key}",
                    "--disable-admission-plugins=ServiceAccount",
                    "--service-cluster-ip-range=10.96.0.0/24",
                ],
                stdout=log,
                stderr=log,
            )
        wait_until(self._is_ready, "kube-apiserver", _START_S)

    def kill(self) -> None:
        """Kills the API server; etcd and what is in it stay."""
        _end(self._server)
        self._server = None

    def forget(self) -> None:
        """Has etcd forget all changes so far."""
        status = self._ask_etcd("maintenance/status", {})
        self._ask_etcd("kv/compaction", {"revision": status["header"]["revision"], "physical": True})

    def kubeconfig(self, name: str, token: str = "", token_file: Path | None = None) -> Path:
        """A kubeconfig with this token."""
        path = self._folder / f"{name}.kubeconfig"
        user = {"tokenFile": str(token_file)} if token_file is not None else {"token": token}
        cluster = {
            "server": f"https://127.0.0.1:{self.port}",
            "certificate-authority": str(self._certificates / "apiserver.crt"),
        }
        document = {
            "current-context": "lab",
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": name}}],
            "clusters": [{"name": "lab", "cluster": cluster}],
            "users": [{"name": name, "user": user}],
        }
        text = json.dumps(document)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
        return path

    def apply(self, text: str) -> None:
        """Creates the objects of a manifest."""
        for document in yaml.safe_load_all(text):
            self.admin.send("POST", path_of(document), document)

    def replace(self, document: dict[str, Any], part: str = "") -> None:
        """Changes the given fields of an object, or of a part of it such as `status`."""
        path = "/".join(filter(None, (path_of(document), document["metadata"]["name"], part)))
        self.admin.send("PATCH", path, document, "application/merge-patch+json")

    def upsert(self, document: dict[str, Any]) -> None:
        """Makes an object, or changes the given fields of it."""
        try:
            self.replace(document)
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            self.apply(json.dumps(document))

    def delete(self, document: dict[str, Any]) -> None:
        options: dict[str, Any] = {"gracePeriodSeconds": 0}
        self.admin.send("DELETE", f"{path_of(document)}/{document['metadata']['name']}", options)

    def get(self, document: dict[str, Any]) -> dict[str, Any]:
        """The object as it is now."""
        with self.admin.get(f"{path_of(document)}/{document['metadata']['name']}", {}) as response:
            found: dict[str, Any] = json.loads(b"".join(response.pieces()))
        return found

    def account_token(self, account: str) -> str:
        """A new token of a service account."""
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token: str = self.admin.send("POST", path, request)["status"]["token"]
        return token

    def _start_etcd(self) -> None:
        url, peers = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        with (self._folder / "etcd.log").open("wb") as log:
            self._etcd = subprocess.Popen(
                [
                    go_tool("etcd"),
                    f"--data-dir={self._folder / 'etcd'}",
                    f"--listen-client-urls={url}",
                    f"--advertise-client-urls={url}",
                    f"--listen-peer-urls={peers}",
                    f"--initial-advertise-peer-urls={peers}",
                    f"--initial-cluster=default={peers}",
                    "--unsafe-no-fsync",
                ],
                stdout=log,
                stderr=log,
            )

    def _is_ready(self) -> bool:
        assert self._server is not None
        if self._server.poll() is not None:
            raise AssertionError((self._folder / "kube-apiserver.log").read_text()[-2000:])
        try:
            with self.admin.get("/readyz", {}) as response:
                return b"".join(response.pieces()) == b"ok"
        except ApiError:
            return False

    def _ask_etcd(self, call: str, body: dict[str, Any]) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._etcd_port}/v3/{call}"
        request = urllib.request.Request(url, json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310 - it is http
            found: dict[str, Any] = json.loads(response.read())
        return found


def path_of(document: dict[str, Any]) -> str:
    """The path of the objects of a kind."""
    version, kind = document["apiVersion"], document["kind"]
    plural = f"{kind.lower()[:-1]}ies" if kind.endswith("y") else f"{kind.lower()}s"
    namespace = document["metadata"].get("namespace")
    root = "/api/v1" if version == "v1" else f"/apis/{version}"
    return f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        process.kill()
        process.wait(_END_S)
