"""A CRI proxy: resource policies by QoS class, everything else forwarded byte for byte."""

try:
    from runtimeproxy._version import __version__ as __version__
except ImportError:
    # A checkout that nothing was built of; what a build has is said by build_version.py.
    __version__ = "0+unknown"
