"""Bytes of a library -> the features that it was compiled for; executes nothing, talks to nobody."""
