"""Times: one worker that verifies and measures variants, and the baselines that they are compared with."""
