"""The front end that is a plugin of the runtime: it is asked by events of the Node Resource Interface."""
