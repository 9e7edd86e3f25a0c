"""Training hosts: one epoch of one host, engines that train many, validation with counterfactuals, and the governor that guards them."""
