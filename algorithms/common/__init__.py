"""What several families share: checks, seeds, wire format, averages, measures, mirror steps."""
