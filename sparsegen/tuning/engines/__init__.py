"""Where searches run: on the GPUs of this host (`local`) or on those of a Ray cluster (`ray_cluster`).

`engine` says what an engine is, `dealing` deals searches to the devices of any engine, and `search` is what runs
beside a device.
"""
