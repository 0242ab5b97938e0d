"""What generates pages and exports of this repository. Not in the wheel."""
