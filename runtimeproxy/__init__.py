"""A CRI proxy: resource policies by QoS class, everything else forwarded byte for byte."""

__version__ = "0.1.0"
