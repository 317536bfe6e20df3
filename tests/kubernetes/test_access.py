"""Kubeconfigs and service accounts: what is used, and what is refused in which words."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import trustme

from runtimeproxy.kubernetes import access
from runtimeproxy.kubernetes.access import AccessError, load_access
from tests.kubernetes.conftest import WriteKubeconfig

HTTPS = "https://api.example.org:6443"


def test_a_token_of_the_kubeconfig(write_kubeconfig: WriteKubeconfig, authority: trustme.CA) -> None:
    data = base64.b64encode(authority.cert_pem.bytes()).decode()
    path = write_kubeconfig(HTTPS + "/", {"certificate-authority-data": data}, token="secret")  # noqa: S106 - no real one
    found = load_access(path)
    assert (found.server, found.token(), found.source) == (HTTPS, "secret", str(path))
    assert found.ssl_context is not None
    assert "secret" not in repr(found)
    assert found.is_current


def test_files_are_relative_to_the_kubeconfig_and_may_change(
    write_kubeconfig: WriteKubeconfig, authority: trustme.CA, tmp_path: Path
) -> None:
    (tmp_path / "ca.crt").write_bytes(authority.cert_pem.bytes())
    own = authority.issue_cert("node", key_type=trustme.KeyType.ECDSA)
    (tmp_path / "node.pem").write_bytes(own.private_key_and_cert_chain_pem.bytes())
    (tmp_path / "token").write_text("first\n")
    path = write_kubeconfig(
        HTTPS,
        {"certificate-authority": "ca.crt", "tls-server-name": "kubernetes"},
        tokenFile="token",
        **{"client-certificate": "node.pem", "client-key": "node.pem"},
    )
    found = load_access(path)
    assert found.server_name == "kubernetes"
    assert found.token() == "first"
    (tmp_path / "token").write_text("second\n")
    assert found.token() == "second"
    assert found.is_current
    new = authority.issue_cert("node", key_type=trustme.KeyType.ECDSA)
    (tmp_path / "node.pem").write_bytes(new.private_key_and_cert_chain_pem.bytes())
    assert not found.is_current


def test_the_service_account_of_a_pod(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ca.crt").write_bytes(authority.cert_pem.bytes())
    (tmp_path / "token").write_text("of-the-pod")
    monkeypatch.setattr(access, "SERVICE_ACCOUNT_DIR", tmp_path)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    found = load_access(None, environ)
    assert (found.server, found.token()) == ("https://[fd00::1]:443", "of-the-pod")
    with pytest.raises(AccessError, match=r"set kubernetes\.kubeconfig"):
        load_access(None, {})


@pytest.mark.parametrize(
    ("cluster", "user", "reason"),
    [
        ({}, {"exec": {"command": "aws"}}, r"users\[node\]\.exec: runs a program for credentials"),
        ({}, {"auth-provider": {"name": "gcp"}}, r"auth-provider: is of no present Kubernetes"),
        ({}, {"username": "admin", "password": "x"}, r"username: is of no present Kubernetes"),
        ({}, {"as": "root"}, r"users\[node\]\.as: acts as another user"),
        (
            {"insecure-skip-tls-verify": True},
            {},
            r"clusters\[lab\]\.insecure-skip-tls-verify: trusts any server",
        ),
        ({"proxy-url": "http://proxy"}, {}, r"proxy-url: is not supported"),
        ({"certificate-authority-data": "!"}, {}, r"certificate-authority-data: is not base64"),
        (
            {"certificate-authority-data": "eHg="},
            {},
            r"certificate-authority-data: has no usable certificate",
        ),
        ({"certificate-authority": "absent"}, {}, r"certificate-authority: there is no .*absent"),
        ({}, {"client-certificate-data": "eHg="}, r"client-certificate and client-key: needs both"),
        ({}, {"client-certificate-data": "eHg=", "client-key-data": "eHg="}, r"do not fit together"),
        ({}, {"token": "two words"}, r"token: holds no token"),
        ({"server": "http://api.example.org"}, {}, r"http:// is for this host only"),
        ({"server": "api.example.org"}, {}, r"server: is 'api.example.org'; write https://host:port"),
        ({"server": "https://user:pw@api"}, {}, r"write https://host:port"),
        ({"server": "https://api:port"}, {}, r"clusters\[lab\]\.server: "),
        ({"server": 7}, {}, r"server: is a number, not a text"),
    ],
)
def test_what_is_refused(
    write_kubeconfig: WriteKubeconfig, cluster: dict[str, Any], user: dict[str, Any], reason: str
) -> None:
    path = write_kubeconfig(HTTPS, cluster, **user)
    with pytest.raises(AccessError, match=reason):
        load_access(path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "current-context: is missing"),
        ("[]", "is a list, not a mapping"),
        ("current-context: x", r"contexts: has no 'x'"),
        ("{current-context: x, contexts: [{name: x, context: {cluster: y}}]}", r"clusters: has no 'y'"),
        ("a: *b", "aliases are not allowed"),
        ("\x00", "line 1|not"),
    ],
)
def test_what_is_no_kubeconfig(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(AccessError, match=reason):
        load_access(path)


def test_files_that_cannot_be_read(tmp_path: Path, write_kubeconfig: WriteKubeconfig) -> None:
    with pytest.raises(AccessError, match=r"there is no .*/absent"):
        load_access(tmp_path / "absent")
    with pytest.raises(AccessError, match="is not a regular file"):
        load_access(tmp_path)
    found = load_access(write_kubeconfig("http://127.0.0.1:1", tokenFile="token"))
    with pytest.raises(AccessError, match=r"there is no .*/token"):
        found.token()
    (tmp_path / "token").write_text("")
    with pytest.raises(AccessError, match="token: holds no token"):
        found.token()
