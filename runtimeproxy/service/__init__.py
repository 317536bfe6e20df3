"""The daemon: wiring, signals, the watchdog, its own gRPC server, upgrades without a gap."""
