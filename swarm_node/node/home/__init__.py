"""The home of a node: keys, swarm file, private files, backups and the log.

In: the path of a directory.
Out: its files, read and replaced as wholes.
Every room of node above may import it, and so may the packages above. It imports no other room.
"""
