"""What a simulated run is made of; `gymckpt.testing.simulate` is the command."""
