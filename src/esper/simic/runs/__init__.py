"""Runs: hosts under a controller, a policy that learns by playing or from recordings; in a folder, resumed bit for bit, exported."""
