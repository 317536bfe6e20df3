"""Texts and files of others: JSON and YAML within bounds, read strictly, with the place of what is wrong."""
