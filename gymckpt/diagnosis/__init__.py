"""What a journal says about its operations; reads journals and charts, and nothing else."""
