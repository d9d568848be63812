"""Conformal prediction over time: thresholds that move with what was seen, as pure state machines."""
