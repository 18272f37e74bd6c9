"""The backend `podman` is tested with the real one (`make podman`)."""
