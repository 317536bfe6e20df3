"""What `make run` does: a pod of each QoS class through the proxy, and what policies changed."""

from runtimeproxy.demo.main import run_demo

__all__ = ["run_demo"]
