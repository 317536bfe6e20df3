"""Finds what is wrong with an installation: `facts` gathers, `checks` judges, `command` shows."""
