"""The edge: clocks, threads, handles and the scheduler that drives the core."""
