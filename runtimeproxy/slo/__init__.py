"""Strategies: what a cluster's owner configured for nodes and pods, in Koordinator's words.

Knows configuration only: texts and mappings in, strategies with their provenance out.
"""
