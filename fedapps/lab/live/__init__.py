"""Pages and progress displays that follow a run or a sweep."""
