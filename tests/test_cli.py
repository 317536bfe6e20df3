import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtimeproxy import __version__
from runtimeproxy.commands.arguments import without_klog_flags
from runtimeproxy.config.sources import FLAGS
from tests.lab import forked

PROGRAM = [sys.executable, "-m", "runtimeproxy"]


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KOORD_RUNTIMEPROXY_")}
    return forked.run([*PROGRAM, *arguments], kept | environ, 60)


def configured(tmp_path: Path, text: str) -> str:
    file = tmp_path / "config.toml"
    file.write_text(text)
    return str(file)


@pytest.mark.parametrize("arguments", [["version"], ["--version"], ["--log-level", "debug", "version"]])
def test_version(arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"koord-runtime-proxy {__version__}\n", "")


def test_help_names_flags_defaults_commands_and_exit_codes() -> None:
    text = run("--help").stdout
    for flag in FLAGS:
        assert flag.option in text
        assert flag.default.replace("-", "") in text.replace("\n", "").replace(" ", "").replace("-", "")
    for word in ("check-config", "list-policies", "version", "demo", "examples:", "exit codes:", "SIGHUP"):
        assert word in text
    assert "--backend-runtime-mode" in text


def test_the_help_of_a_command_has_its_own_arguments_and_points_to_the_flags_of_all() -> None:
    text = run("check-slo", "--help").stdout
    assert "--node-labels" in text
    assert "--config FILE" in text
    assert "--hook-config-dir" not in text
    assert text.endswith("\nAll commands take the flags that koord-runtime-proxy --help lists.\n")


def test_a_right_configuration(tmp_path: Path) -> None:
    path = configured(tmp_path, "[log]\nlevel = 'debug'\n[policies.batch-resource]\nmode = 'dry-run'")
    for arguments in (["check-config", "--config", path], ["--config", path, "check-config"]):
        done = run(*arguments)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{path}: the configuration is valid\n", "")


def test_one_error_is_one_line(tmp_path: Path) -> None:
    path = configured(tmp_path, "[proxy]\ndrian_s = 1")
    done = run("check-config", "--config", path)
    assert done.returncode == 2
    assert done.stdout == ""
    reason = "proxy.drian_s: unknown key; did you mean drain_s?"
    assert done.stderr == f"koord-runtime-proxy: configuration error: {path}: {reason}\n"


def test_options_of_plugins_are_checked_for_the_qos_manager(tmp_path: Path) -> None:
    path = configured(tmp_path, "[plugins.katalyst-cpu-load.options]\nuper_ratio = 2")
    done = run("check-config", "--config", path)
    assert done.returncode == 0
    assert f"warning: {path}: plugins.katalyst-cpu-load.options.uper_ratio: " in done.stderr
    assert "does not start with it: unknown key; did you mean upper_ratio?" in done.stderr


def test_several_errors_are_one_message(tmp_path: Path) -> None:
    path = configured(tmp_path, "[proxy]\ndrain_s = 'x'\n[log]\nlevel = 'loud'")
    done = run("--config", path)
    assert done.returncode == 2
    first, *others = done.stderr.splitlines()
    assert first == "koord-runtime-proxy: configuration errors:"
    assert [line.split(": ")[:2] for line in others] == [
        [f"  {path}", "log.level"],
        [f"  {path}", "proxy.drain_s"],
    ]


def test_a_missing_file(tmp_path: Path) -> None:
    path = str(tmp_path / "absent.toml")
    done = run("--config", path)
    message = f"koord-runtime-proxy: configuration error: {path}: no such file\n"
    assert (done.returncode, done.stderr) == (2, message)
    assert run(KOORD_RUNTIMEPROXY_CONFIG=path).stderr == message


def test_docker_is_refused_with_a_word_on_cri_dockerd() -> None:
    done = run("--backend-runtime-mode=Docker")
    assert done.returncode == 2
    assert "--backend-runtime-mode: Docker is not supported: run cri-dockerd" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("mode", "code"), [("Containerd", 0), ("containerd", 2), ("", 2)])
