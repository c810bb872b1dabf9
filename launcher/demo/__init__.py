"""The demo: a real training job that is resized four times meanwhile, watched, and told in a table and a chart."""
