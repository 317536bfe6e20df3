"""Front ends: how the core is asked, and how its decisions are carried."""
