"""Runs: hosts under a controller, a policy that learns by playing or from recordings; recorded, resumed, exported."""
