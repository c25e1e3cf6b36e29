"""Loads the model code of transformers once, in the server that cells are forked from, and without scikit-learn.

transformers imports scikit-learn, wherever it is installed, for a kind of assisted generation that nothing here uses.
That would be a seventh of the imports of a cell's process.
"""

from transformers import utils

installed = utils.is_sklearn_available
utils.is_sklearn_available = lambda: False
from transformers.models.qwen2 import modeling_qwen2  # noqa: E402, F401

utils.is_sklearn_available = installed
