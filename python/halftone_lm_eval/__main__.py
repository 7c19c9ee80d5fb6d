"""lm_eval with model `halftone`."""
from lm_eval.__main__ import cli_evaluate

import halftone_lm_eval  # noqa: F401  registers the model

if __name__ == "__main__":
    cli_evaluate()
