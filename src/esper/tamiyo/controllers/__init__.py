"""Controllers by rule: waiting, chance, a fixed schedule, and the heuristic."""
