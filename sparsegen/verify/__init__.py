"""Whether a result is right: references on the host and on the device, and bounds on the error."""
