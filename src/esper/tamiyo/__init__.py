"""The mind: signals, features, masks, the heuristic and the policy network that decide what grows."""
