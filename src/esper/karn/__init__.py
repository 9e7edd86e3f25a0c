"""The eyes: analysis of recorded runs, diagnostics, comparison, report and live page."""
