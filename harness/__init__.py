"""The harness: everything that is neither a method nor a task."""

import logging

# transformers imports torchao where it is installed, which makes a deprecated call and warns of kernels that it does
# not find; none of them is used here.
logging.getLogger("torchao").setLevel(logging.ERROR)
logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
