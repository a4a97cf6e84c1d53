"""The core: what an event comes to, without any I/O, clock or event loop."""
