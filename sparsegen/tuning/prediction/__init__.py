"""Times of variants on devices that they never ran on: descriptions of devices, a cost model, and a search over it."""
