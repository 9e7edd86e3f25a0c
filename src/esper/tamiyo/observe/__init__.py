"""What a controller sees: signals from reports, and masks of what may be decided."""
