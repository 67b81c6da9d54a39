"""The course's classifiers: cheap baselines for the same labels, rows and metrics, each a thin layer over a library."""
