"""Controllers by rule: waiting, random decisions, a fixed schedule, and the heuristic."""
