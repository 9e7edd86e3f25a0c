"""The environment of hosts: episodes under any controller, their twins, and what is recorded of them."""
