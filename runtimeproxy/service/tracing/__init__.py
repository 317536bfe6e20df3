"""Spans of intercepted calls, sent to a collector by OTLP; loaded only if `tracing.endpoint` is set."""
