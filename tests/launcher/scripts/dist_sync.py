"""A script that knows nothing of us: MXNet's own stores, pushed and pulled STEPS times; prints what it sees.

Once the file STOP names a worker, that one ends.
"""

import os
import sys
import time
from pathlib import Path

import mxnet as mx

for name in sys.argv[1:]:
    kv = mx.kv.create(name)
    kv.init("weight", mx.nd.zeros((4,)))
    out = mx.nd.zeros((4,))
    for _ in range(int(os.environ.get("STEPS", "5"))):
        kv.push("weight", mx.nd.ones((4,)) * (kv.rank + 1))
        kv.pull("weight", out=out)
        out.wait_to_read()
        time.sleep(float(os.environ.get("PAUSE", "0")))
        stop = Path(os.environ.get("STOP", "none"))
        if stop.exists() and stop.read_text() == os.environ["ELASTIC_MX_NAME"]:
            break
    print(name, "rank", kv.rank, "of", kv.num_workers, "type", type(kv).__name__, "weight", out.asnumpy().tolist())
