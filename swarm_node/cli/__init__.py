"""The command line: commands, their options, and the views of a terminal."""
