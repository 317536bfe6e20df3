"""Metrics for Prometheus: their table, the numbers behind them, and the listener that serves them."""
