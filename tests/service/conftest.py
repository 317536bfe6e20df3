"""The daemon of these tests is that of the daemon's."""

from tests.daemon.conftest import cgroup_files, client, daemon, daemons, installed, loop, runtime

__all__ = ["cgroup_files", "client", "daemon", "daemons", "installed", "loop", "runtime"]
