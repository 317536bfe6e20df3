"""Load on the proxy while it, or the runtime behind it, is restarted again and again."""