def test_the_backend_mode(mode: str, code: int) -> None:
    assert run("check-config", "--backend-runtime-mode", mode).returncode == code


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--koord-runtimeproxy-endpoin", "/x"], "did you mean --koord-runtimeproxy-endpoint?"),
        (["check-config", "--log", "debug"], "unknown flag --log;"),
        (["--zzz=1"], "unknown flag --zzz (see"),
        (["version", "more"], "unrecognized arguments: more"),
        (["--log-level", "loud"], "invalid choice: 'loud'"),
        (["check"], "invalid choice: 'check'"),
        (["--config"], "expected one argument"),
    ],
)
def test_wrong_usage_is_one_line_with_exit_code_2(arguments: list[str], reason: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert reason in done.stderr
    assert done.stderr.endswith("(see koord-runtime-proxy --help)\n")


def test_settings_of_a_policy_that_is_not_there(tmp_path: Path) -> None:
    path = configured(tmp_path, "[policies.batch-resorce]\nmode = 'dry-run'")
    done = run("check-config", "--config", path)
    assert done.returncode == 2
    place = f"koord-runtime-proxy: configuration error: {path}: policies.batch-resorce: "
    assert done.stderr.startswith(place)
    assert "did you mean batch-resource?" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_list_policies_shows_what_is_configured(tmp_path: Path) -> None:
    path = configured(
        tmp_path,
        "[policies.batch-resource]\nmode = 'dry-run'\npriority = 7\nfailure_policy = 'fail'\n"
        "[policies.gpu-env]\nenabled = false",
    )
    done = run("list-policies", "--config", path)
    assert done.returncode == 0
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if not line.startswith(" ")}
    assert rows["NAME"] == ["NAME", "PRIORITY", "MODE", "ON", "FAILURE", "METHODS"]
    assert rows["batch-resource"][1:4] == ["7", "dry-run", "fail"]
    assert rows["gpu-env"][2] == "disabled"
    assert rows["batch-resource"][-2:] == ["pod,", "container"]
    assert all(line.strip() for line in done.stdout.splitlines())
    assert "    from policies.batch_resource:BatchResource" in done.stdout.splitlines()


def test_list_policies_says_what_the_mode_never_calls(tmp_path: Path) -> None:
    path = configured(tmp_path, "[daemon]\nmode = 'standalone'")
    folder = tmp_path / "policies.d"
    folder.mkdir()
    text = "from runtimeproxy.hooks import Policy\nclass Late(Policy):\n    'Late.'\n    name = 'late'\n"
    text += "    def pod(self, pod, node): ...\n    def on_started(self, container, node): ...\n"
    (folder / "late.py").write_text(text)
    (folder / "late.py").chmod(0o644)
    for mode in ("", " (never called in mode standalone)"):
        arguments = ("--config", path) if mode else ()
        done = run("list-policies", "--policies-dir", str(folder), *arguments)
        (row,) = (line for line in done.stdout.splitlines() if line.startswith("late "))
        assert row.endswith(f"pod, on_started{mode}")


@pytest.mark.parametrize(
    ("mode", "has_socket", "warnings"),
    [
        ("proxy", True, ()),
        ("nri", True, ()),
        ("nri", False, ("nri.sock is not there",)),
        ("standalone", False, ("mode standalone leaves undone: gpu-env (devices, env, mounts)",)),
        ("standalone", True, ("leaves undone: gpu-env", "mode nri would have values")),
    ],
)
def test_check_config_says_what_the_mode_leaves_undone(
    tmp_path: Path, mode: str, warnings: tuple[str, ...], *, has_socket: bool
) -> None:
    if has_socket:
        (tmp_path / "nri.sock").touch()
    path = configured(tmp_path, f"[daemon]\nmode = '{mode}'\n[nri]\nsocket = '{tmp_path}/nri.sock'")
    done = run("check-config", "--config", path)
    assert done.returncode == 0
    found = [line for line in done.stderr.splitlines() if "daemon.mode" in line or "nri.socket" in line]
    assert len(found) == len(warnings)
    for line, text in zip(found, warnings, strict=True):
        assert text in line


