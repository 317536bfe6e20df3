"""Values of host applications' cgroups, for the policies that set values there; not a policy itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from runtimeproxy.qos import QoSClass
from runtimeproxy.slo.host_applications import host_application_cgroup
from runtimeproxy.slo.schema import HostApplication


def host_application_values(
    applications: Sequence[HostApplication],
    cgroup_driver: str | None,
    value_of: Callable[[QoSClass], Mapping[str, int | str]],
) -> tuple[dict[str, Mapping[str, int | str]], tuple[str, ...]]:
    """Return the values of all host applications' cgroups, by path, and the problems with some of them.

    The first application of a cgroup wins. `value_of` gives the values of a class by cgroup parameter; a
    ValueError leaves that application out.
    """
    cgroups: dict[str, Mapping[str, int | str]] = {}
    names: dict[str, str] = {}
    problems: list[str] = []
    for application in applications:
        try:
            values = value_of(QoSClass(application.qos.value))
            if not values:
                continue
            cgroup, name = host_application_cgroup(application, cgroup_driver), application.name[:64]
            if cgroup not in cgroups:
                cgroups[cgroup], names[cgroup] = values, name
            else:
                problems.append(
                    f"host application {name}: its cgroup {cgroup[:256]} is that of {names[cgroup]}, too"
                )
        except ValueError as error:
            problems.append(f"host application {application.name[:64]}: {error}")
    return cgroups, tuple(problems)
