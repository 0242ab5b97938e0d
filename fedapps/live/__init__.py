"""Following a run or a sweep in the browser."""
