"""The daemon and the QoS manager as processes of their own, started with their command lines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.lab import forked
from tests.lab.forked import ForkedProcess
from tests.lab.notify_socket import NotifySocket
from tests.lab.programs import REPOSITORY

_PREFIX = "KOORD_RUNTIMEPROXY_"
_READY_TIMEOUT_S = 90.0
_END_TIMEOUT_S = 60.0
_COMMAND_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class ProxyOptions:
    """What the proxy is started with, besides the files of its own folder.

    `config` is the text of its TOML file, `hook_servers` are the registration files by name, `wrapper` are
    words before its command, `inherited` are the file descriptors that it gets, `python` is the interpreter;
    without a `log_level` the configuration's counts. `is_forked`: whether it may begin with its modules
    loaded, which saves most of its start; see `forked.py`.
    """

    runtime_endpoint: str
    image_endpoint: str | None = None
    config: str = ""
    hook_servers: Mapping[str, str] = field(default_factory=dict)
    log_level: str | None = "info"
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    wrapper: tuple[str, ...] = ()
    inherited: tuple[int, ...] = ()
    python: str = sys.executable
    is_forked: bool = False


class ServiceProcess:
    """A program that tells its service manager when it is ready; from `with` to the end of its block.

    Args:
        log_file: where its output goes.
        notify: the socket of its service manager; a path has 107 bytes.
    """

    def __init__(self, log_file: Path, notify: Path) -> None:
        self._log_file = log_file
        self._notify = NotifySocket(notify)
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None

    @property
    def is_forked(self) -> bool:
        """Whether it begins with its modules loaded."""
        return False

    @property
    def wrapper(self) -> tuple[str, ...]:
        """Words before its command line."""
        return ()

    @property
    def inherited(self) -> tuple[int, ...]:
        """File descriptors that it gets."""
        return ()

    def command(self) -> list[str]:
        """Its command line."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """The environment that it is started with."""
        # A variable with the proxy's prefix is a setting to it; tests give their own. What gRPC writes is
        # as in production.
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_PREFIX) and name != "GRPC_VERBOSITY"
        }
        return {**inherited, "NOTIFY_SOCKET": str(self._notify.path), "PYTHONUNBUFFERED": "1"}

    @property
    def pid(self) -> int:
        """The process id. Raises RuntimeError when it was not started."""
        return self._running().pid

    @property
    def log(self) -> list[str]:
        """The lines that it has written since the first start."""
        return self._log_file.read_text(errors="replace").splitlines()

    @property
    def log_records(self) -> list[dict[str, Any]]:
        """The lines that are JSON objects, decoded; without one that is just being written."""
        text = self._log_file.read_text(errors="replace")
        whole = text[: text.rfind("\n") + 1]
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    @property
    def states(self) -> list[str]:
        """What it has told its service manager."""
        return self._notify.received

    def start(self) -> None:
        """Starts it and waits until it says that it is ready."""
        # A process of before may have said so after it was last heard: a reload ends with the same word.
        self.forget_states()
        self.spawn()
        self._notify.wait_for("READY=1", self.alive, _READY_TIMEOUT_S)

    def wait_for_state(self, start: str, timeout_s: float = _READY_TIMEOUT_S) -> str:
        """Waits until it tells its service manager something that begins so, and returns that.

        Raises:
            TimeoutError: it did not come in time.
            ChildProcessError: the proxy ended first.
        """
        return self._notify.wait_for_start(start, self.alive, timeout_s)

    def forget_states(self) -> None:
        """Takes what it has told up to now for heard."""
        self._notify.discard()

    def refuse_states(self) -> None:
        """Takes nothing that it tells, until a state is waited for."""
        self._notify.fill()

    def spawn(self) -> None:
        """Starts it and does not wait."""
        with self._log_file.open("ab") as log:
            if self.is_forked:
                self._process = forked.fork(self.command(), self.environment(), log)
                return
            self._process = subprocess.Popen(
                [*self.wrapper, *self.command()],
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment(),
                start_new_session=True,
                pass_fds=self.inherited,
            )

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._running().poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self._running().send_signal(number)

    def terminate(self) -> int:
        """Sends SIGTERM, waits for the end and returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """Ends it with SIGKILL."""
        self.signal(signal.SIGKILL)
        self.wait()

    def wait(self, timeout_s: float = _END_TIMEOUT_S) -> int:
        """Waits for the end and returns the exit code."""
        return self._running().wait(timeout_s)

    def restart(self) -> None:
        """Ends it if it runs, and starts it with the same files."""
        if self.alive():
            self.terminate()
        self.start()

    def close(self) -> None:
        """Ends the process, by force if it must, and removes the notification socket."""
        if self._process is not None and self.alive():
            self.kill()
        self._notify.close()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            print("\n".join(self.log))
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            print("\n".join(self.log[-100:]))
        self.close()

    def _running(self) -> subprocess.Popen[bytes] | ForkedProcess:
        if self._process is None:
            raise RuntimeError("the process was not started")
        return self._process