def test_programs_get_json(tmp_path: Path) -> None:
    path = configured(tmp_path, "[policies.batch-resource]\npriority = 7\n[policies.nonsense]\n")
    done = run("list-policies", "--config", path, "--output", "json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    first = next(each for each in found["policies"] if each["name"] == "batch-resource")
    assert first.pop("description").startswith("Sets CPU shares")
    assert first == {
        "name": "batch-resource",
        "priority": 7,
        "mode": "enforce",
        "failurePolicy": "ignore",
        "methods": ["pod", "container"],
        "origin": "policies.batch_resource:BatchResource",
    }
    (problem,) = found["problems"]
    assert problem["name"] == "nonsense"
    assert problem["text"].startswith(
        "settings: no policy named nonsense; there are: accelerators, batch-resource"
    )
    names = run("list-policies", "--output", "name").stdout.splitlines()
    assert {"batch-resource", "memory-qos"} <= set(names)
    version = json.loads(run("version", "--output", "json").stdout)
    assert version == {"name": "koord-runtime-proxy", "version": __version__}
    done = run("check-config", "--config", path, "--output", "json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["file"], found["valid"]) == (2, path, False)
    assert found["problems"] == [{"source": path, "key": "policies.nonsense", "reason": problem["text"]}]
    done = run("check-config", "--config", configured(tmp_path, ""), "--output", "json")
    assert (done.returncode, json.loads(done.stdout)["problems"]) == (0, [])


def test_list_policies_shows_what_cannot_be_loaded(tmp_path: Path) -> None:
    path = configured(tmp_path, "[policies.cpusett]\nmode = 'dry-run'\n")
    folder = tmp_path / "policies.d"
    folder.mkdir(mode=0o755)
    good = (Path(__file__).parents[1] / "policies" / "template.py").read_text()
    for name, text in {"bad.py": "\n1 / 0\n", "good.py": good}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o644)
    done = run("list-policies", "--config", path, "--policies-dir", str(folder))
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert f"    from {folder}/good.py:Template" in lines
    for name, reason in {
        "bad": f"    {folder}/bad.py:2: ZeroDivisionError: division by zero",
        "cpusett": "    settings: no policy named cpusett; did you mean cpuset?",
    }.items():
        (row,) = [number for number, line in enumerate(lines) if line.split()[0] == name]
        assert lines[row].split() == [name, "-", "not", "loaded", "-", "-"]
        assert lines[row + 1] == reason
    checked = run("check-config", "--config", path, "--policies-dir", str(folder))
    assert checked.returncode == 2
    assert f"  policies: {folder}/bad.py:2: ZeroDivisionError" in checked.stderr
    assert f"  {path}: policies.cpusett: settings: no policy named" in checked.stderr
    assert "did you mean cpuset?" in checked.stderr


def test_list_policies_shows_whatever_texts_a_policy_has(tmp_path: Path) -> None:
    folder = tmp_path / "policies.d"
    folder.mkdir(mode=0o755)
    odd = (
        "from runtimeproxy.hooks import Policy\nclass Odd(Policy):\n    __doc__ = 5\n    name = 'odd'\n"
        "    def on_started(self, view, node): ...\n"
    )
    for name, text in {"odd.py": odd, "raises.py": "raise ValueError('a\\udcffb')\n"}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o644)
    done = run("list-policies", "--policies-dir", str(folder), PYTHONIOENCODING="utf-8:strict")
    assert (done.returncode, done.stderr) == (1, "")
    assert f"    from {folder}/odd.py:Odd" in done.stdout.splitlines()
    assert rf"    {folder}/raises.py:1: ValueError: a\udcffb" in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("namespaces = ['A']", "policies.cpuset.namespaces: 'A' is not the name of a namespace"),
        (
            "selector = {match_labls = {}}",
            "policies.cpuset.selector.match_labls: unknown key; did you mean match_labels?",
        ),
        (
            "selector = {match_labels = {'a b' = 'c'}}",
            "selector.match_labels.a b: 'a b' is not the name of a label",
        ),
        (
            "selector = {match_expressions = [{key = 'a', operator = 'Is'}]}",
            "selector.match_expressions.0.operator: must be 'In', 'NotIn', 'Exists' or 'DoesNotExist'",
        ),
        (
            "selector = {match_expressions = [{key = 'a', operator = 'Exists', values = ['b']}]}",
            "policies.cpuset.selector.match_expressions.0.values: Exists needs no values",
        ),
    ],
)
def test_a_selector_is_checked(tmp_path: Path, text: str, reason: str) -> None:
    path = configured(tmp_path, f"[policies.cpuset]\n{text}\n")
    done = run("check-config", "--config", path)
    assert done.returncode == 2
    assert reason in done.stderr


