"""Gathers the facts for the checks: reads files, asks runtime and systemd; changes nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.doctor.checks import MANAGER_SERVICE, SERVICE
from runtimeproxy.doctor.configuration import check_on_node
from runtimeproxy.doctor.facts import (
    ApiServerFacts,
    Facts,
    FolderFacts,
    HookServerFacts,
    InputFile,
    PolicyFacts,
    QosManagerFacts,
    RuntimeFacts,
    SocketState,
)
from runtimeproxy.doctor.modes import ModeFacts, fixed_kubelet, left_undone_of, nri_disabled
from runtimeproxy.documents.files import is_denied, read_file
from runtimeproxy.documents.reading import InputError, json_value, parse_documents
from runtimeproxy.http2.client import RpcError
from runtimeproxy.kubelet_endpoints import (
    CONFIGURATION_FILES,
    RunningKubelet,
    calls_problem,
    endpoint_settings,
    running_kubelets,
)
from runtimeproxy.node.inputs import name_of_node
from runtimeproxy.node.koordlet import koordlets
from runtimeproxy.node.kubelet import CONFIG, CPU_MANAGER_STATE, MAX_BYTES, parse_config
from runtimeproxy.node.machine import CGROUPFS, SYSTEMD, guess_cgroup_driver
from runtimeproxy.node.object_folder import MAX_FILE_BYTES, SUFFIXES
from runtimeproxy.node.objects import Kind
from runtimeproxy.signals import is_served
from runtimeproxy.stubs import BlockingClient

if TYPE_CHECKING:
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.config.sources import SourceReading
    from runtimeproxy.hooks.carried import CarriedFields
    from runtimeproxy.hooks.remote.registrations import Registration
    from runtimeproxy.offline import Offline

TIMEOUT_S: Final = 5.0
"""Of each question to the runtime or to systemd."""
_NRI_SOCKET: Final = "var/run/nri/nri.sock"
"""Source: Koordinator pkg/koordlet/util/system, the default of the runtime's NRI socket."""
_KINDS: Final = re.compile(
    rb"""^[ \t-]*"?kind"?[ \t]*:[ \t]*"?(ConfigMap|Node|NodeSLO|NodeResourceTopology)"?[ \t]*,?[ \t]*$""",
    re.MULTILINE,
)
_PROPERTIES: Final = (
    *("LoadState", "ActiveState", "Result", "UnitFileState", "NeedDaemonReload", "NRestarts"),
    *("ProtectSystem", "ProtectControlGroups", "ProtectKernelTunables", "CapabilityBoundingSet"),
    *("ReadWritePaths", "ReadOnlyPaths", "StateDirectory", "RuntimeDirectory"),
    *("PrivateNetwork", "RestrictAddressFamilies", "IPAddressAllow", "IPAddressDeny"),
)


class ApiAnswer(NamedTuple):
    """The answer of the daemon's API."""

    version: str = ""
    error: str = ""
    problems: tuple[str, ...] = ()
    qos_manager: QosManagerFacts = QosManagerFacts()


