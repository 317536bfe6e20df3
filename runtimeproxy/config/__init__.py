"""The daemon's settings: flag over environment over file over default."""
