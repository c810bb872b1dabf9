"""An elastic script for the launcher's tests: pushes until the file STOP exists.

FAIL names a worker that fails at once; a file STOP.NAME makes that worker end with the status in it.
"""

import os
import sys
import time
from pathlib import Path

import elastic_mx  # noqa: F401  (registers dist_elastic)
import mxnet as mx

if os.environ.get("FAIL") == os.environ["ELASTIC_MX_NAME"]:
    sys.exit(5)
own_end = Path(f"{os.environ['STOP']}.{os.environ['ELASTIC_MX_NAME']}")
kv = mx.kv.create("dist_elastic")
kv.init("weight", mx.nd.zeros((1000,)))
kv.init("stop", mx.nd.zeros((1,)))
print("training", flush=True)
while True:
    kv.pushpull("weight", mx.nd.ones((1000,)))
    stop = mx.nd.ones((1,)) * os.path.exists(os.environ["STOP"])
    kv.pushpull("stop", stop)
    if stop.asscalar() > 0:
        break
    if own_end.exists():
        os._exit(int(own_end.read_text()))
    time.sleep(0.02)
print("done")
