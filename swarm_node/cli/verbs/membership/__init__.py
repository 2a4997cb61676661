"""Who is a member of the swarm."""