class ProxyProcess(ServiceProcess):
    """Runs `python -m runtimeproxy` from `with` to the end of its block.

    Socket, state, configuration and log lie in `folder`, whose path must be short: a socket's
    path has 107 bytes.
    """

    def __init__(self, folder: Path, options: ProxyOptions, *, notify_name: str = "notify.sock") -> None:
        super().__init__(folder / "proxy.log", folder / notify_name)
        self.folder = folder
        self.options = options
        self.socket = folder / "proxy.sock"
        self.state_folder = folder / "state"
        self.hook_folder = folder / "hooks"
        self.policies_folder = folder / "policies.d"
        self.objects_folder = folder / "node.d"
        self._write_files()

    @property
    def is_forked(self) -> bool:
        """Whether it begins with its modules loaded."""
        options = self.options
        is_possible = not options.wrapper and not options.inherited and options.python == sys.executable
        return options.is_forked and is_possible

    @property
    def wrapper(self) -> tuple[str, ...]:
        """Words before its command line."""
        return self.options.wrapper

    @property
    def inherited(self) -> tuple[int, ...]:
        """File descriptors that it gets."""
        return self.options.inherited

    def command(self) -> list[str]:
        """Its command line, without the wrapper."""
        options = self.options
        flags = {
            "--koord-runtimeproxy-endpoint": str(self.socket),
            "--remote-runtime-service-endpoint": options.runtime_endpoint,
            "--config": str(self.config_file),
            "--state-dir": str(self.state_folder),
            "--hook-config-dir": str(self.hook_folder),
            "--policies-dir": str(self.policies_folder),
            "--node-objects-dir": str(self.objects_folder),
            "--log-format": "json",
        }
        if options.log_level is not None:
            flags["--log-level"] = options.log_level
        if options.image_endpoint is not None:
            flags["--remote-image-service-endpoint"] = options.image_endpoint
        words = [word for flag in flags.items() for word in flag]
        return [options.python, "-m", "runtimeproxy", *words, *options.arguments]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs another command of the program, such as `restore`, with the same flags; to its end."""
        program, option, module, *flags = self.command()
        command = [program, option, module, *words, *flags]
        if self.is_forked:
            return forked.run(command, self.environment(), _COMMAND_TIMEOUT_S)
        return subprocess.run(
            command,
            cwd=REPOSITORY,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
        )

    def environment(self) -> dict[str, str]:
        """The environment that it is started with."""
        return {**super().environment(), **self.options.environment}

    def _write_files(self) -> None:
        self.hook_folder.mkdir(exist_ok=True)
        self.config_file.write_text(self.options.config)
        for name, text in self.options.hook_servers.items():
            (self.hook_folder / name).write_text(text)

    @property
    def config_file(self) -> Path:
        """Its configuration, which the manager reads, too."""
        return self.folder / "config.toml"


class ManagerProcess(ServiceProcess):
    """Runs `koord-qos-manager` beside a daemon, with the same configuration and environment.

    Args:
        folder: where its log and the socket of its service manager lie.
        config: the configuration file.
        endpoint: the daemon's socket, beside which the admin socket is.
        environment: more variables.
        python: the interpreter.
        wrapper: words before its command.
        is_forked: whether it may begin with modules loaded, as `ProxyOptions.is_forked`.
    """

    def __init__(
        self,
        folder: Path,
        config: Path,
        endpoint: Path,
        environment: Mapping[str, str] | None = None,
        python: str = sys.executable,
        wrapper: tuple[str, ...] = (),
        *,
        is_forked: bool = False,
    ) -> None:
        super().__init__(folder / "manager.log", folder / "manager-notify.sock")
        self._is_forked = is_forked and not wrapper and python == sys.executable
        self.folder = folder
        self._config = config
        self._endpoint = endpoint
        self._environment = environment or {}
        self._python = python
        self._wrapper = wrapper

    @property
    def is_forked(self) -> bool:
        """Whether it begins with modules loaded."""
        return self._is_forked

    @property
    def wrapper(self) -> tuple[str, ...]:
        """Words before its command line."""
        return self._wrapper

    def command(self) -> list[str]:
        """Its command line."""
        flags = ("--config", str(self._config), "--koord-runtimeproxy-endpoint", str(self._endpoint))
        return [self._python, "-m", "runtimeproxy.qosmanager", *flags, "--log-format", "json"]

    def environment(self) -> dict[str, str]:
        """The environment that it is started with."""
        return {**super().environment(), **self._environment}