def gather(
    reading: SourceReading,
    offline: Offline,
    carried: CarriedFields,
    answer: ApiAnswer,
    root: Path = Path("/"),
) -> Facts:
    settings = reading.settings
    findings = check_on_node(reading, offline, carried)
    configuration_denied = findings.take_denied() if os.geteuid() != 0 else []
    kubelets = tuple(running_kubelets(root))
    denied = tuple(_denied(settings, kubelets, root))
    kubelet_files = tuple(endpoint_settings(root))
    runtime = ask_runtime(settings.proxy.runtime_endpoint)
    policies = offline.policies.policies
    undone = left_undone_of(policies, carried)
    return Facts(
        settings=settings,
        user_id=os.geteuid(),
        denied=denied,
        configuration_problems=tuple(map(str, findings.problems)),
        configuration_warnings=tuple(map(str, findings.warnings)),
        configuration_denied=tuple(map(str, configuration_denied)),
        # An error of a whole source is one of the file.
        is_file_denied=any(not each.key for each in configuration_denied if each in reading.errors),
        policies=tuple(
            PolicyFacts(
                each.name,
                frozenset(each.policy.features),
                each.name in settings.policies,
                tuple(undone.get(each.name, ())),
            )
            for each in policies
        ),
        endpoint=socket_state(settings.proxy.endpoint),
        is_served=is_served(settings.proxy.endpoint),
        version=answer.version,
        api_error=answer.error,
        daemon_problems=answer.problems,
        qos_manager=answer.qos_manager,
        kubelets=kubelets,
        kubelet_files=kubelet_files,
        runtime=runtime,
        kubelet_cgroup_driver=_kubelet_driver(settings),
        tree_cgroup_driver=guess_cgroup_driver(Path(settings.cgroups.root)) or "",
        node=offline.inputs.node,
        hook_servers=tuple(
            _hook_server(name, each.registration, carried)
            for name, each in offline.registrations.items()
            if each.registration is not None
        ),
        koordlets=tuple(koordlets(root / "proc")),
        # Whoever may not look there finds none, without an error.
        has_nri_socket=os.path.exists(root / _NRI_SOCKET),  # noqa: PTH110
        mode=ModeFacts(
            runtime=runtime.name,
            nri_answers=socket_state(settings.nri.socket) is SocketState.ANSWERS,
            nri_disabled=nri_disabled(root),
            calls_us=bool(calls_problem(settings.proxy, {settings.proxy.endpoint}, root)),
            fixed_kubelet=fixed_kubelet(
                offline.inputs.node.labels, (f"/{each}" for each in CONFIGURATION_FILES), root
            ),
        ),
        unit=_unit(root, SERVICE),
        manager_unit=_unit(root, MANAGER_SERVICE),
        state_folder=_state_folder(Path(settings.state.dir)),
        input_files=tuple(_input_files(settings)),
        api_server=ask_api_server(settings) if settings.kubernetes.enabled else None,
    )


def _hook_server(name: str, about: Registration, carried: CarriedFields) -> HookServerFacts:
    is_asked = not about.hooks or any(map(carried.asks_at, about.hooks))
    return HookServerFacts(name, about.endpoint, socket_state(about.endpoint), is_asked)


def _denied(settings: Settings, kubelets: Iterable[RunningKubelet], root: Path) -> Iterator[str]:
    """The paths among those that are read here which this user may not read."""
    node, hooks = settings.node, settings.hooks
    paths = [hooks.policies_dir, hooks.server_config_dir, node.objects_dir]
    if node.kubelet_dir:
        paths += [str(Path(node.kubelet_dir, name)) for name in (CONFIG, CPU_MANAGER_STATE)]
    if settings.kubernetes.enabled:
        paths.append(settings.kubernetes.kubeconfig)
    yield from (path for path in paths if path and is_denied(Path(path)))
    yield from (path for kubelet in kubelets for path in kubelet.denied)
    if is_denied(root / _NRI_SOCKET):
        yield f"/{_NRI_SOCKET}"


def socket_state(path: str) -> SocketState:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(TIMEOUT_S)
        try:
            number = probe.connect_ex(path)
        except OSError:  # the path is too long, or connecting takes too long
            return SocketState.REFUSED
    states = {0: SocketState.ANSWERS, errno.ENOENT: SocketState.MISSING, errno.EACCES: SocketState.DENIED}
    return states.get(number, SocketState.REFUSED)


def ask_runtime(path: str) -> RuntimeFacts:
    """Asks a runtime for its name and its cgroup driver."""
    if (state := socket_state(path)) is not SocketState.ANSWERS:
        return RuntimeFacts(error=f"{path} is {state}", is_denied=state is SocketState.DENIED)
    with BlockingClient(path) as client:
        stub = client.stub(api_pb2.DESCRIPTOR.services_by_name["RuntimeService"])
        try:
            version = stub.Version(api_pb2.VersionRequest(), timeout=TIMEOUT_S)
        except RpcError as error:
            return RuntimeFacts(error=f"{path}: {error}")
        driver = ""
        try:
            config = stub.RuntimeConfig(api_pb2.RuntimeConfigRequest(), timeout=TIMEOUT_S)
            driver = SYSTEMD if config.linux.cgroup_driver == api_pb2.SYSTEMD else CGROUPFS
        except RpcError:
            # Runtimes of before CRI 1.28 do not know it, but containerd shows its configuration.
            with contextlib.suppress(RpcError):
                status = stub.Status(api_pb2.StatusRequest(verbose=True), timeout=TIMEOUT_S)
                driver = containerd_driver(status.info.get("config", ""))
        return RuntimeFacts(f"{version.runtime_name} {version.runtime_version}", driver)


