"""The Node Resource Interface."""
