"""What the daemon does for each request, one function a verb."""
