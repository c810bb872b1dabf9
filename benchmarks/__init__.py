"""What is measured, one module each: ``python -m benchmarks.NAME [--json] [--quick]``. No product code is here."""
