"""Engines run searches: on the GPUs of this host (`local`) or on those of a Ray cluster (`ray_cluster`).

`engine` defines the interface, `dealing` assigns searches to the devices of any engine, and `search` runs beside a
device.
"""
