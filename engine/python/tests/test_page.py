"""The examples of docs/python.md, run from top to bottom on the simulated device, and its figures."""

import pathlib
import re
import unittest

import millpond


class Page(unittest.TestCase):
    def test_the_examples_run_in_the_order_of_the_page(self):
        page = pathlib.Path("docs/python.md").read_text(encoding="utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
        self.assertGreater(len(blocks), 5)
        names = {"__name__": "page"}
        opened = millpond.connect
        # The page opens whatever device there is; the simulated one runs the same kernels anywhere.
        millpond.connect = lambda device=None, *rest, **named: opened(
            "sim" if device in (None, "auto", "cuda") else device, *rest, **named
        )
        self.addCleanup(setattr, millpond, "connect", opened)
        for number, block in enumerate(blocks, 1):
            for name in re.findall(r"# raises (millpond\.\w+)", block):
                with self.assertRaises(eval(name, {"millpond": millpond}), msg=block):
                    exec(compile(block, f"docs/python.md, example {number}", "exec"), names)
                break
            else:
                exec(compile(block, f"docs/python.md, example {number}", "exec"), names)


if __name__ == "__main__":
    unittest.main()
