"""What a sparse network is: layers, the challenge's topologies and images."""
