"""A simulated node for tests of QoS decisions, with a kernel and a clock of its own. See the README there."""
