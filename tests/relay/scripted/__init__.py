"""One small script per rule: which frames go in, which come out, and what the units below them do."""
