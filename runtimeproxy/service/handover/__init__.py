"""An upgrade without a gap: a running daemon starts its successor and hands everything over to it.

Both processes share the listening socket and the open lock file; they talk over a socket pair, in lines:

| from the predecessor | from the successor | then |
| --- | --- | --- |
| | `loaded` | all that may fail has worked; nothing was accepted yet |
| `go` | | the predecessor accepts nobody any more, and its records are written |
| | `serving` | the successor has read the records, owns socket and lock, and accepts clients |
| `main` | | the service manager knows the new main process; the predecessor drains |
| `drained` | | its last records are written; it ends |
| | `stopping` | the successor ends as it was asked to, and so does the predecessor |

The end of either process is the end of the socket pair: whichever is left serves.
"""
