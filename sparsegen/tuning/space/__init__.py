"""The search space: valid configs of several families."""
