"""Side-by-side measurements of the proxy and of two references; see the README beside this file."""
