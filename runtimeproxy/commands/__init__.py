"""The subcommands: one module for each subject, imported when its command runs.

A command that cannot do its work raises `exit_codes.CommandError`.
"""
