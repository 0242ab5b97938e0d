"""What other projects bring: code named by a setting, installed packages."""
