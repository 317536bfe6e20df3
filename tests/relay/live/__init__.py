"""The relay on real sockets and both event loops, in front of small real servers."""
