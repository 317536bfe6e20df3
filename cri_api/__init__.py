"""What goes over the wire: .proto files and their generated stubs, one versioned folder per API.

Importing this package imports nothing; see the README for what each module costs.
"""
