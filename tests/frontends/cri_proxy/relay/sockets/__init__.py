"""The relay on real sockets, in asyncio's loop and in uvloop."""
