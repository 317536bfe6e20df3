"""Expected peaks of pods and node, what batch and mid pods may be given, interference; see README.md."""
