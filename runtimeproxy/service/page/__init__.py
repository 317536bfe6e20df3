"""The node page: what the daemon knows, for looking at in a browser. Imported only with `metrics.page`."""
