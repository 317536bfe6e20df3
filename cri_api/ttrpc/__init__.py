"""Package ``ttrpc``: the messages in the frames of ttrpc, in ``request_pb2``."""
