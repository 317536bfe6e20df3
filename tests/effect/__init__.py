"""The effect of the product on a latency-sensitive server beside greedy best-effort pods, measured."""
