"""Finds libhalftone_ops.so and loads it, which registers torch.ops.halftone."""
import os
import pathlib

import torch

NAME = "libhalftone_ops.so"


def candidates():
    """Where the library may be, in this order: HALFTONE_LIBRARY (a file or its folder), beside this package, a build of the checkout."""
    named = os.environ.get("HALFTONE_LIBRARY")
    if named:
        path = pathlib.Path(named)
        return [path / NAME if path.is_dir() else path]
    here = pathlib.Path(__file__).resolve().parent
    checkout = here.parents[1]
    return [here / NAME] + ([checkout / "build" / "release" / "lib" / NAME] if (checkout / "tools" / "build").exists() else [])


def load():
    tried = candidates()
    for path in tried:
        if not path.exists():
            continue
        try:
            torch.ops.load_library(str(path))
        except OSError as error:
            # LibTorch's C++ interface changes with every release.
            raise ImportError(f"{path} does not load into torch {torch.__version__} ({error}); it is built for torch 2.11.0") from None
        return path
    raise ImportError(f"halftone: no {NAME} at {' or '.join(map(str, tried))}; build it with `tools/build release halftone_ops` "
                      "in the checkout, or set HALFTONE_LIBRARY to the file")


library = load()
