"""The transport on hivemind's libp2p daemon and DHT."""
