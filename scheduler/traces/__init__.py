"""Reading, drawing and converting workloads and traces, a file per format."""
