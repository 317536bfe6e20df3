"""An upgrade without a gap: a running daemon starts its successor and hands everything over to it.

Both processes share the listening socket and the open lock file, and exchange these messages over a socket
pair:

| from the predecessor | from the successor | then |
| --- | --- | --- |
| | `loaded` | everything that may fail has worked; the successor has not accepted yet |
| `go` | | the predecessor has stopped accepting, and its records are written |
| | `serving` | the successor has read the records, owns socket and lock, and accepts clients |
| `main` | | the service manager knows the new main process; the predecessor drains |
| `drained` | | its last records are written; it ends |
| | `stopping` | the successor was asked to end, and the predecessor ends too |

The end of either process closes the socket pair: the one that is left serves.
"""
