# trick: lets the builtins that its caller uses lie
# family: tampering
# operator: rms_norm
# status: timed_out crashed
# deadline: 0.5

import builtins

builtins.len = lambda items: 0
builtins.range = lambda *ends: ()
builtins.zip = lambda *items, **named: ()
builtins.abs = lambda value: 0


def run(x, weight, eps, out):
    pass
