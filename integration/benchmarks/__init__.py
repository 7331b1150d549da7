"""What the clusters cost and how fast they are, side by side."""
