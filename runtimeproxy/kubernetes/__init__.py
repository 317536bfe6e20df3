"""The API server as a source: a small client, watches of this node's objects, Events, evictions.

Imported only with `kubernetes.enabled`; needs the extra `kubernetes`. Nothing here runs in the event loop's
thread but what is said so.
"""
