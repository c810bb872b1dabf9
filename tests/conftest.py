"""What all tests share."""

import elastic_mx  # noqa: F401  (prepares NumPy for the tests that import mxnet)
