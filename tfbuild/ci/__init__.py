"""Many Builds -> rows of GitHub, GitLab and bake."""