@pytest.mark.parametrize(
    "flags",
    [
        ["-v=4"],
        ["-v", "4"],
        ["-v4"],
        ["--v=4"],
        ["--v", "4"],
        ["-logtostderr"],
        ["--logtostderr"],
        ["--logtostderr=false"],
        ["-alsologtostderr=true"],
        ["--stderrthreshold", "2"],
        ["--stderrthreshold=INFO"],
        ["--vmodule", "a=1,b=2"],
        ["--log_dir", "/var/log"],
        ["--log-dir=/var/log"],
        ["--log_file", "-"],
        ["--log_file_max_size=1800"],
        ["--log_backtrace_at", ":0"],
        ["--skip_headers"],
        ["--skip_log_headers"],
        ["--one_output"],
        ["--add_dir_header"],
        ["--log-flush-frequency", "5s"],
    ],
    ids=" ".join,
)
def test_a_flag_of_klog_is_ignored_with_a_warning(flags: list[str]) -> None:
    assert without_klog_flags([*flags, "version", *flags]) == (["version"], [flags[0].partition("=")[0]])


def test_flags_of_klog_are_one_warning() -> None:
    done = run(
        "-v=5", "--logtostderr", "--log-level", "debug", "version", "--stderrthreshold", "2", "--v", "1"
    )
    warning = "koord-runtime-proxy: flags of klog are ignored: -v, --logtostderr, --stderrthreshold, --v\n"
    assert (done.returncode, done.stdout) == (0, f"koord-runtime-proxy {__version__}\n")
    assert done.stderr == warning


def test_other_arguments_stay_as_they_are() -> None:
    argv = ["--log-level", "debug", "--version", "v", "-x", "--", "--config=v=1"]
    assert without_klog_flags(argv) == (argv, [])


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    path = configured(tmp_path, "[proxy]\ndrian_s = 1\n[log]\nlevel = 'loud'\n[hooks]\nbudget_s = 0\n")
    for command in ((), ("check-config",)):
        done = run(
            *command,
            *("--config", path, "--zzz", "1", "--log-format=xml", "--state-dir", "relative"),
            KOORD_RUNTIMEPROXY_PROXY_DRIAN_S="2",
            KOORD_RUNTIMEPROXY_PROXY_DRAIN_S="-2",
        )
        assert done.returncode == 2
        first, *lines = [line.strip() for line in done.stderr.splitlines()]
        assert first == "koord-runtime-proxy: configuration errors:"
        assert [line.partition(": ")[0] for line in lines] == [
            *("flag", "flag", "environment"),
            *(path, path, path),
            *("environment", "flag"),
        ]
        for text in (
            "unknown flag --zzz",
            "invalid choice: 'xml'",
            "PROXY_DRIAN_S: no setting has this name; did you mean KOORD_RUNTIMEPROXY_PROXY_DRAIN_S?",
            "proxy.drian_s: unknown key; did you mean drain_s?",
            "log.level: must be",
            "hooks.budget_s: must be",
            "KOORD_RUNTIMEPROXY_PROXY_DRAIN_S: must be",
            "--state-dir: 'relative' is not an absolute path",
        ):
            assert text in done.stderr


