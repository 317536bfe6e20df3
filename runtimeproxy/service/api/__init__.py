"""The daemon's API, `runtimeproxy.v1`: its server, and what its answers are made of."""
