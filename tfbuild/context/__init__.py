"""Build -> a folder for `docker build`, and the labels of an image."""
