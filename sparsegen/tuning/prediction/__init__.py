"""Times of variants on devices that they never ran on: descriptions of devices and a cost model."""
