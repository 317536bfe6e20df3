"""Katalyst's QoS model: levels of pods, CPU pools, NUMA hints, dynamic configuration. Pure functions."""
