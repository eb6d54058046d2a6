"""Whether a result is right: exact results on the host and on the device, and bounds on the error."""
