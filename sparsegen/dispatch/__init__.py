"""From a problem and what is known to the variant that runs."""
