"""Let `import torch` load torch_ops where torch reads no entry points, before 2.5. A .pth file loads this."""

import importlib.abc
import importlib.util
import sys


class _Torch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        own = spec.loader.exec_module

        def exec_module(module):
            own(module)
            import torch_ops

            torch_ops.register()

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Torch())
