"""onnx's backend tests through onnx's own runner.

    HEDDLE=build/bin/heddle PYTHONPATH=python build/venv/bin/python python/backend_test.py [PATTERN]
"""

import sys
import unittest

import onnx.backend.test

import heddle.backend

runner = onnx.backend.test.BackendTest(heddle.backend, __name__)
runner.include(sys.argv.pop(1) if len(sys.argv) > 1 else ".*_cpu$")
globals().update(runner.test_cases)

if __name__ == "__main__":
    unittest.main()
