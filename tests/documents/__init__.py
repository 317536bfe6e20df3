"""The readers of JSON, YAML and files, and files of the state folder."""
