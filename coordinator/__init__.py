"""An optional helper of one swarm: it introduces members and shows what they report."""
