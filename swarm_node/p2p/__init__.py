"""The swarm's wire: identity, membership, envelopes, transports and exchange."""
