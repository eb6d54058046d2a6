"""Verification of results: references on the host and on the device, and bounds on the error."""
