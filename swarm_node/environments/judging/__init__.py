"""Who judges: the environment's process, the judges that it forks, and what they give up."""
