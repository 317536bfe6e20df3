"""What this node is, as far as values for pods depend on it."""

from runtimeproxy.node.facts import ANY_NODE, FixedNode, Node, NodeFacts, NodeReader

__all__ = ["ANY_NODE", "FixedNode", "Node", "NodeFacts", "NodeReader"]
