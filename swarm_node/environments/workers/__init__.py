"""The environment's process, the judges that it forks, and the sandbox that confines them."""
