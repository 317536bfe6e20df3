"""What is wrong with settings is named: all of it, with its source, its key and the reason."""

import re
from pathlib import Path

import pytest

from runtimeproxy.config.settings import BUILT_IN_PLUGINS, FEATURE_GATES
from runtimeproxy.config.validation import CombinedConfigError
from tests.config.reading import PREFIX, loaded, problems


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("PROXY_DRAIN_S", "soon", "must be a valid number"),
        ("PROXY_DRAIN_S", "'1'", "must be a valid number"),
        ("PROXY_OWN_SERVICES", "yes", "must be a valid boolean"),
        ("PROXY_DRIAN_S", "1", f"no setting has this name; did you mean {PREFIX}PROXY_DRAIN_S?"),
        ("ENDPOINT", "/x", f"no setting has this name; did you mean {PREFIX}PROXY_ENDPOINT?"),
        ("ZZZ", "1", "no setting has this name"),
        (
            "QOSMANAGER_FEATURE_GATES",
            "'BECPUEvicts=true'",
            f"'BECPUEvicts' is not a feature gate; there are {', '.join(FEATURE_GATES)}",
        ),
        ("LOG_LEVEL", "loud", "must be 'debug', 'info', 'warning' or 'error'"),
        ("PROXY_DRAIN_S", "1" * 5_000, "must be a valid number"),
        pytest.param("PROXY_ALLOWED_UIDS", "[" * 5_000, "must be a valid array", id="nested"),
        ("STATE_DIR", "/a\udcff", "is not valid UTF-8"),
    ],
)
def test_wrong_environment_variables_are_named(name: str, text: str, reason: str) -> None:
    with pytest.raises(CombinedConfigError) as raised:
        loaded(environ={PREFIX + name: text})
    (error,) = raised.value.errors
    assert (error.source, error.key, error.reason) == ("environment", PREFIX + name, reason)