def containerd_driver(text: str) -> str:
    """The cgroup driver in the configuration that containerd's verbose Status has; empty if it does not say.

    Source: containerd pkg/cri/config, `runtimes.<name>.options.SystemdCgroup` of the default runtime.
    """
    try:
        containerd: Any = json_value(text)["containerd"]
        runtime = containerd["runtimes"][containerd["defaultRuntimeName"]]
        options = runtime["options"] or {}
        return SYSTEMD if options.get("SystemdCgroup") is True else CGROUPFS
    except (InputError, KeyError, TypeError, AttributeError):
        return ""


def _kubelet_driver(settings: Settings) -> str:
    if not settings.node.kubelet_dir:
        return ""
    try:
        data, _ = read_file(Path(settings.node.kubelet_dir, CONFIG), MAX_BYTES[CONFIG])
        documents = parse_documents(data)
        # Source: kubelet.config.k8s.io/v1beta1, the default of cgroupDriver.
        return parse_config(documents[0]).cgroup_driver or CGROUPFS if documents else ""
    except (OSError, InputError):
        return ""


def ask_api_server(settings: Settings) -> ApiServerFacts:
    """Asks the API server for each kind that the daemon watches, with its credentials."""
    # Only where it is used: with the HTTP library.
    from runtimeproxy.kubernetes.access import load_access
    from runtimeproxy.kubernetes.client import ApiClient, ApiError, Timeouts
    from runtimeproxy.kubernetes.json_stream import ListReader
    from runtimeproxy.kubernetes.source import resources_of

    kubernetes, name = settings.kubernetes, name_of_node(settings.node.name)
    kubeconfig = Path(kubernetes.kubeconfig) if kubernetes.kubeconfig else None
    client = ApiClient(lambda: load_access(kubeconfig), Timeouts(TIMEOUT_S, TIMEOUT_S, TIMEOUT_S))
    refused: dict[str, str] = {}
    absent: list[str] = []
    has_node = True
    try:
        for kind, resource in resources_of(name, kubernetes).items():
            query = {"fieldSelector": resource.field_selector, "resourceVersion": "0"}
            try:
                with client.get(resource.path, query) as response:
                    count = sum(1 for _ in ListReader().read(response.pieces()))
            except ApiError as error:
                if not error.status:
                    return ApiServerFacts(client.server, str(error), node_name=name)
                if error.status == HTTPStatus.NOT_FOUND and resource.is_optional:
                    absent.append(kind)
                else:
                    refused[kind] = str(error)
            except InputError as error:
                refused[kind] = f"the answer {error}"
            else:
                has_node = has_node and (kind != Kind.NODE or count > 0)
        return ApiServerFacts(client.server, "", refused, tuple(absent), name, has_node)
    finally:
        client.close()


def _unit(root: Path, service: str) -> Mapping[str, str] | None:
    program = shutil.which("systemctl")
    if program is None or not (root / "run/systemd/system").is_dir():
        return None
    command = [program, "show", service, f"--property={','.join(_PROPERTIES)}"]
    try:
        # S603: the arguments are constants.
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, check=True, timeout=TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return unit_properties(done.stdout)


def unit_properties(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines())
    return {name: value for name, equals, value in pairs if equals}


def _state_folder(path: Path) -> FolderFacts:
    try:
        status, system = path.stat(), os.statvfs(path)
    except PermissionError:
        return FolderFacts(exists=False, is_denied=True)
    except OSError:
        return FolderFacts(exists=False)
    return FolderFacts(mode=stat.S_IMODE(status.st_mode), free_bytes=system.f_bavail * system.f_frsize)


def _input_files(settings: Settings) -> Iterator[InputFile]:
    folder, now_s = Path(settings.node.objects_dir), time.time()
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES) if folder.name else []
    except OSError:
        return
    for path in paths:
        try:
            if not path.name.startswith("."):
                data, _ = read_file(path, MAX_FILE_BYTES)
                kinds = dict.fromkeys(each.decode() for each in _KINDS.findall(data))
                yield InputFile(str(path), tuple(kinds), now_s - path.stat().st_mtime)
        except (OSError, InputError):
            continue  # check_on_node reports it