def test_several_wrong_flags_are_one_line() -> None:
    done = run("version", "--zzz", "--log-level", "loud", "--log-formt=json")
    assert done.returncode == 2
    assert done.stderr == (
        "koord-runtime-proxy: unknown flag --zzz; argument --log-level: invalid choice: 'loud' "
        "(choose from debug, info, warning, error); unknown flag --log-formt; did you mean --log-format? "
        "(see koord-runtime-proxy --help)\n"
    )


def test_check_config_looks_at_the_node(tmp_path: Path) -> None:
    servers, state = tmp_path / "servers", tmp_path / "state"
    servers.mkdir()
    state.write_text("")
    (tmp_path / "proxy.sock").write_text("")
    files = {
        "a.json": "{",
        "b.json": '{"remote-endpoint": "/b.sock", "runtime-hooks": ["PreRunPodSandbx"], "timout": 1}',
        "c.json": '{"remote-endpoint": "/c", "runtime-hooks": ["PreRunPodSandbox"], "timeout-seconds": 60}',
        "d.json": '{"remote-endpoint": "d.sock", "runtime-hooks": []}',
    }
    for name, text in files.items():
        (servers / name).write_text(text)
    path = configured(
        tmp_path,
        f"""
        [proxy]
        endpoint = "{tmp_path}/proxy.sock"
        [hooks]
        server_config_dir = "{servers}"
        server_timeout_s = 7
        [policies.cpuset]
        timeout_s = 6
        [policies.batch-resorce]
        enabled = false
        [policies.gpu-env.options]
        nonsense = 1
        [cgroups]
        root = "{tmp_path}/nowhere"
        [state]
        dir = "{state}/below"
        """,
    )
    done = run("check-config", "--config", path)
    assert (done.returncode, done.stdout) == (2, "")
    prefix = "koord-runtime-proxy: warning: "
    lines = done.stderr.splitlines()
    warnings = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
    problems = [line.strip() for line in lines if line.startswith("  ")]
    assert len(warnings) + len(problems) + 1 == len(lines)
    late = "is more than hooks.budget_s (5 s), after which the call goes on"
    hint = "no hook is named 'PreRunPodSandbx'; did you mean PreRunPodSandbox?"
    assert warnings == [
        f"{path}: cgroups.root: {tmp_path}/nowhere is not a folder: no cgroup value can be written",
        f"{servers}/b.json: runtime-hooks: {hint}",
        *[line for line in warnings if line.startswith(f"{servers}/b.json: 'timout': unknown key")],
        f"{servers}/b.json: timeout-seconds: 7 s {late}",
        f"{servers}/c.json: timeout-seconds: 60 s {late}",
        f"{path}: hooks.server_timeout_s: 7 s {late}",
        f"{path}: policies.cpuset.timeout_s: 6 s {late}",
    ]
    places = [problem.partition(": ")[0] for problem in problems]
    assert places == [path, path, path, path, f"{servers}/a.json", f"{servers}/d.json"]
    text = done.stderr
    assert "did you mean batch-resource?" in text
    assert f"state.dir: {state} is not a folder" in text
    assert f"proxy.endpoint: {tmp_path}/proxy.sock exists and is not a socket" in text
    assert f"{servers}/d.json: remote-endpoint: 'd.sock' is not an absolute path of a socket" in text


