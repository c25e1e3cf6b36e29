"""Loads the model code of transformers once, in the server that cells are forked from, without what it does not need.

transformers imports scikit-learn and SciPy, wherever they are installed, for assisted generation and for losses of
object detection. Both together would be a fifth of the imports of a cell's process.
"""

from transformers import utils

available = utils.is_sklearn_available, utils.is_scipy_available
utils.is_sklearn_available = utils.is_scipy_available = lambda: False
from transformers.models.qwen2 import modeling_qwen2  # noqa: E402, F401

utils.is_sklearn_available, utils.is_scipy_available = available
