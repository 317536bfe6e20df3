"""APIs of Koordinator."""
