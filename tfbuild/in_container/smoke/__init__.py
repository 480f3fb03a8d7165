"""The smoke test that runs inside an image to verify it, with the standard library and TensorFlow only.

`invoke verify` copies this folder into a container and judges the results on the host; `docker run IMAGE tfbuild-smoke`
runs the image's own copy, which judges them itself.
"""
