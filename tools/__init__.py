"""What develops tfbuild itself: the verbs that need a clone, which `invoke` has and the installed command has not."""
