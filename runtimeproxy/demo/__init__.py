"""The main job in ten seconds: a pod of each QoS class through the proxy, and a table of what changed."""

from runtimeproxy.demo.main import run_demo

__all__ = ["run_demo"]
