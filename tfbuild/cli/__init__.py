"""One function a verb: options, one call, print."""
