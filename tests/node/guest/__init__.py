"""The checks, run inside the node by the Python of the installed proxy: no pytest, no network."""
