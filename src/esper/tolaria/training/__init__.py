"""Training hosts: one epoch of one host, engines for many, validation and attribution, the governor that guards them."""
