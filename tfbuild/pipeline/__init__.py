"""From a `Build` to a verified, named image; the only room that orders the others."""
