"""A whole Debian node in qemu, with the wheel installed as the README says: `make e2e-node`."""
