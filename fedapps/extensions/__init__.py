"""Extensions: the user's own code, named by a setting, and installed packages."""
