"""Cgroup v1 and v2 values of pods and containers: read, checked, compared, written in safe order."""
