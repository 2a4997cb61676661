"""The version of the program. Modules import it from here: the package itself is for programs."""

__version__ = "0.2.0"
