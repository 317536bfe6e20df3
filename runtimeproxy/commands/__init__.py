"""The subcommands: one module for each subject, imported when its command runs."""
