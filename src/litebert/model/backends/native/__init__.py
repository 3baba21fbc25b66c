"""int8 inference on CPUs by C++ code that is compiled for the CPU at hand.

structs.h and structs.py describe the data that crosses the border; build.py compiles, weights.py packs, engine.py runs.
"""

from litebert.model.backends.native.build import NativeLibrary, native_library
from litebert.model.backends.native.engine import NativeInt8Backend

__all__ = ["NativeInt8Backend", "NativeLibrary", "native_library"]