ONE_OF_MODES = "must be 'enforce', 'dry-run' or 'off'"
NO_ID = "4294967295 is not a valid id: the largest is 4294967294"


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        ("[proxy]\ndrian_s = 1", "proxy.drian_s", "unknown key; did you mean drain_s?"),
        ("[proxi]", "proxi", "unknown key; did you mean proxy?"),
        ("[log]\nzzz = 1", "log.zzz", "unknown key; known keys: level, format"),
        ("[policies.a]\nmoode = 1", "policies.a.moode", "unknown key; did you mean mode?"),
        ("proxy = 1", "proxy", "must be a table"),
        ("policies = 1", "policies", "must be a table"),
        ("[policies]\na = 1", "policies.a", "must be a table"),
        ("[proxy]\ndrain_s = '1'", "proxy.drain_s", "must be a valid number"),
        ("[proxy]\ndrain_s = true", "proxy.drain_s", "must be a valid number"),
        ("[proxy]\ndrain_s = nan", "proxy.drain_s", "must be less than or equal to 600"),
        ("[proxy]\ndrain_s = inf", "proxy.drain_s", "must be less than or equal to 600"),
        ("[proxy]\ndrain_s = -1", "proxy.drain_s", "must be greater than or equal to 0"),
        ("[proxy]\nmax_message_bytes = 1e6", "proxy.max_message_bytes", "must be a valid integer"),
        ("[proxy]\nown_services = 1", "proxy.own_services", "must be a valid boolean"),
        ("[proxy]\nendpoint = 5", "proxy.endpoint", "must be a valid string"),
        ("[proxy]\nallowed_uids = [-1]", "proxy.allowed_uids.0", "must be greater than or equal to 0"),
        ("[proxy]\nallowed_uids = 0", "proxy.allowed_uids", "must be a valid array"),
        ("[proxy]\nsocket_mode = '0999'", "proxy.socket_mode", "'0999' is not an octal mode such as 0660"),
        ("[proxy]\nsocket_owner = 'no-one-'", "proxy.socket_owner", "there is no user 'no-one-'"),
        ("[proxy]\nsocket_group = 'no-one-'", "proxy.socket_group", "there is no group 'no-one-'"),
        ("[proxy]\nsocket_owner = '4294967295'", "proxy.socket_owner", NO_ID),
        ("[proxy]\nsocket_group = '4294967295'", "proxy.socket_group", NO_ID),
        ("[hooks]\nworker_threads = 0", "hooks.worker_threads", "must be greater than or equal to 1"),
        ("[hooks]\nconflicts = 'mine'", "hooks.conflicts", "must be 'later' or 'earlier'"),
        ("[policies.a]\nmode = 'dry'", "policies.a.mode", "must be 'enforce' or 'dry-run'"),
        ("[policies.a]\npriority = 100", "policies.a.priority", "must be in 0 to 99"),
        ("[policies.a]\ntimeout_s = 0", "policies.a.timeout_s", "must be more than 0 and at most 600"),
        ("[policies.a]\nenabled = 'no'", "policies.a.enabled", "must be a valid boolean"),
        ("[qosmanager]\nmode = 'off'", "qosmanager.mode", "must be 'enforce', 'dry-run' or 'none'"),
        ("[qosmanager]\ninterval_s = 0", "qosmanager.interval_s", "must be greater than or equal to 0.1"),
        (
            "[qosmanager]\nmetrics_source = 'x'",
            "qosmanager.metrics_source",
            "must be 'kernel' or 'malachite'",
        ),
        (
            "[qosmanager]\nmalachite_url = 'https://localhost:9002'",
            "qosmanager.malachite_url",
            "'https://localhost:9002' is not http://host:port",
        ),
        ("[qosmanager]\nmalachite_url = 'http://a:0'", "qosmanager.malachite_url", "0 is not a port"),
        (
            "[qosmanager]\nfeature_gates = ['CPUBurst=true', 'CPUEvict']",
            "qosmanager.feature_gates.1",
            "write CPUEvict=true or CPUEvict=false",
        ),
        (
            "[plugins.cpu-supress]",
            "plugins.cpu-supress",
            "needs an endpoint or a reference; did you mean cpu-suppress?",
        ),
        (
            "[plugins.mine]",
            "plugins.mine",
            f"needs an endpoint or a reference: it is none of {', '.join(BUILT_IN_PLUGINS)}",
        ),
        (
            "[plugins.cpu-burst]\nreference = 'a:B'",
            "plugins.cpu-burst.reference",
            "this plugin is one of koord-qos-manager's own",
        ),
        (
            "[plugins.own]\nendpoint = '/x.sock'\nreference = 'a:B'",
            "plugins.own",
            "has an endpoint and a reference; it is one or the other",
        ),
        (
            "[plugins.own]\nreference = 'a.B'",
            "plugins.own.reference",
            "'a.B' is not of the form module:Class",
        ),
        (
            "[plugins.cpu-burst]\nendpoint = '/x.sock'",
            "plugins.cpu-burst.endpoint",
            "this plugin is one of koord-qos-manager's own",
        ),
        (
            "[plugins.own]\nendpoint = 'x.sock'",
            "plugins.own.endpoint",
            "'x.sock' has no absolute path: write /path, unix:/path or unix:///path",
        ),
        ("[plugins.cpu-burst]\nmoode = 1", "plugins.cpu-burst.moode", "unknown key; did you mean mode?"),
        ("[plugins.cpu-burst]\nmode = 'on'", "plugins.cpu-burst.mode", ONE_OF_MODES),
        ("[state]\ndir = 'here'", "state.dir", "'here' is not an absolute path"),
        ("[cgroups]\nroot = ''", "cgroups.root", "'' is not an absolute path"),
        ("[node]\nobjects_dir = 'here'", "node.objects_dir", "'here' is not an absolute path"),
        ("[node]\nname = 'Node_1'", "node.name", "'Node_1' is not the name of a node"),
        ("[node]\nname = 'a..b'", "node.name", "'a..b' is not the name of a node"),
        ("[node]\nkubelet_dir = 5", "node.kubelet_dir", "must be a valid string"),
        ("[node]\nshared_pools = 'nrtt'", "node.shared_pools", "must be 'nrt' or 'computed'"),
        ("[ledger]\npods_per_s = 0", "ledger.pods_per_s", "must be greater than or equal to 0.1"),
        ("[ledger]\nlower_memory_limits = 1", "ledger.lower_memory_limits", "must be a valid boolean"),
        (
            "[ledger]\ntake_from_koordlet = ['cpu.shares', 'cpu.share']",
            "ledger.take_from_koordlet.1",
            "'cpu.share' is not a cgroup parameter",
        ),
        ("[metrics]\npage = true", "metrics.page", "needs metrics.listen: the page is served there"),
        ("[log]\nlevel = 'loud'", "log.level", "must be 'debug', 'info', 'warning' or 'error'"),
    ],
)
def test_each_wrong_key_is_named_with_its_reason(tmp_path: Path, text: str, key: str, reason: str) -> None:
    assert problems(text, tmp_path) == [(key, reason)]


