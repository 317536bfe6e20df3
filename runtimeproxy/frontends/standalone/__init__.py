"""The front end without a socket of the kubelet: it follows what runs, and writes values by file only."""
