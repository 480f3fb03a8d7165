"""Build -> a folder that `docker build` takes, and the labels that an image carries."""
