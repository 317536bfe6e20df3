"""The policy `network-qos` in network namespaces: real qdiscs, nft rules and traffic."""
