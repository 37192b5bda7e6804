"""What is trained: layers and models over one sharded embedding, the stores behind it, the executor of schedules."""
