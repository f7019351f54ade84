"""Operations on tensors. Each is a plain torch function that favours reading over speed.

They are the definition of what blazr computes: a faster kernel may replace one, and must agree
with it. Norms, softmax, rotary angles, routing and every recurrence run in float32.
"""