def test_a_budget_below_one_message_is_refused(tmp_path: Path) -> None:
    ((key, reason),) = problems("[proxy]\nheld_budget_bytes = 1000000", tmp_path)
    assert key == "proxy.held_budget_bytes"
    assert "max_message_bytes is 16777216" in reason


def test_all_errors_of_all_sources_are_listed_together(tmp_path: Path) -> None:
    with pytest.raises(CombinedConfigError) as raised:
        loaded(
            "[proxy]\ndrian_s = 1\nendpoint = 'x/'\n[state]\ndir = 'here'",
            tmp_path,
            environ={PREFIX + "LOG_LEVEL": "loud"},
            proxy_runtime_endpoint="tcp://x",
        )
    path = tmp_path / "config.toml"
    lines = str(raised.value).splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        [str(path), "proxy.drian_s"],
        ["environment", PREFIX + "LOG_LEVEL"],
        [str(path), "proxy.endpoint"],
        ["flag", "--remote-runtime-service-endpoint"],
        [str(path), "state.dir"],
    ]


def test_a_wrong_value_in_a_list_of_tables_names_the_file(tmp_path: Path) -> None:
    text = """
        [[policies.a.selector.match_expressions]]
        key = "app"
        operator = "In"
        values = []
    """
    with pytest.raises(CombinedConfigError) as raised:
        loaded(text, tmp_path)
    (error,) = raised.value.errors
    assert error.source == str(tmp_path / "config.toml")
    assert error.key == "policies.a.selector.match_expressions.0.values"


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(CombinedConfigError, match="no such file"):
        loaded(config=str(tmp_path / "absent.toml"))
    with pytest.raises(CombinedConfigError, match="no such file"):
        loaded(environ={PREFIX + "CONFIG": str(tmp_path / "absent.toml")})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[proxy\n", "is not valid TOML"),
        (b"\xff\xfe", "is not valid UTF-8"),
        (b"a = 1\na = 2", "is not valid TOML"),
    ],
)
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(content)
    with pytest.raises(CombinedConfigError, match=reason) as raised:
        loaded(config=str(file))
    assert raised.value.source == str(file)


ODD = {
    "digits": (f"[proxy]\ndrain_s = {'1' * 5_000}", "is not valid TOML: Exceeds the limit"),
    "hexadecimal digits": (f"[proxy]\ndrain_s = 0x{'f' * 5_000}", "cannot be checked: Exceeds the limit"),
    "brackets": (f"a = {'[' * 5_000}", "is not valid TOML: "),
    "brackets as options": (f"[policies.a.options]\nb = {'[' * 220}{']' * 220}", "is nested too deeply"),
    "tables": (f"[policies.a.options{'.b' * 5_000}]", "cannot be checked|is nested too deeply"),
}


@pytest.mark.parametrize(("text", "reason"), ODD.values(), ids=ODD)
def test_a_file_with_too_much_of_something_is_named(tmp_path: Path, text: str, reason: str) -> None:
    ((key, told),) = problems(text, tmp_path)
    assert key == ""
    assert re.match(reason, told)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(CombinedConfigError, match="cannot be read"):
        loaded(config=str(tmp_path))
