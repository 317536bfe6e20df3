"""The process `koord-qos-manager`: plugins that compute values from samples, a client of the daemon's API."""