def test_warnings_leave_the_configuration_right(tmp_path: Path) -> None:
    servers = tmp_path / "servers"
    servers.mkdir()
    servers.chmod(0o777)
    path = configured(tmp_path, f"[hooks]\nserver_config_dir = '{servers}'\n")
    done = run("check-config", "--config", path)
    assert (done.returncode, done.stdout) == (0, f"{path}: the configuration is valid\n")
    mode = f"{servers} has mode 0777: everyone who can write to it can change pods of this node"
    assert done.stderr == f"koord-runtime-proxy: warning: {path}: hooks.server_config_dir: {mode}\n"


def test_objects_of_the_node_that_cannot_be_used_are_warnings(tmp_path: Path) -> None:
    objects = tmp_path / "node.d"
    objects.mkdir(mode=0o755)
    (objects / "cm.yaml").write_text("a: &x [b]\n")
    path = configured(tmp_path, f"[node]\nobjects_dir = '{objects}'\nkubelet_dir = ''\n")
    done = run("check-config", "--config", path)
    assert (done.returncode, done.stdout) == (0, f"{path}: the configuration is valid\n")
    reason = "line 1 column 4: anchors are not allowed"
    assert done.stderr == f"koord-runtime-proxy: warning: node: {objects}/cm.yaml: {reason}\n"


def test_a_folder_that_is_named_and_not_there(tmp_path: Path) -> None:
    hooks = f"[hooks]\nserver_config_dir = '{tmp_path}/serv'\npolicies_dir = '{tmp_path}/policy.d'\n"
    node = f"[node]\nobjects_dir = '{tmp_path}/objects'\nkubelet_dir = '{tmp_path}/kubelet'\n"
    path = configured(tmp_path, hooks + node)
    done = run("check-config", "--config", path)
    assert (done.returncode, done.stdout) == (0, f"{path}: the configuration is valid\n")
    assert [line.removeprefix("koord-runtime-proxy: warning: ") for line in done.stderr.splitlines()] == [
        f"{path}: hooks.server_config_dir: {tmp_path}/serv does not exist: no hook server is loaded from it",
        f"{path}: hooks.policies_dir: {tmp_path}/policy.d does not exist: no policy is loaded from it",
        f"{path}: node.objects_dir: {tmp_path}/objects does not exist: no object is loaded from it",
        f"{path}: node.kubelet_dir: {tmp_path}/kubelet does not exist: nothing is loaded from it",
    ]


def test_a_file_where_a_folder_of_the_node_is_wanted(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    keys = ("sysfs_root", "objects_dir", "kubelet_dir")
    path = configured(tmp_path, "[node]\n" + "".join(f"{key} = '{file}'\n" for key in keys))
    done = run("check-config", "--config", path)
    assert done.returncode == 2
    for key in keys:
        assert f"{path}: node.{key}: {file} is not a folder" in done.stderr


def test_what_is_wrong_is_said_once(tmp_path: Path) -> None:
    path = configured(tmp_path, "[policies.cpuset]\npriority = 200\n[policies.gpu-env]\ntimeout_s = 0\n")
    done = run("check-config", "--config", path)
    assert done.stderr.splitlines()[1:] == [
        f"  {path}: policies.cpuset.priority: must be in 0 to 99",
        f"  {path}: policies.gpu-env.timeout_s: must be more than 0 and at most 600",
    ]


def test_a_state_folder_that_cannot_be_written(tmp_path: Path) -> None:
    if os.geteuid() == 0 and not Path("/proc/version").exists():
        pytest.skip("root writes everywhere, and there is no /proc")
    folder = "/proc/sys/kernel" if os.geteuid() == 0 else "/usr"
    done = run("check-config", "--state-dir", folder, "--config", configured(tmp_path, ""))
    assert done.returncode == 2
    assert f"--state-dir: user {os.geteuid()} cannot read and write {folder}" in done.stderr
