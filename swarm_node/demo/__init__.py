"""`swarm-node demo`: a private swarm of real node processes on this machine."""
