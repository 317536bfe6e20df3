"""Strategies: the configuration of nodes and pods by a cluster's owner, in Koordinator's words.

Knows configuration only: texts and mappings in, strategies with their provenance out.
"""
