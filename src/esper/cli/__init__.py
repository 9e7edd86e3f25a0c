"""The commands: what `esper` on the command line can do, one module for each command."""
