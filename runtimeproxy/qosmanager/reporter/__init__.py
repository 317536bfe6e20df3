"""The node in the shape of Katalyst's CustomNodeResource: field reporters, and what they report."""
