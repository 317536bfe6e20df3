"""What outlives the process: small files in the state folder."""
