"""What others must not reach, run or overload; also under ``python -O``, which skips asserts."""
