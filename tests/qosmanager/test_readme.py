"""The plugin of the README does what the README says."""

import re
from pathlib import Path

import runtimeproxy.qosmanager
from runtimeproxy import qos
from runtimeproxy.config.validation import feature_gates
from runtimeproxy.qosmanager import plugin, snapshot
from runtimeproxy.qosmanager.framework import decision_problem
from runtimeproxy.slo.schema import Threshold
from tests.qosmanager.snapshots import BURSTABLE, FixedMetrics, node_of

README = Path(runtimeproxy.qosmanager.__file__).with_name("README.md")


def test_the_plugin_squeezes_while_ls_pods_are_throttled() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names = {**vars(qos), **vars(snapshot), **vars(plugin)}
    exec(compile(code, str(README), "exec", dont_inherit=True), names)  # noqa: S102 - the README's own code
    squeeze: plugin.Plugin[int] = names["Squeeze"]()
    node = node_of(8, qos_cgroups={qos.KubeQoSClass.BURSTABLE: BURSTABLE})
    strategies = snapshot.Strategies(threshold=Threshold(enable=True))

    def at(throttled: float | None) -> snapshot.Snapshot:
        samples = {} if throttled is None else {(BURSTABLE, snapshot.Metric.CPU_THROTTLED): throttled}
        return snapshot.Snapshot(now_s=1.0, node=node, strategies=strategies, metrics=FixedMetrics(samples))

    assert squeeze.is_enabled(at(0.5))
    state = squeeze.setup(plugin.PluginContext(gates=feature_gates([])))
    decision = squeeze.run(at(0.5), state)
    assert decision_problem(decision) == ""
    (claim,) = decision.claims
    assert (claim.value, claim.role, claim.target.id) == (400_000, plugin.Role.AT_MOST, "BestEffort")
    # Without a sample it stays, also after a restart.
    again = squeeze.setup(plugin.PluginContext(gates=feature_gates([]), held=decision.claims))
    assert squeeze.run(at(None), again).claims == decision.claims
    assert squeeze.run(at(0.0), again).claims == ()
